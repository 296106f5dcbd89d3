"""The main job, step by step: open the folder, fill the cache, train, validate, write the model and the report."""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from voxelocity.core.credentials import hide_credentials
from voxelocity.core.errors import InterruptedRunError
from voxelocity.core.records import CaseScore
from voxelocity.data.pipeline import Feed, PreparedCases
from voxelocity.infer import save_model
from voxelocity.metrics import summarize
from voxelocity.observe import Clock, EventLog, peak_device_bytes, peak_host_bytes
from voxelocity.planning import Plan, Planned
from voxelocity.report import RunFacts, duration_text, read_run, render_page, render_progress_png
from voxelocity.step import TrainingStep, build_loss, build_network, set_backend
from voxelocity.training.budget import Allotment, Budget, StepBudget, TimeBudget, allot, left_for_validation
from voxelocity.training.caching import Caching, FilledCases
from voxelocity.training.checkpoint import Checkpoints
from voxelocity.training.final import FinalValidation, full_command
from voxelocity.training.loop import Loop, LoopState
from voxelocity.training.metrics_table import write_metrics
from voxelocity.training.pictures import SlicePictures
from voxelocity.training.progress import TerminalProgress
from voxelocity.training.progress_picture import ProgressPicture
from voxelocity.training.run_folder import RunFolder
from voxelocity.training.spec import model_spec
from voxelocity.training.stage import Stage
from voxelocity.training.stop import StopAskedError, StopRequest
from voxelocity.training.validate import validate_prepared

