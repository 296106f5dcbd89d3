"""The request of `predict`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypedDict

from voxelocity.core.requests.plan import read_device
from voxelocity.core.scan_formats import OUTPUTS
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.quantities import count_text
from voxelocity_observe.core.request import Option, UserRequest


def _read_device(text: str) -> str:
    if read_device(text) not in (known := ("cpu", "cuda", "all", "auto")):
        raise ConfigError(f"not known; choose {', '.join(known[:-1])} or {known[-1]}")
    return text


@dataclass(frozen=True, kw_only=True)
class PredictRequest(UserRequest):
    """What `voxelocity.predict` and `voxelocity predict` take."""

    CALL: ClassVar[str] = "vx.predict"

    models: tuple[Path, ...]
    """The folder of a model (`infer.open_model`), or several, which are averaged."""
    inputs: tuple[Path, ...]
    """Files, folders and lists of scans, as `find_scans` takes them."""
    out: Annotated[Path, Option(flags=("-o", "--out"))]
    """Folder for the predictions.

    It is created if it does not exist. A scan is never replaced.
    """
    format: Annotated[str, Option()] = "auto"
    """Format of the predictions: "auto" or one of `core.scan_formats.OUTPUTS`.

    "auto" is the scans' format if it is one of these, else nii.gz.
    """
    volume: Annotated[int | None, Option(least=1)] = None
    """The volume to predict if scans have several, such as time points; counted from 1.

    By default, each volume is a channel.
    """
    device: Annotated[Any, Option(read=_read_device)] = "auto"
    """cpu, cuda, all or auto. all: the scans are distributed over all visible GPUs.

    In Python, devices: such as "cuda", or several, each with a network of its own; `core.device.HOST` for an export
    that runs without torch.
    """
    num_threads: int = 0
    """Scans decoded ahead, and threads that resample predictions to the scans' grids; 0: as many as cores."""
    overwrite: Annotated[bool, Option()] = False
    """Replace existing predictions in --out.

    Each file is replaced atomically.
    """
    resume: Annotated[bool, Option()] = False
    """Skip scans that already have a prediction in --out.

    Existing files are complete, because each is renamed when it is complete.
    """
    probabilities: Annotated[bool, Option()] = False
    """Also write the probabilities of every class to OUT/probabilities.

    A 4-D NIfTI file for each scan.
    """
    previews: Annotated[bool, Option()] = False
    """Also write a picture of each scan to OUT/previews."""
    one_file_per_class: Annotated[bool, Option()] = False
    """Write a mask for each class, OUT/CASE/CLASS.nii.gz, instead of one file with all classes.

    As TotalSegmentator does. Masks of overlapping classes overlap.
    """
    statistics: Annotated[bool, Option()] = False
    """Also write volume (mm³) and mean intensity of each class to OUT/statistics.

    With `one_file_per_class`, to OUT/CASE/statistics.json, as TotalSegmentator does.
    """
    label_files: Annotated[bool, Option()] = False
    """Also write names and colors of the label values for ITK-SNAP and 3D Slicer.

    OUT/labels.label and OUT/labels.ctbl.
    """
    page: Annotated[bool, Option(flags=("--no-page",), is_negated=True)] = True
    """Do not write predictions.html.

    In Python, whether to write it, with times, volumes and slices of the first scans.
    """
    postprocess: Annotated[bool, Option(flags=("--no-postprocess",), is_negated=True)] = True
    """Keep all components, even of classes whose largest one the model keeps.

    In Python, whether to keep only the largest component of the classes that the model names (`keep_largest`).
    """
    float16_sums: Annotated[bool, Option()] = False
    """Add windows and folds in float16, as nnU-Net does; for nnU-Net models only, and slower.

    Otherwise sums are more accurate, and labels differ from nnU-Net's where two classes are almost tied.
    """
    factory: Annotated[str, Option(flags=("--network",))] = ""
    """Code that may run: the builder of the run's network, if it is your own (package.module:name), or the compiled
    file of an export (network.pt2).
    """
    runtime: Annotated[str, Option()] = "eager"
    """What runs the network: one of `infer.runtimes.table.RUNTIMES`, or "auto", which measures the fastest."""

    def _check(self) -> None:
        self.check_one_of("the first replaces predictions, the second keeps them", "overwrite", "resume")
        self.check_one_of("masks are named by their classes", "one_file_per_class", "label_files")
        self.check_choice("format", ("auto", *OUTPUTS))
        self.check_number("num_threads", "give a whole number from 0", is_whole=True)
        if self.volume is not None:
            self.check_number("volume", "give a whole number from 1", least=1, is_whole=True)

    def left_to_do(self, num_written: int) -> str:
        """What a command that ends early has written, and what predicts the other scans: the end of a message."""
        is_one = num_written == 1
        again = "starts over" if self.overwrite else "with --resume predicts the other scans"
        return (
            f"{count_text(num_written, 'prediction')} of this command {'is' if is_one else 'are'} in {self.out}; the "
            f"same command {again}"
        )


class PredictOptions(TypedDict, total=False):
    """The fields of `PredictRequest` as keywords."""

    device: Any
    num_threads: int
    format: str
    volume: int | None
    overwrite: bool
    resume: bool
    float16_sums: bool
    factory: str
    runtime: str
    postprocess: bool
    page: bool
    probabilities: bool
    previews: bool
    one_file_per_class: bool
    statistics: bool
    label_files: bool
