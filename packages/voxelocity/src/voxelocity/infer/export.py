"""`voxelocity export`: a run's network in the format of another runtime, compared with the run before it is kept."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout

from voxelocity.core.remote import remote_url
from voxelocity.core.requests.export import ExportRequest
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.patch import grid_regions
from voxelocity.data.source import open_cases
from voxelocity.infer.export_report import ExportedCase, ExportRecord, export_document
from voxelocity.infer.model import Model, PredictionSpec
from voxelocity.infer.models.exported import checksums, describe_export, open_export
from voxelocity.infer.models.kinds import is_export
from voxelocity.infer.models.open import open_model
from voxelocity.infer.models.spec import SPEC_NAME, ExportedFiles, ModelSpec, write_spec
from voxelocity.infer.predictor import Predictor
from voxelocity.infer.runtimes.auto import relative_difference, tolerance
from voxelocity.infer.runtimes.contract import ExportFormat, RuntimeTask, in_one_line
from voxelocity.infer.runtimes.native import load_eager
from voxelocity.infer.runtimes.of_model import task_of
from voxelocity.infer.runtimes.table import EXPORT_FORMATS, runtime_of
from voxelocity.infer.switches import switches_of
from voxelocity.metrics import case_score
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.errors import ConfigError, ExportError, InputError, OutputError
from voxelocity_observe.core.plain import parse_yaml
from voxelocity_observe.core.whole_file import put_in_place
from voxelocity_observe.document import write_page

PARITY_NAME, PAGE_NAME = "parity.json", "parity.html"
_BUILDING = ".building"


def export_run(
    request: ExportRequest,
    *,
    device: torch.device,
    num_threads: int,
    note: Callable[[str], None] = lambda text: None,
    warn: Callable[[str], None] = warnings.warn,
) -> ExportRecord:
    """Writes the network of a run for another runtime into a folder that `predict` takes as it takes the run.

    `model.json` there holds everything else; `parity.json` and `parity.html` compare both on validation cases of the
    run, or, where its data set cannot be reached, on windows of noise. Nothing is in place before it was compared.

    Args:
        request: what to export, where to, and as what.
        device: the one that the request's stands for here.
        num_threads: scans decoded ahead.
        note: called with each step and its result.
        warn: called for a run that was never validated, and with what keeps the comparison from validation cases.

    Raises:
        ConfigError: the format is not known, or something that it needs is missing.
        InputError: the run cannot be exported, or `out` cannot be written.
        ExportError: the network cannot be exported, or its export differs from it; nothing was written.
    """
    run, out = request.run, request.out
    form = _find_format(request.to, device)
    model = open_model(run, factory=request.factory)
    spec = model.spec
    if not isinstance(spec, ModelSpec) or spec.exported is not None:
        raise InputError(f"export: {run} is not a run of voxelocity; name the folder that `voxelocity train` wrote")
    _check_out(out, overwrite=request.overwrite)
    # The export no longer shows that its run did not finish.
    for doubt in model.doubts:
        warn(f"export: {doubt}")
    task = task_of(model, device)
    with _building_folder(out) as folder, switches_of(spec, [device]):
        watch = Stopwatch()
        exported = _build(model, spec, task, form, folder)
        build_s = watch.elapsed_s
        note(f"export: {form.main_file} built in {build_s:.1f} s")
        after = open_export(folder, factory=form.main_file if form.is_machine_code else "")
        refs = _validation_cases(run, warn)[: request.cases]
        record = _compare(model, after, task, refs, num_threads=num_threads, note=note, build_s=build_s)
        if not record.is_close:
            raise ExportError(
                f"export: the logits of {form.main_file} differ from the run's by {record.relative_difference:.2g} of "
                f"the largest logit, more than {record.tolerance:.2g}, so nothing was written; export to another format"
            )
        _put(folder, out, [*exported.sha256], record)
    return record


def _find_format(to: str, device: torch.device) -> ExportFormat:
    if to not in EXPORT_FORMATS:
        raise ConfigError(f"config: --to {to!r} is not known; choose {', '.join(EXPORT_FORMATS)}")
    if why_not := runtime_of(to).why_not(device):
        raise ConfigError(f"config: --to {to} cannot be used here: {why_not}")
    return EXPORT_FORMATS[to]


def _check_out(out: Path, *, overwrite: bool) -> None:
    if is_export(out) and not overwrite:
        raise OutputError(f"export: {out} holds an export already; replace it with --overwrite, or choose another -o")
    if not is_export(out) and os.path.exists(out / SPEC_NAME):
        raise OutputError(f"export: {out} holds another model, whose {SPEC_NAME} would be lost; choose another with -o")


@contextmanager
def _building_folder(out: Path) -> Iterator[Path]:
    """A folder inside `out` for files that are not in place yet; what a killed export left there is removed."""
    folder, lock = out / _BUILDING, FileLock(out / f"{_BUILDING}.lock")
    try:
        out.mkdir(parents=True, exist_ok=True)
        # It ends with the process that holds it.
        lock.acquire(blocking=False)
    except Timeout:
        raise OutputError(f"export: another export into {out} is running; wait for it, or choose another -o") from None
    except OSError as error:
        raise OutputError(f"export: cannot write into {out} ({error.strerror}); choose another with -o") from None
    try:
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        except OSError as error:
            raise OutputError(f"export: cannot write into {out} ({error.strerror}); choose another with -o") from None
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
        with contextlib.suppress(OSError):
            # Only where nothing else is in it.
            out.rmdir()


def _build(model: Model, spec: ModelSpec, task: RuntimeTask, form: ExportFormat, folder: Path) -> ExportedFiles:
    """Writes the files of the network and `model.json` into `folder`."""
    network = _module(model).to(task.device)
    try:
        has_dynamic_space = form.write(network, task, folder / form.main_file)
    except OSError:
        raise
    # Whatever the exporters meet in a network: they have no common error.
    except Exception as error:
        raise ExportError(
            f"export: the network cannot be exported to {form.name} ({in_one_line(error)}); export to another format"
        ) from error
    exported = ExportedFiles(
        format=form.name,
        sha256=checksums(folder, sorted(path.name for path in folder.iterdir())),
        device="any" if not form.is_machine_code else "cuda" if task.device.type == "cuda" else "cpu",
        has_dynamic_space=has_dynamic_space,
    )
    write_spec(folder, describe_export(spec, exported))
    return exported


def _validation_cases(run: Path, warn: Callable[[str], None]) -> tuple[VolumeRef, ...]:
    """The validation cases that `run.yaml` names, as far as they are still there; none, with a warning, if it cannot be
    read or its data set cannot be reached.
    """
    try:
        record = parse_yaml((run / "run.yaml").read_text(encoding="utf-8"))
        wanted = set(record["cases"]["validation"])
        path = Path(record["dataset"]["path"])
        if remote_url(path):
            # The record may come from someone else, and nobody asked to connect there.
            raise ConfigError("its record names a data set on a server")
        refs = tuple(ref for ref in open_cases(path) if ref.case_id in wanted)
    except (OSError, ValueError, KeyError, TypeError) as error:
        warn(f"export: the validation cases of {run} cannot be reached ({error}); both are compared on noise")
        return ()
    if not refs:
        warn(f"export: the data set of {run} has none of its validation cases left; both are compared on noise")
    return tuple(ref for ref in refs if ref.label is not None)


def _compare(
    before: Model,
    after: Model,
    task: RuntimeTask,
    refs: Sequence[VolumeRef],
    *,
    num_threads: int,
    note: Callable[[str], None],
    build_s: float,
) -> ExportRecord:
    """Both networks on the windows of a prepared case or on noise, and both predictions of each case."""
    assert isinstance(after.spec, ModelSpec)
    assert after.spec.exported is not None
    of_run, of_export = (
        Predictor(model.network, model.spec, model.preparation, device=task.device) for model in (before, after)
    )
    windows = (
        _windows_of(of_run.load(refs[0]).volume, task)
        if refs
        else torch.randn(task.batch_shape, generator=torch.Generator().manual_seed(0)).to(task.device)
    )
    with torch.no_grad():
        logits = load_eager(_module(before), task)(windows).float()
        seconds = _seconds_of(before, after, windows, task)
        # A copy, because predicting the cases below overwrites it.
        answers = after.network(windows).float().clone()
    cases: list[ExportedCase] = []
    for ref in refs:
        cases.append(_compare_case(of_run, of_export, before.spec, ref, num_threads=num_threads))
        note(f"export: {cases[-1].in_words()}")
    return ExportRecord(
        run=str(before.folder),
        unlearned=before.unlearned,
        to=after.spec.exported.format,
        device=task.device.type,
        build_s=build_s,
        has_dynamic_space=after.spec.exported.has_dynamic_space,
        num_windows=len(windows),
        windows_of=refs[0].case_id if refs else "",
        difference=float((answers - logits).abs().max()),
        relative_difference=relative_difference(answers, logits),
        tolerance=tolerance(task),
        window_s=seconds,
        cases=tuple(cases),
    )


def _module(model: Model) -> torch.nn.Module:
    assert isinstance(model.network, torch.nn.Module), "an export is not exported again"
    return model.network


def _windows_of(volume: Volume, task: RuntimeTask) -> torch.Tensor:
    """A batch of windows (b, c, x, y, z) from the middle of a prepared case."""
    image = torch.from_numpy(volume.intensities())
    missing = [max(0, side - n) for n, side in zip(image.shape[1:], task.shape_voxel, strict=True)]
    image = torch.nn.functional.pad(image, [part for n in reversed(missing) for part in (0, n)])
    x, y, z = image.shape[1:]
    boxes = grid_regions((x, y, z), task.shape_voxel, 0.5)
    first = max(0, (len(boxes) - task.batch_size) // 2)
    windows = [image[:, *box.slices] for box in boxes[first : first + task.batch_size]]
    return torch.stack(windows).to(task.device)


def _seconds_of(before: Model, after: Model, windows: torch.Tensor, task: RuntimeTask) -> tuple[float, float]:
    """Seconds of a window before and after, the least of three calls each, the first of which does not count."""
    quickest = []
    for run in (load_eager(_module(before), task), after.network):
        seconds = []
        for _ in range(4):
            watch = Stopwatch()
            run(windows)
            if task.device.type == "cuda":
                torch.cuda.synchronize(task.device)
            seconds.append(watch.elapsed_s)
        quickest.append(min(seconds[1:]) / len(windows))
    return quickest[0], quickest[1]


def _compare_case(
    of_run: Predictor, of_export: Predictor, spec: PredictionSpec, ref: VolumeRef, *, num_threads: int
) -> ExportedCase:
    found, scores, seconds = [], [], []
    for predictor in (of_run, of_export):
        watch = Stopwatch()
        scan, labels, *_ = next(predictor.stream([ref], num_threads=num_threads))
        seconds.append(watch.elapsed_s)
        assert scan.label is not None, "validation cases have labels"
        found.append(labels)
        score = case_score(
            ref.case_id, labels, scan.label, spec.class_names, scan.grid.steps_mm,
            regions=spec.regions, ignored=spec.ignored, tolerance_mm=None,
        )  # fmt: skip
        scores.append(score.mean_dice)
    return ExportedCase(
        case_id=ref.case_id,
        num_voxels=int(found[0].size),
        num_foreground=int(np.count_nonzero((found[0] > 0) | (found[1] > 0))),
        num_other=int(np.count_nonzero(found[0] != found[1])),
        dice_before=scores[0],
        dice_after=scores[1],
        seconds_before=seconds[0],
        seconds_after=seconds[1],
    )


def _put(folder: Path, out: Path, names: Sequence[str], record: ExportRecord) -> None:
    """Moves what was built into `out`, `model.json` last, because a folder with it is a model."""
    (out / SPEC_NAME).unlink(missing_ok=True)
    for form in EXPORT_FORMATS.values():
        for name in form.files:
            (out / name).unlink(missing_ok=True)
    for name in names:
        (folder / name).replace(out / name)
    document = export_document(record)
    put_in_place(out / PARITY_NAME, (json.dumps(document.to_plain(), indent=1, allow_nan=False) + "\n").encode())
    write_page(document, out / PAGE_NAME)
    (folder / SPEC_NAME).replace(out / SPEC_NAME)
