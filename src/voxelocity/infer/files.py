"""Files in, files out: predicts the scans that a command names, and writes their predictions."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from voxelocity.core.errors import UnpredictedError
from voxelocity.core.records import PREDICTIONS_PAGE
from voxelocity.core.volume import Array, slabs
from voxelocity.infer.components import keep_largest
from voxelocity.infer.doubts import device_doubts, grid_doubts, intensity_doubts
from voxelocity.infer.job import PredictionJob, plan_job
from voxelocity.infer.model import PredictionSpec
from voxelocity.infer.outputs import OutputFormat, make_folder
from voxelocity.infer.page import predictions_document
from voxelocity.infer.predictor import STAGES, Prediction, Predictor
from voxelocity.infer.runtimes.of_model import check_model, check_name, load_chosen
from voxelocity.infer.runtimes.table import EAGER
from voxelocity.infer.table import PredictionTable
from voxelocity.observe import available_memory_bytes, peak_device_bytes, peak_host_bytes
from voxelocity.report import cut_slices, write_page
from voxelocity.report.records import SliceFigure

_COUNTED_VALUES = 1 << 20
_MOST_FIGURES = 4


@dataclass(frozen=True, kw_only=True)
class PredictedScan:
    """A prediction that was written.

    Attributes:
        case_id: of the scan.
        path: the file.
        seconds: since the prediction before it was written, or since the start.
        stage_seconds: of each stage, as in `Prediction`, and "write". Stages of different scans overlap.
        peak_bytes: the most memory that this process has taken so far, of the GPUs if it uses any.
        device: where the network ran.
        num_voxels: voxels of each class except the first, by name.
        voxel_ml: volume of one voxel.
    """

    case_id: str
    path: Path
    seconds: float
    stage_seconds: Mapping[str, float]
    peak_bytes: int
    device: str
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
    runtime: str = EAGER,
    postprocess: bool = True,
    page: bool = True,
    on_start: Callable[[PredictionJob], None] = lambda job: None,
    on_windows: Callable[[], None] | None = None,
    on_case: Callable[[PredictedScan], None] = lambda scan: None,
    on_failure: Callable[[str, str], None] = lambda case_id, reason: None,
    warn: Callable[[str], None] = warnings.warn,
    on_runtime: Callable[[str], None] = lambda text: None,
) -> tuple[PredictedScan, ...]:
    """Writes one file per scan into `out`: class values as in the training labels, on the scan's own grid.

    Qform, sform and units of NIfTI are the scan's. If one scan cannot be predicted, the others still are.
    `predictions.csv` there gets a row for each: seconds of each stage, memory, device, and milliliters of each class.

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
        factory: if the run trained your own network, its `network.factory`; the file of an export that holds machine
            code you trust.
        runtime: which of `infer.runtimes.table.RUNTIMES` runs the network, or "auto" for the quickest on this machine.
        postprocess: whether to keep only the largest component of the classes that the model names (`keep_largest`).
        page: whether to write `predictions.html`, with times, volumes and slices of the first scans.
        on_start: called with what will be predicted.
        on_windows: called before each forward pass.
        on_case: called with each prediction that was written.
        on_failure: called with each case that cannot be predicted, and why, as soon as that is known.
        warn: called once for each scan that is unlike the training scans, for a run that was never validated, for files
            that are left out, and for a device with too little memory.
        on_runtime: called with the runtime that "auto" chose, and why.

    Raises:
        ConfigError: the factory cannot be imported, or the runtime cannot be used here.
        InputError: there is no model, models cannot be averaged, an input is missing, a prediction already exists, or
            `out` cannot be written; or the only scan cannot be used. Errors visible in names and headers are raised
            before the first prediction.
        UnpredictedError: some scans could not be predicted; all others were.
    """
    check_name(runtime, device)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        warn(text)

    job = plan_job(
        models,
        inputs,
        out,
        format=format,
        overwrite=overwrite,
        resume=resume,
        factory=factory,
        on_failure=on_failure,
        warn=tell,
    )
    model, spec = job.model, job.model.spec
    check_model(runtime, model, device)
    kept_largest = [spec.class_names.index(name) for name in spec.keep_largest] if postprocess else []
    for text in (*model.doubts, *device_doubts(spec, device)):
        tell(f"predict: {text}")
    on_start(job)
    make_folder(out, job.refs, job.output)
    num_windows = sum(memory.num_windows for memory in job.memory.values())
    forward = load_chosen(runtime, model, num_windows=num_windows, device=device, warn=tell, note=on_runtime)
    predictor = Predictor(
        model.network,
        spec,
        preparation=model.preparation,
        device=device,
        folder=out,
        warn=tell,
        on_windows=on_windows,
        forward=forward,
    )
    written: list[PredictedScan] = []
    start_s = time.perf_counter()
    table = PredictionTable(out, columns=_columns(spec), replaced={ref.case_id for ref in job.refs})
    num_ahead = job.num_ahead(available_memory_bytes())
    with _Writer(job, device, kept_largest) as writer:

        def note(scan: PredictedScan | None) -> None:
            if scan is not None:
                table.add(scan.case_id, _row(scan))
                written.append(scan)
                on_case(scan)

        for prediction in predictor.stream(
            job.usable_refs,
            num_threads=num_threads,
            num_ahead=num_ahead,
            on_failure=lambda case_id, error: on_failure(case_id, job.fail(case_id, error)),
        ):
            scan = prediction.scan
            doubts = [*grid_doubts(job.headers[scan.case_id], spec), *intensity_doubts(scan, spec)]
            if doubts:
                tell(f"predict: case '{scan.case_id}' may be predicted poorly: {'; '.join(doubts)}")
            note(writer.write(prediction))
        note(writer.finish())
    if page:
        document = predictions_document(
            written,
            writer.figures,
            class_names=spec.class_names,
            failures=job.reasons,
            warnings=told,
            seconds=time.perf_counter() - start_s,
        )
        write_page(document, out / PREDICTIONS_PAGE)
    if job.reasons:
        raise UnpredictedError(
            f"predict: {len(job.reasons)} of {len(job.refs)} scans could not be predicted, for the reasons above: "
            f"{', '.join(sorted(job.reasons))}; the others are in {out}",
            reasons=job.reasons,
        )
    return tuple(written)


class _Writer:
    """Writes predictions in a separate thread, at most one behind the current prediction.

    Attributes:
        figures: slices of the first scans.
    """

    def __init__(self, job: PredictionJob, device: torch.device, kept_largest: Sequence[int]) -> None:
        self.figures: list[SliceFigure] = []
        self._job, self._device, self._kept_largest = job, device, kept_largest
        self._since = time.perf_counter()
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._writing: Future[PredictedScan] | None = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def write(self, prediction: Prediction) -> PredictedScan | None:
        """Begins to write this prediction; returns the one that was written before it."""
        before = self.finish()
        self._writing = self._thread.submit(self._write, prediction)
        return before

    def finish(self) -> PredictedScan | None:
        """Waits for the prediction that is being written and returns it."""
        writing, self._writing = self._writing, None
        return None if writing is None else writing.result()

    def _write(self, prediction: Prediction) -> PredictedScan:
        scan, spec, output = prediction.scan, self._job.model.spec, self._job.output
        path, names = self._job.out / output.file_name(scan.case_id), spec.class_names
        start_s = time.perf_counter()
        classes = keep_largest(prediction.classes, self._kept_largest)
        output.write(path, classes, self._job.headers[scan.case_id][0], spec)
        counts = _counts(classes, len(names))
        if len(self.figures) < _MOST_FIGURES:
            self.figures.append(SliceFigure(title=scan.case_id, stacks=cut_slices(scan, classes)))
        now_s = time.perf_counter()
        seconds, self._since = now_s - self._since, now_s
        return PredictedScan(
            case_id=scan.case_id,
            path=path,
            seconds=seconds,
            stage_seconds={**prediction.seconds, "write": now_s - start_s},
            peak_bytes=peak_device_bytes() or peak_host_bytes(),
            device=str(self._device),
            num_voxels=dict(zip(names[1:], counts[1:], strict=True)),
            voxel_ml=abs(float(np.linalg.det(scan.grid.matrix[:3, :3]))) / 1e3,
        )


def _columns(spec: PredictionSpec) -> list[str]:
    stages = [f"{stage}_s" for stage in (*STAGES, "write")]
    return ["file", "seconds", *stages, "peak_bytes", "device", *(f"{name}_ml" for name in spec.class_names[1:])]


def _row(scan: PredictedScan) -> dict[str, object]:
    return {
        "file": scan.path.name,
        "seconds": round(scan.seconds, 4),
        **{f"{stage}_s": round(seconds, 4) for stage, seconds in scan.stage_seconds.items()},
        "peak_bytes": scan.peak_bytes,
        "device": scan.device,
        **{f"{name}_ml": round(num * scan.voxel_ml, 4) for name, num in scan.num_voxels.items()},
    }


def _counts(prediction: Array, num_classes: int) -> list[int]:
    counts = np.zeros(num_classes, dtype=np.int64)
    for (slab,) in slabs(prediction, max_values=_COUNTED_VALUES):
        counts += np.bincount(slab.reshape(-1), minlength=num_classes)
    return [int(count) for count in counts]
