"""Files in, files out: predicts the scans that a command names, and writes their predictions."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from voxelocity.core.errors import InputError, OutputError, ScanError, UnpredictedError
from voxelocity.core.volume import Array, Volume, VolumeRef, slabs
from voxelocity.core.whole_file import remove_abandoned
from voxelocity.data.decode import ScanHeader, read_header, source_files
from voxelocity.infer.components import keep_largest
from voxelocity.infer.doubts import device_doubts, grid_doubts, intensity_doubts
from voxelocity.infer.model import PredictionSpec
from voxelocity.infer.models import open_models
from voxelocity.infer.outputs import Output, OutputFormat, choose_output
from voxelocity.infer.predictor import Predictor
from voxelocity.infer.scans import find_scans
from voxelocity.infer.sinks import ClassIndices

# Writing one prediction takes seconds: an older file was left by a process that was killed.
_ABANDONED_S = 3_600.0
_COUNTED_VALUES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PredictedScan:
    """A prediction that was written.

    Attributes:
        case_id: of the scan.
        path: the file.
        seconds: since the prediction before it was written, or since the start.
        num_voxels: voxels of each class except the first, by name.
        voxel_ml: volume of one voxel.
    """

    case_id: str
    path: Path
    seconds: float
    num_voxels: Mapping[str, int]
    voxel_ml: float


def predict_files(
    models: Path | Sequence[Path],
    inputs: Sequence[Path],
    out: Path,
    *,
    device: torch.device,
    num_threads: int,
    format: OutputFormat = "auto",
    overwrite: bool = False,
    resume: bool = False,
    factory: str = "",
    postprocess: bool = True,
    on_start: Callable[[int], None] = lambda num_scans: None,
    on_case: Callable[[PredictedScan], None] = lambda scan: None,
    on_failure: Callable[[str, str], None] = lambda case_id, reason: None,
    warn: Callable[[str], None] = warnings.warn,
) -> tuple[PredictedScan, ...]:
    """Writes one file per scan into `out`: class values as in the training labels, on the scan's own grid.

    Qform, sform and units of NIfTI are the scan's. If one scan cannot be predicted, the others still are.

    Args:
        models: the folder of a model (`infer.models.open_model`), or several, whose logits are averaged.
        inputs: files, folders and lists of scans, as `find_scans` takes them.
        out: created if it does not exist. A scan is never replaced.
        device: where the network runs.
        num_threads: scans decoded ahead, and threads that put a prediction back on its scan's grid.
        format: of the predictions, as `choose_output` takes it.
        overwrite: whether to replace predictions of the same name, each file in one piece.
        resume: whether to leave out scans whose predictions already exist, which are whole because each is moved into
            place when it is complete.
        factory: if the run trained your own network, its `network.factory`.
        postprocess: whether to keep only the largest component of the classes that the model names (`keep_largest`).
        on_start: called with the number of scans to be predicted.
        on_case: called with each prediction that was written.
        on_failure: called with each case that cannot be predicted, and why, as soon as that is known.
        warn: called once for each scan that is unlike the training scans, for a run that was never validated, for files
            that are left out, and for a device with too little memory.

    Raises:
        ConfigError: the factory cannot be imported.
        InputError: there is no model, models cannot be averaged, an input is missing, a prediction already exists, or
            `out` cannot be written; or the only scan cannot be used. Errors visible in names and headers are raised
            before the first prediction.
        UnpredictedError: some scans could not be predicted; all others were.
    """
    if overwrite and resume:
        raise InputError("predict: --overwrite replaces predictions and --resume keeps them; choose one of the two")
    model = open_models([models] if isinstance(models, Path) else models, factory=factory)
    spec = model.spec if postprocess else model.spec.model_copy(update={"keep_largest": ()})
    refs = find_scans(inputs, num_channels=len(spec.channels), warn=warn)
    output = choose_output(format, refs, warn)
    _check_no_scan_is_replaced(refs, out, output)
    if resume:
        refs = tuple(ref for ref in refs if not os.path.lexists(out / output.file_name(ref.case_id)))
    elif not overwrite:
        _check_nothing_is_replaced(refs, out, output)
    for text in (*model.doubts, *device_doubts(spec, device)):
        warn(f"predict: {text}")
    on_start(len(refs))
    reasons: dict[str, str] = {}

    def fail(case_id: str, error: ScanError) -> None:
        if len(refs) == 1:
            raise error
        reasons[case_id] = str(error)
        on_failure(case_id, str(error))

    headers = _read_headers(refs, spec, fail)
    refs_left = [ref for ref in refs if ref.case_id in headers]
    _make_folder(out, refs, output)
    predictor = Predictor(model.network, spec, preparation=model.preparation, device=device, folder=out, warn=warn)
    written: list[PredictedScan] = []
    with _Writer(out, spec, output) as writer:

        def note(scan: PredictedScan | None) -> None:
            if scan is not None:
                written.append(scan)
                on_case(scan)

        for scan, prediction, seconds in predictor.stream(refs_left, num_threads=num_threads, on_failure=fail):
            doubts = [*grid_doubts(headers[scan.case_id], spec), *intensity_doubts(scan, spec)]
            if doubts:
                warn(f"predict: case '{scan.case_id}' may be predicted poorly: {'; '.join(doubts)}")
            note(writer.write(scan, prediction, headers[scan.case_id][0]))
        note(writer.finish())
    if reasons:
        raise UnpredictedError(
            f"predict: {len(reasons)} of {len(refs)} scans could not be predicted, for the reasons above: "
            f"{', '.join(sorted(reasons))}; the others are in {out}",
            reasons=reasons,
        )
    return tuple(written)


class _Writer:
    """Writes predictions in a separate thread, at most one behind the current prediction."""

    def __init__(self, out: Path, spec: PredictionSpec, output: Output) -> None:
        self._out, self._spec, self._output = out, spec, output
        self._kept_largest = [spec.class_names.index(name) for name in spec.keep_largest]
        self._since = time.perf_counter()
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._writing: Future[PredictedScan] | None = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def write(self, scan: Volume, prediction: ClassIndices, header: ScanHeader) -> PredictedScan | None:
        """Begins to write this prediction; returns the one that was written before it."""
        before = self.finish()
        self._writing = self._thread.submit(self._write, scan, prediction, header)
        return before

    def finish(self) -> PredictedScan | None:
        """Waits for the prediction that is being written and returns it."""
        writing, self._writing = self._writing, None
        return None if writing is None else writing.result()

    def _write(self, scan: Volume, prediction: ClassIndices, header: ScanHeader) -> PredictedScan:
        path, names = self._out / self._output.file_name(scan.case_id), self._spec.class_names
        prediction = keep_largest(prediction, self._kept_largest)
        self._output.write(path, prediction, header, self._spec)
        counts = _counts(prediction, len(names))
        seconds, self._since = time.perf_counter() - self._since, time.perf_counter()
        return PredictedScan(
            case_id=scan.case_id,
            path=path,
            seconds=seconds,
            num_voxels=dict(zip(names[1:], counts[1:], strict=True)),
            voxel_ml=abs(float(np.linalg.det(scan.grid.matrix[:3, :3]))) / 1e3,
        )


def _counts(prediction: Array, num_classes: int) -> list[int]:
    counts = np.zeros(num_classes, dtype=np.int64)
    for (slab,) in slabs(prediction, max_values=_COUNTED_VALUES):
        counts += np.bincount(slab.reshape(-1), minlength=num_classes)
    return [int(count) for count in counts]


def _make_folder(out: Path, refs: Sequence[VolumeRef], output: Output) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"predict: cannot make the folder {out} ({error.strerror}); choose another with -o") from None
    remove_abandoned(out, names=tuple(output.file_name(ref.case_id) for ref in refs), older_than_s=_ABANDONED_S)
    twins: dict[str, str] = {}
    for ref in refs:
        other = twins.setdefault(ref.case_id.casefold(), ref.case_id)
        if other != ref.case_id and _ignores_case(out):
            raise OutputError(
                f"predict: the predictions of '{other}' and '{ref.case_id}' would be one file, because {out} ignores "
                "upper and lower case; rename one of the scans, or choose another folder with -o"
            )


def _ignores_case(folder: Path) -> bool:
    name = folder.resolve()
    return any(
        other != name and other.exists() and other.samefile(name)
        for other in (name.with_name(name.name.lower()), name.with_name(name.name.upper()))
        if name.name
    )


def _check_no_scan_is_replaced(refs: Sequence[VolumeRef], out: Path, output: Output) -> None:
    scans = {_identity(file): file for ref in refs for image in ref.images for file in _files_of(image)}
    for ref in refs:
        path = out / output.file_name(ref.case_id)
        identity = _identity(path)
        if identity is not None and identity in scans:
            raise OutputError(
                f"predict: the prediction of case '{ref.case_id}' would be written as {path}, over the scan "
                f"{scans[identity]}; choose another folder with -o"
            )


def _files_of(image: Path) -> tuple[Path, ...]:
    try:
        return source_files(image)
    except ScanError:
        # Reading its header says what is wrong.
        return (image,)


def _identity(path: Path) -> tuple[int, int] | None:
    """The file that a path leads to, following links and ignoring spelling; None if no file is found."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _check_nothing_is_replaced(refs: Sequence[VolumeRef], out: Path, output: Output) -> None:
    there = [path for ref in refs if os.path.lexists(path := out / output.file_name(ref.case_id))]
    if there:
        raise OutputError(
            f"predict: {len(there)} of {len(refs)} predictions already exist, the first is {there[0]}; replace "
            "them with --overwrite, predict only the others with --resume, or choose another folder with -o"
        )


def _read_headers(
    refs: Sequence[VolumeRef], spec: PredictionSpec, on_failure: Callable[[str, ScanError], None]
) -> dict[str, list[ScanHeader]]:
    """The headers of each case that the network can take, by case id."""
    by_case = {}
    for ref in refs:
        try:
            headers = [read_header(file) for file in ref.images]
            spec.check_channels(
                sum(header.num_channels for header in headers),
                where=f"predict: case '{ref.case_id}' ({', '.join(map(str, ref.images))})",
            )
        except ScanError as error:
            on_failure(ref.case_id, error)
        else:
            by_case[ref.case_id] = headers
    return by_case
