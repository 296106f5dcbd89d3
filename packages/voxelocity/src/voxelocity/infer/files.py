"""Files in, files out: predicts the scans that a command names, and writes their predictions."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from voxelocity.core.records import PREDICTIONS_PAGE, PREDICTIONS_TABLE, PREVIEWS_FOLDER, PROBABILITIES_FOLDER
from voxelocity.core.volume import Volume
from voxelocity.infer.ahead import compile_prediction
from voxelocity.infer.doubts import device_doubts, grid_doubts, intensity_doubts
from voxelocity.infer.job import PredictionJob, plan_job
from voxelocity.infer.model import Model
from voxelocity.infer.models.open import open_models
from voxelocity.infer.outputs import Output, OutputFormat, check_no_scan_is_replaced, make_folder
from voxelocity.infer.page import predictions_document
from voxelocity.infer.predictor import Predictor
from voxelocity.infer.runtimes.contract import EAGER
from voxelocity.infer.runtimes.of_model import check_model, check_name, load_chosen
from voxelocity.infer.sharing import share_scans, until
from voxelocity.infer.switches import switches_of
from voxelocity.infer.writing import PredictedScan, PredictionWriter
from voxelocity_observe.core.device import Device, numbered
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.host import available_memory_bytes
from voxelocity_observe.core.quantities import count_text
from voxelocity_observe.document import write_page


def predict_files(
    models: Path | str | Sequence[Path | str],
    inputs: Path | str | Sequence[Path | str],
    out: Path | str,
    *,
    device: Device | str | Sequence[Device | str],
    num_threads: int,
    format: OutputFormat = "auto",
    overwrite: bool = False,
    resume: bool = False,
    factory: str = "",
    runtime: str = EAGER,
    postprocess: bool = True,
    page: bool = True,
    probabilities: bool = False,
    previews: bool = False,
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
        models: the folder of a model (`infer.open_model`), or several, whose logits are averaged.
        inputs: files, folders and lists of scans, as `find_scans` takes them, or one of these.
        out: created if it does not exist. A scan is never replaced.
        device: where the network runs, such as "cuda"; several share the scans, each with a network of its own.
            `core.device.HOST` for an export that runs without torch.
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
        probabilities: whether to write those of all classes, as a 4-D NIfTI file for each scan in `probabilities/`.
        previews: whether to write a picture of each scan in `previews/`.
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
    given = [device] if isinstance(device, str) or not isinstance(device, Sequence) else device
    devices = tuple(numbered(each) if isinstance(each, str) else each for each in given)
    for each in devices:
        check_name(runtime, each)
    folders = _paths(models)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        warn(text)

    job = plan_job(
        folders,
        _paths(inputs),
        Path(out),
        format=format,
        overwrite=overwrite,
        resume=resume,
        factory=factory,
        on_failure=on_failure,
        warn=tell,
    )
    if probabilities:
        check_no_scan_is_replaced(job.refs, job.out / PROBABILITIES_FOLDER, Output(format="nii.gz"))
    _check(job, devices, runtime, tell)
    on_start(job)
    inside = [PROBABILITIES_FOLDER] * probabilities + [PREVIEWS_FOLDER] * previews
    make_folder(job.out, job.refs, job.output, inside=inside)
    stop = threading.Event()

    def predictor_on(device: Device, own: Model) -> Predictor:
        check_model(runtime, own, device)
        compile_prediction(own, device)
        return Predictor(
            own.network,
            own.spec,
            own.preparation,
            device=device,
            folder=job.out,
            warn=tell,
            on_windows=until(stop, on_windows),
            forward=load_chosen(runtime, own, num_windows=job.num_windows, device=device, warn=tell, note=on_runtime),
            keep_probabilities=probabilities,
        )

    spec = job.model.spec
    kept_largest = [spec.class_names.index(name) for name in spec.keep_largest] if postprocess else []

    def fail(case_id: str, error: ScanError) -> None:
        on_failure(case_id, job.fail(case_id, error))

    with switches_of(spec, devices):
        # A network is on one device, and an export is opened for one, so each of the others reads the model again.
        others = [predictor_on(other, open_models(folders, factory=factory)) for other in devices[1:]]
        predictors = [predictor_on(devices[0], job.model), *others]
        start_s = time.perf_counter()
        with PredictionWriter(job, kept_largest, previews, on_case, fail) as writer:
            for prediction in share_scans(
                predictors,
                job.usable_refs,
                stop=stop,
                num_threads=num_threads,
                num_ahead=job.num_ahead(available_memory_bytes(), num_devices=len(devices)),
                on_failure=fail,
            ):
                _tell_doubts(prediction.scan, job, tell)
                writer.write(prediction)
            writer.finish()
    # Whom that concerns looks at predictions, or scores them; `evaluate` says it again.
    if num_trained := list(job.sides.values()).count("trained on"):
        told.append(
            f"{num_trained} of {count_text(len(job.refs), 'scan')} were trained on (column 'division' of "
            f"{PREDICTIONS_TABLE}): their predictions do not show how good the model is on others."
        )
    # With `resume` and no scan left, the page of the command before stays.
    if page and job.refs:
        document = predictions_document(
            writer.scans,
            writer.figures,
            class_names=spec.class_names,
            failures=job.reasons,
            warnings=told,
            seconds=time.perf_counter() - start_s,
        )
        write_page(document, job.out / PREDICTIONS_PAGE)
    job.check_all_were_predicted()
    return tuple(writer.scans)


def _paths(given: Path | str | Sequence[Path | str]) -> list[Path]:
    return [Path(each) for each in ([given] if isinstance(given, str | Path) else given)]


def _check(job: PredictionJob, devices: Sequence[Device], runtime: str, tell: Callable[[str], None]) -> None:
    """Returns if the model may run in the runtime; tells what makes all of its predictions doubtful."""
    check_model(runtime, job.model, devices[0])
    of_devices = (doubt for each in devices for doubt in device_doubts(job.model.spec, each))
    for text in dict.fromkeys([*job.model.doubts, *of_devices]):
        tell(f"predict: {text}")


def _tell_doubts(scan: Volume, job: PredictionJob, tell: Callable[[str], None]) -> None:
    spec = job.model.spec
    doubts = [*grid_doubts(job.headers[scan.case_id], spec), *intensity_doubts(scan, spec)]
    if doubts:
        tell(f"predict: case '{scan.case_id}' may be predicted poorly: {'; '.join(doubts)}")