# Rendering the page, the picture and the model's files; measured at 0.9 s on two cores, more if they are shared.
_REPORT_S = 2.0
_MOST_SLOWDOWN = 4.0
_LOAD_OF_15_MINUTES = 2


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a finished run.

    Attributes:
        folder: where all files are.
        mean_dice: mean foreground Dice of the final validation, on each scan's own grid; None if no case has any
            foreground in truth or prediction.
        scores: one per validation case.
        step: optimizer steps done.
        seconds: of the whole run, all sessions.
        target_reached_s: seconds until an intermediate validation reached the target; None if none did or none was set.
    """

    folder: Path
    mean_dice: float | None
    scores: tuple[CaseScore, ...]
    step: int
    seconds: float
    target_reached_s: float | None


@dataclass(kw_only=True)
class Run:
    """One training run in its folder, from the plan to the report. Use `train` from `voxelocity.training`.

    Attributes:
        is_full_validation: never shorten the final validation.
        skip_broken: leave out cases that cannot be used.
        skipped: ids of cases that earlier sessions left out.
    """

    planned: Planned
    folder: RunFolder
    log: EventLog
    console: Console
    clock: Clock
    stop: StopRequest
    is_full_validation: bool = False
    skip_broken: bool = False
    skipped: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.plan: Plan = self.planned.plan
        self.device = self.planned.machine.torch_device
        self.num_threads = self.planned.machine.num_cpus
        self.spec = model_spec(self.planned)
        self.checkpoints = Checkpoints(self.folder.checkpoints, keep=self.plan.train.keep_checkpoints)
        self._report_s = _REPORT_S

    def execute(self) -> RunResult:
        """Runs to the end.

        Raises:
            InterruptedRunError: a signal asked it to stop; the state is saved.
            NonFiniteLossError: the loss or a weight became NaN or infinite; the last checkpoint is from before that.
            ScanError: a case cannot be used.
            DatasetError: no label holds anything but background.
            DeviceMemoryError: a step on a single patch does not fit into memory.
        """
        self.checkpoints.remove_abandoned()
        try:
            return self._execute()
        except StopAskedError:
            raise self._interrupted(None) from None

    def validate_again(self) -> RunResult:
        """Validates the network of a finished run in full, and writes its scores and its report again.

        Raises:
            InterruptedRunError: a signal asked it to stop; the earlier scores are unchanged.
            ScanError: a case cannot be used.
        """
        with self._stage("network"):
            training, state = self._restore()
        held = self._caching().held()
        final = self._final_validation(held, held.part(()), is_full=True)
        try:
            return self._finish(self._score(training, final), state)
        except StopAskedError:
            raise self._interrupted(state) from None

    def _execute(self) -> RunResult:
        caches = self._caching().fill()
        begin_s, begin_cpu_s = self.clock(), time.process_time()
        with self._stage("network"):
            training, state = self._restore()
        self._report_s = _REPORT_S * _slowdown(self.clock() - begin_s, time.process_time() - begin_cpu_s)
        final = self._final_validation(caches.held, caches.on_the_way, is_full=self.is_full_validation)
        budget = self._budget(training, state, final, load_s=caches.load_s)
        if not self._train(training, state, budget, caches, final):
            raise self._interrupted(state)
        with self._stage("report"):
            trained = self.spec.model_copy(update={"num_steps": state.step})
            save_model(self.folder.path, training.averaged, trained)
        return self._finish(self._score(training, final), state)

    def _final_validation(self, held: PreparedCases, on_the_way: PreparedCases, *, is_full: bool) -> FinalValidation:
        return FinalValidation(
            held,
            on_the_way,
            self.spec,
            device=self.device,
            num_threads=self.num_threads,
            budget_s=self.plan.train.time_budget_s,
            is_full=is_full,
            has_target=self.plan.train.target_dice > 0.0,
            clock=self.clock,
            stop=self.stop,
        )

    def _caching(self) -> Caching:
        return Caching(
            planned=self.planned,
            label_values=self.spec.label_values,
            class_names=self.spec.class_names,
            first_step=self.checkpoints.latest_step(),
            skipped=self.skipped,
            skip_broken=self.skip_broken,
            log=self.log,
            console=self.console,
            clock=self.clock,
            stop=self.stop,
            warn=self.warn,
        )

    def _restore(self) -> tuple[TrainingStep, LoopState]:
        set_backend(self.plan.backend, self.device)
        network = build_network(
            self.plan.network,
            num_channels=len(self.spec.channels),
            num_classes=len(self.spec.labels),
            seed=self.plan.seed,
        )
        training = TrainingStep(
            network,
            build_loss(self.plan.loss),
            optimizer=self.plan.optimizer,
            precision=self.plan.precision,
            device=self.device,
            seed=self.plan.seed,
            warn=self.warn,
        )
        latest = self.checkpoints.load_latest(like={"loop": LoopState().to_plain(), "training": training.state()})
        if latest is None:
            return training, LoopState()
        saved, path, damaged = latest
        for file in damaged:
            self.warn(f"train: the checkpoint {file} cannot be used and is removed; resuming from {path.name}")
            # If it stayed, it would count among the newest and push good ones out.
            file.unlink(missing_ok=True)
        training.load_state(saved["training"])
        return training, LoopState(**saved["loop"])

    def _budget(
        self, training: TrainingStep, state: LoopState, final: FinalValidation, *, load_s: float | None
    ) -> Budget:
        train = self.plan.train
        if train.time_budget_s == 0.0:
            return StepBudget(train.steps)
        with self._stage("rehearse validation"):
            final.rehearse(training.averaged, load_s=load_s)
        allotted = self._allotted(state, final)
        if planned := final.differences():
            self.warn(
                f"train: a budget of {duration_text(train.time_budget_s)} is too short for the full final validation; "
                f"planned for now: {planned}. For a full validation later: {full_command(self.folder.path)}"
            )
        if allotted.is_short:
            self.warn(_short_budget_text(allotted, train.time_budget_s, final.num_cases))
        return TimeBudget(self.log.elapsed_s, begin_s=allotted.begin_s, end_s=allotted.end_s, max_steps=train.steps)

    def _allotted(self, state: LoopState, final: FinalValidation) -> Allotment:
        """How the time budget is divided, based on what is now known about the final validation."""
        train = self.plan.train
        # A resumed run has trained already; its share of the schedule must not start over.
        trained_s = state.trained_s + state.validated_s
        now_s, report_s = self.log.elapsed_s(), self._report_s
        available = left_for_validation(
            train.time_budget_s,
            now_s=now_s,
            stepped_s=state.trained_s,
            report_s=report_s,
            validation_share=train.validation_share,
        )
        return allot(
            train.time_budget_s,
            now_s=now_s,
            trained_s=trained_s,
            validate_s=final.reserve_s(available),
            report_s=report_s,
            may_end_early=train.steps > 0 or train.target_dice > 0.0,
        )

    def _train(
        self, training: TrainingStep, state: LoopState, budget: Budget, caches: FilledCases, final: FinalValidation
    ) -> bool:
        def note(seconds: float) -> None:
            final.was_measured(seconds)
            if isinstance(budget, TimeBudget):
                budget.end_at(self._allotted(state, final).end_s)
            picture.draw()

        training.network.train()
        feed = Feed(
            caches.training,
            self.plan.data,
            seed=self.plan.seed,
            device=self.device,
            start_step=state.step,
            progress=budget.progress_ahead,
            # Runs that end after a number of steps train the same weights every time.
            waits_for_loops=not (self.plan.train.time_budget_s or self.plan.train.target_dice),
        )
        with (
            self._stage("train"),
            feed,
            ProgressPicture(
                read_run(self.folder.path), self.folder.progress_picture, log=self.log, clock=self.clock, warn=self.warn
            ) as picture,
            TerminalProgress(self.console, self.clock, target_dice=self.plan.train.target_dice) as progress,
        ):
            loop = Loop(
                plan=self.plan,
                training=training,
                feed=feed,
                budget=budget,
                validate=lambda: validate_prepared(
                    training.averaged,
                    caches.on_the_way,
                    final.spec_on_the_way,
                    device=self.device,
                    on_windows=self.stop.check,
                ),
                checkpoints=self.checkpoints,
                log=self.log,
                progress=progress,
                clock=self.clock,
                should_stop=self.stop.__bool__,
                on_validated=note,
                first_validation_s=final.seconds_on_the_way,
                state=state,
            )
            return loop.run()

    def _score(self, training: TrainingStep, final: FinalValidation) -> list[CaseScore]:
        pictures = SlicePictures()
        left_s = self.plan.train.time_budget_s - self._report_s - self.log.elapsed_s()
        final.size_to(max(0.0, left_s))
        if cheaper := final.differences():
            self.warn(
                "train: the final validation was shortened to keep the time budget: "
                f"{cheaper}; `voxelocity predict` and a full validation may give other scores: "
                f"{full_command(self.folder.path)}"
            )
        until_s = self.clock() + left_s if self.plan.train.time_budget_s else math.inf
        with self._stage("validate"):
            scores = final.score(training.averaged, until_s=until_s, pictures=pictures, warn=self.warn)
        with self._stage("report"):
            self.folder.write_scores([asdict(score) for score in scores])
            pictures.save(self.folder.slices)
        return scores

    def _finish(self, scores: list[CaseScore], state: LoopState) -> RunResult:
        summary = summarize(scores)
        # The event ends the run, so everything that `voxelocity report` cannot make again is written before it.
        with self._stage("report"):
            facts = read_run(self.folder.path)
            write_metrics(facts, self.folder.metrics)
            render_progress_png(facts, self.folder.progress_picture)
        seconds = self.log.elapsed_s()
        self.log.write(
            "run_finished",
            seconds=seconds,
            step=state.step,
            mean_dice=summary.mean_dice,
            num_images=state.num_images,
            images_per_s=state.num_images / max(state.trained_s, 1e-9),
            wait_share=state.waited_s / max(state.trained_s, 1e-9),
            budget_s=self.plan.train.time_budget_s or None,
            load_average=os.getloadavg()[_LOAD_OF_15_MINUTES],
            peak_host_bytes=peak_host_bytes(),
            peak_device_bytes=peak_device_bytes(),
        )
        # The stage is logged when it ends, so this page does not count its own rendering; a page made later does.
        with self._stage("report"):
            render_page(read_run(self.folder.path), self.folder.report)
        return RunResult(
            folder=self.folder.path,
            mean_dice=summary.mean_dice,
            scores=tuple(scores),
            step=state.step,
            seconds=self.log.elapsed_s(),
            target_reached_s=_reached_s(facts, self.plan.train.target_dice),
        )

    def _interrupted(self, state: LoopState | None) -> InterruptedRunError:
        number = self.stop.signal_number or 2
        step = self.checkpoints.latest_step() if state is None else state.step
        self.log.write("interrupted", signal=number)
        begin = f"train: stopped by {'Ctrl-C' if number == 2 else 'SIGTERM'}"
        if step == 0:
            text = (
                f"{begin} before the first training step, so there was nothing to save and nothing is lost; "
                f"the same command with --resume trains the run in {self.folder.path}"
            )
        else:
            text = (
                f"{begin} at step {step}; everything is saved in {self.folder.path}; "
                "the same command with --resume continues from there"
            )
        return InterruptedRunError(text, signal_number=number)

    def _stage(self, name: str) -> Stage:
        return Stage(name, self.log, self.clock)

    def warn(self, text: str) -> None:
        """Logs a warning and shows it."""
        text = hide_credentials(text)
        self.log.write("warning", text=text)
        self.console.print(f"warning: {text}", style="yellow", highlight=False, soft_wrap=True)


def _short_budget_text(allotted: Allotment, budget_s: float, num_cases: int) -> str:
    fewest_s, most_s = allotted.late_s
    late = f"will end at least {duration_text(fewest_s)} and" if fewest_s > 0.0 else "may end"
    return (
        f"train: a budget of {duration_text(budget_s)} is short: {duration_text(allotted.begin_s)} went into what "
        f"comes before training, and validating up to {num_cases} cases takes about "
        f"{duration_text(allotted.validate_s)} (estimated from a few windows); the run trains for at most a twentieth "
        "of the budget and "
        f"{late} up to {duration_text(most_s)} late: the model's files and the report take up to "
        f"{duration_text(allotted.report_s)}"
    )


def _slowdown(wall_s: float, cpu_s: float) -> float:
    """How many times as long work in one thread takes here as on an idle machine."""
    return min(_MOST_SLOWDOWN, max(1.0, wall_s / max(cpu_s, 1e-9))) if cpu_s > 0.0 else 1.0


def _reached_s(facts: RunFacts, target_dice: float) -> float | None:
    if target_dice == 0.0:
        return None
    return next((v.time_s for v in facts.validations if v.mean_dice >= target_dice), None)
