"""`train`: starts a run in an empty folder, continues an unfinished one, refuses to touch a finished one.

The run itself follows: fill the cache, build the network, train (`loop`), validate, write the model and the report.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from rich.console import Console

from voxelocity.core.cases import Cases
from voxelocity.core.config import AUTO
from voxelocity.core.records import CaseScore
from voxelocity.core.requests.train import MoreTime, TrainOptions, TrainRequest
from voxelocity.infer import SPEC_NAME, save_keep_largest, save_model
from voxelocity.infer.models.spec import read_spec
from voxelocity.metrics import summarize
from voxelocity.parallel import World, join_world, launcher_job
from voxelocity.planning import SharedKeys
from voxelocity.report import read_run, render_page, render_progress_png
from voxelocity.report.page import run_document
from voxelocity.report.summary import score_text
from voxelocity.step import TrainingStep, build_loss, build_network, guard_gradients, keep_float32, set_backend
from voxelocity.training.budget import MOST_FIRST_SHARE, Allotment, Budget, slowdown
from voxelocity.training.caching import fill_caches, prepared_cases
from voxelocity.training.checkpoint import Checkpoints
from voxelocity.training.loop import LoopState
from voxelocity.training.open_session import RunContext, open_session, plan_session
from voxelocity.training.postprocessing import FinalScores
from voxelocity.training.results import SlicePictures, unlearned_text, write_metrics
from voxelocity.training.run_folder import RunFolder
from voxelocity.training.session import Session, StopAskedError, StopRequest
from voxelocity.training.sharding import shard_network
from voxelocity.training.train_steps import load_latest, train_steps
from voxelocity.training.validation import Validation, full_command
from voxelocity_observe.core.clock import Clock
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.host import peak_device_bytes, peak_host_bytes
from voxelocity_observe.core.quantities import duration_text
from voxelocity_observe.core.request import context_of, documents
from voxelocity_observe.sinks import Sink, choose_sinks

# Rendering the page, the picture and the model's files; measured at 0.9 s on two cores, more if they are shared.
_REPORT_S = 2.0
_LOAD_OF_15_MINUTES = 2


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a finished run.

    Attributes:
        folder: where all files are.
        mean_dice: mean foreground Dice of the final validation, on each scan's own grid; None if no case has any
            foreground in truth or prediction, or the training is too short to be scored.
        headline: the result in words: that mean with the cases behind it, or why there is none.
        unlearned: why the training is too short to be scored; "" where it is not.
        next_command: what users do next, as they type it.
        scores: one per validation case.
        step: optimizer steps done.
        seconds: of the whole run, all sessions.
        target_reached_s: seconds until an intermediate validation reached the target; None if none did or none was set.
    """

    folder: Path
    mean_dice: float | None
    headline: str
    unlearned: str
    next_command: str
    scores: tuple[CaseScore, ...]
    step: int
    seconds: float
    target_reached_s: float | None

    def __repr__(self) -> str:
        """One line with the result."""
        return f"RunResult({self.headline or self.unlearned}; {str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """How notebooks show it: the report of the run."""
        return run_document(read_run(self.folder))._repr_html_()


class RunOptions(TrainOptions, total=False):
    """The keywords of `train`: the fields of `TrainRequest` and those of `RunContext`."""

    console: Console | None
    clock: Clock
    spent_s: float
    stop: StopRequest | None
    sinks: Sequence[Sink]
    plan_view: Literal["short", "full", "none"]
    shared: SharedKeys | None


@documents(TrainRequest, RunContext, leave_out=("out", "folds"))
def train(cases: Cases, out: Path | str, **options: Unpack[RunOptions]) -> RunResult:
    """Trains a network on the cases and leaves model, scores and report in `out`.

    An unfinished run in `out` continues from its last checkpoint if its data set and its plan are the requested ones;
    with `resume` it continues with the plan it was started with.

    Args:
        cases: what `voxelocity.open` returned.
        out: the run's folder.
        options: the fields of `TrainRequest`, `time_budget` as a text such as "5m", and the fields of `RunContext`.

    Raises:
        InputError: the data, the configuration or the folder cannot be used.
        InterruptedRunError: it was asked to stop; the state is saved.
        NonFiniteLossError: the loss became NaN or infinite.
    """
    context, asked = context_of(RunContext, options)
    request = TrainRequest.of_call(asked, out=out)
    with request.errors_as_written():
        return run_training(cases, request, context)


def run_training(cases: Cases, request: TrainRequest, context: RunContext) -> RunResult:
    """What `train` does, for a request."""
    began_s = context.clock() - context.spent_s
    context = replace(context, sinks=[*context.sinks, *choose_sinks(request.log)])
    with join_world(uses_gpu=request.device != "cpu" and torch.cuda.is_available()) as world:
        request = _adapt_to_restart(request, world)
        session_plan = world.run_on_leader(lambda: plan_session(cases, request, context, began_s=began_s))
        with open_session(session_plan, request, world, context, began_s=began_s) as session:
            if session_plan.is_finished:
                return _validate_again(session, session_plan.skipped)
            return _run(
                session,
                is_full_validation=request.full_validation,
                skip_broken=request.skip_broken,
                skipped=session_plan.skipped,
            )


def _adapt_to_restart(request: TrainRequest, world: World) -> TrainRequest:
    """The request as a launcher means it that repeats the command after a rank was lost.

    There may be fewer ranks now, and so another plan: the run continues with its own. A run that the launcher's job has
    not begun is still to be overwritten.
    """
    folder = RunFolder(request.out)
    is_begun = folder.holds_run and not (request.overwrite and not folder.is_of_job(launcher_job()))
    if world.from_leader(world.place.num_restarts > 0 and is_begun):
        # What the launcher started has written down the time that it got.
        has_more = isinstance(request.time_budget_s, MoreTime) and not folder.is_finished()
        budget_s = AUTO if has_more else request.time_budget_s
        return replace(request, resume=True, overwrite=False, time_budget_s=budget_s)
    return request


def _run(session: Session, *, is_full_validation: bool, skip_broken: bool, skipped: Collection[str]) -> RunResult:
    """Runs to the end.

    Raises:
        InterruptedRunError: a signal asked it to stop; the state is saved.
        NonFiniteLossError: the loss or a weight became NaN or infinite; the last checkpoint is from before that.
        ScanError: a case cannot be used.
        DatasetError: no label holds anything but background.
        DeviceMemoryError: a step on a single patch does not fit into memory.
    """
    checkpoints = Checkpoints(session.folder.checkpoints, keep=session.plan.train.keep_checkpoints)
    world = session.world
    try:
        first_step = world.run_on_leader(lambda: _find_first_step(checkpoints))
        cases = fill_caches(session, first_step=first_step, skipped=skipped, skip_broken=skip_broken)
        begin_s, begin_cpu_s = session.clock(), time.process_time()
        with session.stage("network"):
            training, state = _restore(session, checkpoints)
        report_s = _REPORT_S * slowdown(session.clock() - begin_s, time.process_time() - begin_cpu_s)
        validation = Validation(
            session,
            cases.held,
            cases.intermediate(session.plan.train.validation_cases),
            is_full=is_full_validation,
            report_s=report_s,
        )
        if state.validated_step and (num_cases := world.run_on_leader(lambda: _num_validated(session.folder))):
            validation.continue_with(num_cases)
        budget = _plan_budget(session, training, state, validation, load_s=cases.load_s)
        if not train_steps(session, cases.training, training, state, budget, validation, checkpoints):
            raise session.log_interruption(state.step)
        with session.stage("report"):
            learned = {"num_steps": state.step, "unlearned": unlearned_text(session, state.step)}
            trained, averaged = session.spec.model_copy(update=learned), training.averaged()
            world.run_on_leader(lambda: save_model(session.folder.path, averaged, trained))
        return _finish(session, training, state, validation)
    except StopAskedError:
        raise session.log_interruption(checkpoints.latest_step()) from None


def _num_validated(folder: RunFolder) -> int:
    """Cases of the last validation on the way; 0 if that is not known."""
    earlier = read_run(folder.path).validations
    return earlier[-1].num_cases or 0 if earlier else 0


def _find_first_step(checkpoints: Checkpoints) -> int:
    checkpoints.remove_abandoned()
    return checkpoints.latest_step()


def _restore(session: Session, checkpoints: Checkpoints) -> tuple[TrainingStep, LoopState]:
    """The step with its network, and the state of the loop: of the last checkpoint, or as they begin."""
    plan, spec = session.plan, session.spec
    set_backend(plan.backend, session.device)
    network = build_network(plan.network, num_channels=len(spec.channels), num_classes=spec.num_outputs, seed=plan.seed)
    guard_gradients(keep_float32(network, plan.precision.float32_layers), plan.precision, session.device)
    if session.source is not None and checkpoints.latest_step() == 0:
        session.source.take_over(network, plan.network, spec)
    sharding = shard_network(session, network)
    # A pipeline has whole batches, and a world of one as well.
    adds_up = sharding.takes_shares and not session.world.is_alone
    regions = [*spec.regions.values()]
    total: dict[str, Any] = {"total": session.world.total} if adds_up else {}
    training = TrainingStep(
        sharding,
        build_loss(plan.loss, regions=regions, ignored=spec.ignored, **total),
        optimizer=plan.optimizer,
        precision=plan.precision,
        device=session.device,
        seed=plan.seed,
        warn=session.warn,
        world=session.world,
    )
    latest = load_latest(session, training, checkpoints)
    if latest is None:
        if read_run(session.folder.path).checkpoints:
            session.warn(
                f"train: {session.folder.checkpoints} holds no checkpoint any more, so the training begins again at "
                "step 0; stop it and restore one to continue"
            )
        return training, LoopState()
    saved, path, damaged = latest
    for file in damaged:
        session.warn(f"train: the checkpoint {file} cannot be used and is removed; resuming from {path.name}")
        # If it stayed, it would count among the newest and push good ones out.
        file.unlink(missing_ok=True)
    training.load_state(saved["training"])
    return training, LoopState(**saved["loop"])


def _plan_budget(
    session: Session, training: TrainingStep, state: LoopState, validation: Validation, *, load_s: float | None
) -> Budget:
    """When the training ends. In a time budget, what follows is measured first, so that it fits."""
    train, elapsed_s = session.plan.train, session.log.elapsed_s
    if train.time_budget_s == 0.0:
        return Budget(elapsed_s, max_steps=train.steps)

    averaged = training.averaged()

    def rehearse_and_allot() -> Allotment:
        validation.rehearse(averaged, load_s=load_s)
        found = validation.allot(stepped_s=state.trained_s, validated_s=state.validated_s)
        validation.fit_intermediate(found.end_s - found.begin_s)
        return found

    with session.stage("rehearse validation"):
        allotted = session.world.run_on_leader(rehearse_and_allot)
    if planned := validation.differences():
        session.warn(
            f"train: a budget of {duration_text(train.time_budget_s)} is too short for the full final validation; "
            f"planned for now: {planned}. For a full validation later: {full_command(session.folder.path)}"
        )
    share, validation_s = train.validation_share, validation.intermediate_s
    most_s = max(share, MOST_FIRST_SHARE) * (allotted.end_s - elapsed_s())
    if not train.validate_every_steps and share and validation_s > most_s:
        session.console.print(
            f"no validation during training: it takes about {duration_text(validation_s)}, and may take "
            f"{duration_text(most_s)} of this training; --set train.validation_share=0.1 allows more",
            highlight=False,
            soft_wrap=True,
        )
    if allotted.is_short:
        session.warn(allotted.short_text(train.time_budget_s, validation.num_cases))
    return Budget(elapsed_s, max_steps=train.steps, begin_s=allotted.begin_s, end_s=allotted.end_s)


def _finish(session: Session, training: TrainingStep, state: LoopState, validation: Validation) -> RunResult:
    """The end of a run: the final validation, and everything that is written from it."""
    training.release_graphs()
    pictures = SlicePictures()
    final = validation.score(training.averaged(), pictures)
    # Cases that cannot be used are not among them.
    is_whole = len(final.scores) == validation.num_cases
    return session.world.run_on_leader(lambda: _write_results(session, state, final, pictures, is_whole=is_whole))


def _write_results(
    session: Session, state: LoopState, final: FinalScores, pictures: SlicePictures, *, is_whole: bool
) -> RunResult:
    folder, log, scores = session.folder, session.log, final.scores
    short = unlearned_text(session, state.step)
    if short and not folder.is_finished():
        session.warn(
            f"train: this training has no score: {short}. Its figures are those of an almost untrained network; "
            "train longer"
        )
    with session.stage("report"):
        save_keep_largest(folder.path, list(final.keep_largest))
        log.write("keep_largest", classes=final.keep_largest)
        folder.write_scores(scores, unlearned=short, exposed=session.exposed)
        pictures.save(folder.slices)
    mean_dice = None if short else summarize(scores).mean_dice
    # The event ends the run, so everything that `voxelocity report` cannot make again is written before it.
    with session.stage("report"):
        facts = read_run(folder.path)
        write_metrics(facts, folder.metrics)
        render_progress_png(facts, folder.progress_picture)
    log.write(
        "run_finished",
        seconds=log.elapsed_s(),
        step=state.step,
        mean_dice=mean_dice,
        unlearned=short,
        num_images=state.num_images,
        images_per_s=state.num_images / max(state.trained_s, 1e-9),
        wait_share=state.waited_s / max(state.trained_s, 1e-9),
        budget_s=session.plan.train.time_budget_s or None,
        load_average=os.getloadavg()[_LOAD_OF_15_MINUTES],
        peak_host_bytes=peak_host_bytes(),
        peak_device_bytes=peak_device_bytes(),
    )
    # The stage is logged when it ends, so this page does not count its own rendering; a page made later does.
    with session.stage("report"):
        facts = read_run(folder.path)
        render_page(facts, folder.report)
    target_dice = session.plan.train.target_dice
    reached_s = (v.time_s for v in facts.validations if 0.0 < target_dice <= v.mean_dice)
    return RunResult(
        folder=folder.path,
        mean_dice=mean_dice,
        headline=score_text(facts),
        unlearned=short,
        next_command=_next_command(session, is_whole=is_whole, is_short=bool(short)),
        scores=tuple(scores),
        step=state.step,
        seconds=log.elapsed_s(),
        target_reached_s=next(reached_s, None),
    )


def _next_command(session: Session, *, is_whole: bool, is_short: bool) -> str:
    """What a user does next: train for longer, score all cases, or predict."""
    folder = session.folder.path
    if is_short:
        return f"voxelocity train --resume {shlex.quote(str(folder))} --time-budget +10m"
    return f"voxelocity predict {shlex.quote(str(folder))} SCANS -o OUT" if is_whole else full_command(folder)


def _validate_again(session: Session, skipped: Collection[str]) -> RunResult:
    """Validates the network of a finished run in full, and writes its scores and its report again.

    Raises:
        InterruptedRunError: a signal asked it to stop; the earlier scores are unchanged.
        InputError: the checkpoint is not of the run's model.
        ScanError: a case cannot be used.
    """
    checkpoints = Checkpoints(session.folder.checkpoints, keep=session.plan.train.keep_checkpoints)
    with session.stage("network"):
        training, state = _restore(session, checkpoints)
    session.world.run_on_leader(lambda: _check_is_of_model(session.folder, state.step))
    _, held, _ = prepared_cases(session, skipped)
    try:
        return _finish(
            session, training, state, Validation(session, held, held.part(()), is_full=True, report_s=_REPORT_S)
        )
    except StopAskedError:
        raise session.log_interruption(state.step) from None


def _check_is_of_model(folder: RunFolder, step: int) -> None:
    """Refuses an older checkpoint than that of the model: its scores would be those of another network.

    Raises:
        InputError: the newest one is damaged or missing, or there is no model.
    """
    trained = read_spec(folder.path / SPEC_NAME).num_steps
    if trained not in (None, step):
        raise InputError(
            f"train: the newest usable checkpoint in {folder.checkpoints} is of step {step}, and the model of step "
            f"{trained}, so a validation would score another network; restore the checkpoint, or score predictions: "
            f"voxelocity predict {shlex.quote(str(folder.path))} ..., then voxelocity evaluate"
        )
