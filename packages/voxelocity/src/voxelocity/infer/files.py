"""Files in, files out: predicts the scans that a command names, and writes their predictions."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from rich.console import Console

from voxelocity.core.records import (
    PREDICTIONS_PAGE,
    PREDICTIONS_TABLE,
    PREVIEWS_FOLDER,
    PROBABILITIES_FOLDER,
    STATISTICS_FOLDER,
)
from voxelocity.core.requests.predict import PredictOptions, PredictRequest
from voxelocity.core.volume import Volume
from voxelocity.infer.ahead import compile_prediction
from voxelocity.infer.doubts import device_doubts, grid_doubts, intensity_doubts
from voxelocity.infer.job import PredictionJob, plan_job
from voxelocity.infer.model import Model
from voxelocity.infer.models.open import open_models
from voxelocity.infer.outputs import Output, check_no_scan_is_replaced, make_folder
from voxelocity.infer.page import predictions_document
from voxelocity.infer.parts import AveragePredictor, PartsPredictor
from voxelocity.infer.pending import Scratch
from voxelocity.infer.predictor import Predictor
from voxelocity.infer.progress import PredictionProgress
from voxelocity.infer.runtimes.of_model import check_model, check_name, load_chosen
from voxelocity.infer.sharing import share_scans, until
from voxelocity.infer.statistics import write_label_files
from voxelocity.infer.switches import switches_of
from voxelocity.infer.writing import PredictedScan, PredictionWriter
from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.core.device import Device, all_gpus, numbered
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.host import available_memory_bytes, cpu_budget
from voxelocity_observe.core.quantities import count_text
from voxelocity_observe.core.request import context_of, documents
from voxelocity_observe.document import write_page


@dataclass(frozen=True, kw_only=True)
class PredictionHooks:
    """What a program does while scans are predicted."""

    on_start: Callable[[PredictionJob], None] = lambda job: None
    """Called with what will be predicted."""
    on_windows: Callable[[], None] | None = None
    """Called before each forward pass; what it raises ends the prediction."""
    on_case: Callable[[PredictedScan], None] = lambda scan: None
    """Called with each prediction that was written."""
    on_failure: Callable[[str, str], None] = lambda case_id, reason: None
    """Called with each case that cannot be predicted, and why, as soon as that is known."""
    warn: Callable[[str], None] = warnings.warn
    """Called once for each scan that is unlike the training scans, for a run that was never validated, for files that
    are left out, and for a device with too little memory.
    """
    on_runtime: Callable[[str], None] = lambda text: None
    """Called with the runtime that "auto" chose, and why."""
    console: Console | None = None
    """Where progress is shown; the terminal, or the cell of a notebook, if None."""

    def with_progress(self, progress: PredictionProgress) -> PredictionHooks:
        """The same, with the progress shown after each."""

        def start(job: PredictionJob) -> None:
            self.on_start(job)
            progress.begin(job)

        def end(scan: PredictedScan) -> None:
            self.on_case(scan)
            progress.end(scan.case_id)

        def fail(case_id: str, reason: str) -> None:
            self.on_failure(case_id, reason)
            progress.end(case_id)

        on_windows = progress.watch(self.on_windows)
        return replace(self, on_start=start, on_windows=on_windows, on_case=end, on_failure=fail)


class PredictionOptions(PredictOptions, total=False):
    """The keywords of `predict_files`: the fields of `PredictRequest` and those of `PredictionHooks`."""

    on_start: Callable[[PredictionJob], None]
    on_windows: Callable[[], None] | None
    on_case: Callable[[PredictedScan], None]
    on_failure: Callable[[str, str], None]
    warn: Callable[[str], None]
    on_runtime: Callable[[str], None]
    console: Console | None


@documents(PredictRequest, PredictionHooks, leave_out=("models", "inputs", "out"), name="predict")
def predict_files(
    models: Path | str | Sequence[Path | str],
    inputs: Path | str | Sequence[Path | str],
    out: Path | str,
    **options: Unpack[PredictionOptions],
) -> tuple[PredictedScan, ...]:
    """Writes one file per scan into `out`: class values as in the training labels, on the scan's own grid.

    Qform, sform and units of NIfTI are the scan's. If one scan cannot be predicted, the others still are.
    `predictions.csv` there gets a row for each: seconds of each stage, memory, device, and milliliters of each class.

    Args:
        models: the folder of a model (`infer.open_model`), or several, which are averaged.
        inputs: files, folders and lists of scans, as `find_scans` takes them, or one of these.
        out: created if it does not exist. A scan is never replaced.
        options: the fields of `PredictRequest` and those of `PredictionHooks`.

    Raises:
        ConfigError: the factory cannot be imported, or the runtime cannot be used here.
        InputError: there is no model, models cannot be averaged, an input is missing, a prediction already exists, or
            `out` cannot be written; or the only scan cannot be used. Errors visible in names and headers are raised
            before the first prediction.
        UnpredictedError: some scans could not be predicted; all others were.
    """
    hooks, asked = context_of(PredictionHooks, options)
    request = PredictRequest.of_call(asked, models=models, inputs=inputs, out=out)
    with request.errors_as_written():
        return predict_scans(request, hooks)


def predict_scans(request: PredictRequest, hooks: PredictionHooks) -> tuple[PredictedScan, ...]:
    """What `predict_files` does, for a request."""
    with PredictionProgress(hooks.console or PlainConsole()) as progress:
        return _predict_scans(request, hooks.with_progress(progress))


def _predict_scans(request: PredictRequest, hooks: PredictionHooks) -> tuple[PredictedScan, ...]:
    devices = _devices(request.device)
    for device in devices:
        check_name(request.runtime, device)
    warned: list[str] = []

    def warn(text: str) -> None:
        warned.append(text)
        hooks.warn(text)

    job = plan_job(request, on_failure=hooks.on_failure, warn=warn)
    if request.probabilities:
        check_no_scan_is_replaced(job.refs, job.out / PROBABILITIES_FOLDER, Output(format="nii.gz"))
    check_model(request.runtime, job.model, devices[0])
    of_devices = (doubt for device in devices for doubt in device_doubts(job.model.spec, device))
    for text in dict.fromkeys([*job.model.doubts, *of_devices]):
        warn(f"predict: {text}")
    hooks.on_start(job)
    has_statistics = request.statistics and not job.output.masks
    folders = {PROBABILITIES_FOLDER: request.probabilities, PREVIEWS_FOLDER: request.previews}
    folders |= {STATISTICS_FOLDER: has_statistics}
    inside = [name for name, is_asked in folders.items() if is_asked]
    make_folder(job.out, job.refs, job.output, inside=inside)
    if request.label_files:
        write_label_files(job.out, job.model.spec)
    with switches_of(job.model.spec, devices):
        writer, seconds = _predict_all(job, request, replace(hooks, warn=warn), devices)
    # Whom that concerns looks at predictions, or scores them; `evaluate` says it again.
    if num_trained := list(job.sides.values()).count("trained on"):
        warned.append(
            f"{num_trained} of {count_text(len(job.refs), 'scan')} were trained on (column 'division' of "
            f"{PREDICTIONS_TABLE}): their predictions do not show how good the model is on others."
        )
    # With `resume` and no scan left, the page of the command before stays.
    if request.page and job.refs:
        document = predictions_document(
            writer.scans,
            writer.pictured.figures,
            class_names=job.model.spec.class_names,
            failures=job.reasons,
            warnings=warned,
            seconds=seconds,
        )
        write_page(document, job.out / PREDICTIONS_PAGE)
    job.check_all_were_predicted()
    return tuple(writer.scans)


def _predict_all(
    job: PredictionJob, request: PredictRequest, hooks: PredictionHooks, devices: Sequence[Device]
) -> tuple[PredictionWriter, float]:
    """Predicts and writes every usable scan; what was written, and the seconds without those of loading models."""
    stop = threading.Event()
    num_threads = request.num_threads or cpu_budget()
    # A network is on one device, and an export is opened for one, so each of the others reads the model again.
    others = (
        open_models(request.models, factory=request.factory, float16_sums=request.float16_sums) for _ in devices[1:]
    )
    models = [job.model, *others]
    predictors = [
        _load_predictor(model, job, request, replace(hooks, on_windows=until(stop, hooks.on_windows)), device)
        for model, device in zip(models, devices, strict=True)
    ]
    spec = job.model.spec
    kept_largest = spec.kept_components if request.postprocess else ()

    def fail(case_id: str, error: ScanError) -> None:
        hooks.on_failure(case_id, job.fail(case_id, error))

    start_s = time.perf_counter()
    with PredictionWriter(job, kept_largest, request, hooks.on_case, fail) as writer:
        for prediction in share_scans(
            predictors,
            job.usable_refs,
            stop=stop,
            num_threads=num_threads,
            num_ahead=job.num_ahead(available_memory_bytes(), num_devices=len(devices)),
            on_failure=fail,
        ):
            _warn_of_doubts(prediction.scan, job, hooks.warn)
            writer.write(prediction)
        writer.finish()
    return writer, time.perf_counter() - start_s


def _load_predictor(
    model: Model,
    job: PredictionJob,
    request: PredictRequest,
    hooks: PredictionHooks,
    device: Device,
    *,
    keeps_scores: bool = False,
) -> Predictor:
    """The model on a device, in the runtime that was asked for."""
    scratch = Scratch(folder=job.out, keeps_probabilities=request.probabilities, keeps_scores=keeps_scores)
    if model.parts:
        parts = [
            _load_predictor(part, job, request, hooks, device, keeps_scores=model.is_average) for part in model.parts
        ]
        if model.is_average:
            return AveragePredictor(parts, model.spec, scratch)
        return PartsPredictor(parts, [len(part.spec.labels) for part in model.parts])
    check_model(request.runtime, model, device)
    compile_prediction(model, device)
    forward = load_chosen(
        request.runtime, model, num_windows=job.num_windows, device=device, warn=hooks.warn, note=hooks.on_runtime
    )
    return Predictor(
        model.network,
        model.spec,
        model.preparation,
        device=device,
        scratch=scratch,
        warn=hooks.warn,
        on_windows=hooks.on_windows,
        forward=forward,
    )


def _devices(given: Device | str | Sequence[Device | str]) -> tuple[Device, ...]:
    if given == "all":
        return all_gpus()
    if given == "auto":
        import torch

        given = "cuda" if torch.cuda.is_available() else "cpu"
    several = [given] if isinstance(given, str) or not isinstance(given, Sequence) else given
    return tuple(numbered(device) if isinstance(device, str) else device for device in several)


def _warn_of_doubts(scan: Volume, job: PredictionJob, warn: Callable[[str], None]) -> None:
    spec = job.model.spec
    doubts = [*grid_doubts(job.headers[scan.case_id], spec), *intensity_doubts(scan, spec)]
    if doubts:
        warn(f"predict: case '{scan.case_id}' may be predicted poorly: {'; '.join(doubts)}")
