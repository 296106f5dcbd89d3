"""`model.json`: all that is needed to use a network, next to its weights or to the file of another runtime.

Importing it imports no torch.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from voxelocity.core.config import Config
from voxelocity.data.prepare import Preparation, PrepareConfig
from voxelocity.infer.model import PredictionSpec
from voxelocity.infer.runtimes.table import EXPORT_FORMATS
from voxelocity.step import NetworkConfig
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.plain import excerpt, shortened
from voxelocity_observe.core.whole_file import check_is_file, put_in_place

SPEC_NAME = "model.json"
KNOWN_VERSIONS = (1, 2, 3, 4)
"""Every `format_version` that this release reads; it writes the last. Version 1 has no `window.swap_pairs`: networks of
that time were trained on flipped patches without swapped labels, and their windows are mirrored the same way. Version 2
has no `region_order`, no `regions`, no `restored` and no `keep_largest`, version 3 no `backend`."""

if TYPE_CHECKING:
    _Format = str
else:
    _Format = Literal[tuple(EXPORT_FORMATS)]
_FILES = "|".join(re.escape(name) for form in EXPORT_FORMATS.values() for name in form.files)


class ExportedFiles(Config):
    """The files of an exported network."""

    format: _Format
    """By which the runtime is known that opens them (`infer.runtimes.table`)."""
    sha256: dict[Annotated[str, Field(pattern=f"^({_FILES})$")], str] = Field(min_length=1)
    """Checksum of each file, by name."""
    device: Literal["any", "cpu", "cuda"]
    """Kind of device that machine code was compiled for."""
    has_dynamic_space: bool
    """Whether windows may have another shape than `window.shape_voxel`."""


class ModelSpec(PredictionSpec):
    """What a network that we trained expects and returns, and how its weights are stored."""

    format_version: int = KNOWN_VERSIONS[-1]
    """Version of this description."""
    network: NetworkConfig
    """Which network the weights belong to."""
    prepare: PrepareConfig
    """How a scan is prepared before the network sees it."""
    num_steps: int | None = Field(default=None, ge=0)
    """Steps that the network was trained for."""
    unlearned: str = ""
    """Why these are too few for a score; "" where they are not."""
    weights_sha256: str = ""
    """Checksum of the weights file; "" in models of earlier releases."""
    exported: ExportedFiles | None = None
    """The files that take the place of the weights in an export; None for a run."""

    @model_validator(mode="after")
    def _window_fits_the_network(self) -> Self:
        shape, divisor = self.window.shape_voxel, self.network.divisor
        if self.window.is_of_volume:
            raise ValueError(f"window.shape_voxel {shape} has a 0, which only models of other toolkits may have")
        if any(length % part for length, part in zip(shape, divisor, strict=True)):
            raise ValueError(f"window.shape_voxel {shape} is not a multiple of {divisor}, which network.strides need")
        if shape == divisor and self.network.norm == "instance":
            raise ValueError(
                f"window.shape_voxel {shape} leaves one voxel at the coarsest level of the network, which instance "
                "normalization cannot scale"
            )
        return self

    def preparation(self) -> Preparation:
        return Preparation(self.prepare)

    @property
    def is_scale_free(self) -> bool:
        return self.prepare.intensity.mode == "zscore"


def too_short_text(folder: Path, unlearned: str) -> str:
    """The doubt about a model whose training is too short to be scored."""
    return f"the training in {folder} is too short to be scored: {unlearned}. Train it longer before you use it"


def read_object(path: Path, *, unreadable: str, damaged: str) -> dict[str, Any]:
    """The keys and values of a JSON file that belongs to a model.

    Args:
        path: the file.
        unreadable: the cure if it cannot be read.
        damaged: the cure if it holds something else.

    Raises:
        InputError: it cannot be read, or holds something else.
    """
    try:
        values = json.loads(check_is_file(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"infer: {path} cannot be read ({error.strerror}); {unreadable}") from None
    # Bytes that are not UTF-8, text that is not JSON, and a number with too many digits all raise ValueError.
    except (ValueError, RecursionError) as error:
        raise InputError(f"infer: {path} is damaged ({excerpt(error)}); {damaged}") from None
    if not isinstance(values, dict):
        raise InputError(
            f"infer: {path} is damaged (it holds a JSON {type(values).__name__}, not keys and values); {damaged}"
        )
    return values


def write_spec(folder: Path, spec: ModelSpec) -> None:
    """Writes `model.json`, in one piece."""
    put_in_place(folder / SPEC_NAME, (json.dumps(spec.to_plain(), indent=1) + "\n").encode())


def read_spec(path: Path) -> ModelSpec:
    """What a `model.json` describes.

    Raises:
        InputError: it cannot be read, is damaged, of another release, or of a recipe with networks of its own.
    """
    values = read_object(path, unreadable="check that it is a file you may read", damaged="train the model again")
    if isinstance(recipe := values.get("recipe"), str):
        raise InputError(
            f"infer: {path} describes a model of the recipe {shortened(recipe)}, which predicts with "
            f"`voxelocity recipe {shlex.quote(recipe[:40])} predict DATA -o {shlex.quote(str(path.parent))}`"
        )
    version = values.get("format_version", KNOWN_VERSIONS[0])
    # Before the keys are read, which may differ in another version.
    if version not in KNOWN_VERSIONS:
        raise InputError(
            f"infer: {path} has the format_version {version!r}, but this release reads "
            f"{', '.join(map(str, KNOWN_VERSIONS))}; install the release of voxelocity that wrote it, "
            "or train the model again"
        )
    try:
        return ModelSpec.parse(values, where=str(path))
    except ConfigError as error:
        raise InputError(f"infer: {error}; train the model again") from None
