"""What a command will predict, known from names and headers: scans, outputs, windows and memory. Reads no voxels."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from voxelocity.core.records import (
    PREDICTIONS_PAGE,
    PREDICTIONS_TABLE,
    PREVIEWS_FOLDER,
    PROBABILITIES_FOLDER,
    SLICER_LABELS,
    SNAP_LABELS,
    STATISTICS_FOLDER,
)
from voxelocity.core.requests.predict import PredictRequest
from voxelocity.core.scan_formats import DICOM, OUTPUTS
from voxelocity.core.volume import VolumeRef, VolumeSpec
from voxelocity.data.decode import ScanHeader, SeriesHeader, read_header, spec_of
from voxelocity.data.decode.notes import as_one_data_set
from voxelocity.infer.accumulator import Accumulators
from voxelocity.infer.division import Side
from voxelocity.infer.mask_files import mask_names
from voxelocity.infer.memory import ScanMemory, memory_document, model_memory
from voxelocity.infer.model import Model
from voxelocity.infer.models.open import open_models
from voxelocity.infer.outputs import (
    Output,
    check_can_write,
    check_no_scan_is_replaced,
    check_nothing_is_replaced,
    check_segmentations,
    choose_output,
    is_written,
)
from voxelocity.infer.pending import about_case
from voxelocity.infer.scans import find_scans
from voxelocity.infer.statistics import STATISTICS_FILE
from voxelocity_observe.core.device import Device
from voxelocity_observe.core.errors import InputError, ScanError, UnpredictedError
from voxelocity_observe.core.host import available_memory_bytes
from voxelocity_observe.core.quantities import count_text
from voxelocity_observe.document.blocks import Document

# Of an axis of NIfTI-1.
_MOST_MAPS = 32_767
# What is written next to the prediction of a case, by the field of the request that asks for it.
_BESIDE = (
    ("probabilities", PROBABILITIES_FOLDER + "/{}.nii.gz"),
    ("previews", PREVIEWS_FOLDER + "/{}.png"),
    ("statistics", STATISTICS_FOLDER + "/{}.json"),
    ("statistics", "{}/" + STATISTICS_FILE),
)


@dataclass(frozen=True, kw_only=True)
class PredictionJob:
    """Scans to predict with a model, into a folder.

    Attributes:
        model: one, or several as one.
        out: the folder.
        output: how predictions are stored.
        refs: every scan to be predicted.
        headers: of the files of each scan that the model can take, by case id.
        memory: what each of these takes, by case id.
        reasons: why the others cannot be predicted, by case id.
    """

    model: Model
    out: Path
    output: Output
    refs: tuple[VolumeRef, ...]
    headers: Mapping[str, Sequence[ScanHeader]]
    memory: Mapping[str, ScanMemory]
    reasons: dict[str, str] = field(default_factory=dict)

    @cached_property
    def sides(self) -> Mapping[str, Side]:
        """What each scan was in the training of the model, by case id, as far as that is known."""
        division = self.model.spec.division
        return {} if division is None else {ref.case_id: division.side(ref) for ref in self.refs}

    @property
    def usable_refs(self) -> list[VolumeRef]:
        return [ref for ref in self.refs if ref.case_id in self.headers]

    @property
    def largest(self) -> tuple[str, ScanMemory] | None:
        """The scan that takes the most memory; None if no scan can be predicted."""
        return max(self.memory.items(), key=lambda item: item[1].peak_bytes, default=None)

    @property
    def num_windows(self) -> int:
        """Of all scans, without mirrored ones."""
        return sum(memory.num_windows for memory in self.memory.values())

    def num_ahead(self, free_bytes: int, *, num_devices: int = 1) -> int:
        """Scans to decode and prepare while one is predicted on each device: at most one more than devices."""
        if self.largest is None:
            return 0
        memory = self.largest[1]
        num_fit = (free_bytes - num_devices * memory.peak_bytes) // max(1, memory.preparing_bytes)
        return max(0, min(num_devices + 1, num_fit))

    def outputs(self, request: PredictRequest) -> list[str]:
        """What will be written, a text for each kind of file."""
        found = self.output.in_words(self.usable_refs)
        case_id = next((ref.case_id for ref in self.usable_refs), "")
        statistics = f"{case_id}/{STATISTICS_FILE}" if self.output.masks else f"{STATISTICS_FOLDER}/{case_id}.json"
        also = (
            (request.probabilities, f"{PROBABILITIES_FOLDER}/{case_id}.nii.gz, ...: probabilities of every class"),
            (request.previews, f"{PREVIEWS_FOLDER}/{case_id}.png, ...: pictures"),
            (request.statistics, f"{statistics}, ...: volume and mean intensity of each class"),
            (request.label_files, f"{SNAP_LABELS}, {SLICER_LABELS}: names of the values"),
            (True, f"{PREDICTIONS_TABLE}: seconds, memory and volumes"),
            (request.page, f"{PREDICTIONS_PAGE}: the page"),
        )
        return [*found, *(text for is_asked, text in also if is_asked)]

    def memory_document(self, device: Device) -> Document | None:
        """What the largest scan takes on this device; None if no scan can be predicted."""
        if self.largest is None:
            return None
        case_id, memory = self.largest
        place = Accumulators(device, self.out, warn=lambda text: None).place(memory.scores_bytes)
        free_bytes = available_memory_bytes()
        return memory_document(case_id, memory, self.model.spec, place=place, free_bytes=free_bytes)

    def fail(self, case_id: str, error: ScanError) -> str:
        """Notes that a scan cannot be predicted, and returns why.

        Raises:
            ScanError: the error itself, if it is the only scan.
        """
        if len(self.refs) == 1:
            raise error
        self.reasons[case_id] = str(error)
        return str(error)

    def check_all_were_predicted(self) -> None:
        """Returns if no scan has failed.

        Raises:
            UnpredictedError: some have.
        """
        if self.reasons:
            raise UnpredictedError(
                f"predict: {len(self.reasons)} of {len(self.refs)} scans could not be predicted, for the reasons "
                f"above: {', '.join(sorted(self.reasons))}; the others are in {self.out}",
                reasons=self.reasons,
            )


def plan_job(
    request: PredictRequest,
    *,
    on_failure: Callable[[str, str], None] = lambda case_id, reason: None,
    warn: Callable[[str], None] = warnings.warn,
) -> PredictionJob:
    """The job for a request. Writes nothing.

    Raises:
        ConfigError: the factory cannot be imported.
        InputError: there is no model, models cannot be averaged, an input is missing, a prediction already exists or
            would replace a scan, the only scan cannot be used, or what was asked for cannot be written.
        OutputError: nothing can be written into the folder.
    """
    out, format = request.out, request.format
    model = open_models(request.models, factory=request.factory, float16_sums=request.float16_sums)
    refs = find_scans(request.inputs, num_channels=len(model.spec.channels), warn=warn)
    refs = tuple(replace(ref, volume=request.volume or ref.volume) for ref in refs)
    as_one_data_set(file for ref in refs for file in ref.files)
    read = functools.cache(read_header)
    masks = mask_names(model.spec) if request.one_file_per_class else {}
    output = choose_output(format, refs, warn, masks=masks)
    output = check_segmentations(output, _readable(refs, output, read), warn, is_chosen=format != "auto")
    _check_probabilities(request, model)
    check_can_write(out)
    check_no_scan_is_replaced(refs, out, output)
    if request.resume:
        refs = tuple(ref for ref in refs if not is_written(ref, out, output))
    elif not request.overwrite:
        check_nothing_is_replaced(refs, out, output)
    elif stale := _stale(refs, request):
        warn(
            f"predict: {count_text(len(stale), 'file')} next to the predictions that are replaced will stay, such as "
            f"{stale[0]}, and describe the earlier ones; write these again too, or remove them"
        )
    headers: dict[str, Sequence[ScanHeader]] = {}
    memory: dict[str, ScanMemory] = {}
    job = PredictionJob(model=model, out=out, output=output, refs=refs, headers=headers, memory=memory)
    for ref in refs:
        try:
            found = [read(file) for file in ref.images]
            scan = _spec_of(ref, found, model)
            with about_case(ref.case_id):
                memory[ref.case_id] = model_memory(scan, model)
            headers[ref.case_id] = [
                header.of_volume(ref.volume) if ref.volume and isinstance(header, SeriesHeader) else header
                for header in found
            ]
        except ScanError as error:
            on_failure(ref.case_id, job.fail(ref.case_id, error))
    return job


def _stale(refs: Sequence[VolumeRef], request: PredictRequest) -> list[Path]:
    """What an earlier command wrote next to predictions, and this one does not."""
    names = [name for field, name in _BESIDE if not getattr(request, field)]
    paths = (request.out / name.format(ref.case_id) for ref in refs for name in names)
    return [path for path in paths if path.is_file()]


def _check_probabilities(request: PredictRequest, model: Model) -> None:
    num_outputs = model.spec.num_outputs
    if request.probabilities and model.parts and not model.is_average:
        raise InputError(
            f"predict: {model.folder} is a model in parts, whose probabilities have no common scale; leave "
            "--probabilities out, or name one part"
        )
    if request.probabilities and num_outputs > _MOST_MAPS:
        raise InputError(
            f"predict: --probabilities would write {num_outputs:,} classes as one axis of a NIfTI file, which holds "
            f"{_MOST_MAPS:,}; leave it out"
        )


def _readable(refs: Sequence[VolumeRef], output: Output, read: Callable[[Path], ScanHeader]) -> dict[str, ScanHeader]:
    """Headers of the series whose predictions are to refer to them; those that cannot be read are left out."""
    headers = {}
    for ref in refs if OUTPUTS[output.format] is DICOM else ():
        with contextlib.suppress(ScanError):
            headers[ref.case_id] = read(ref.images[0])
    return headers


def _spec_of(ref: VolumeRef, headers: Sequence[ScanHeader], model: Model) -> VolumeSpec:
    spec = spec_of(ref, headers)
    where = f"predict: case '{ref.case_id}' ({', '.join(map(str, ref.images))})"
    where += "".join(f", with {header.channel_words}," for header in headers if header.channel_words)
    model.spec.check_channels(spec.num_channels, where=where)
    return spec
