"""The main job in order: open the folder, fill the cache, train, validate, write the model and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from voxelocity.core.cases import Split
from voxelocity.core.errors import DatasetError, InterruptedRunError
from voxelocity.core.records import CaseScore
from voxelocity.core.volume import VolumeRef
from voxelocity.data.pipeline import Feed, PreparedCases, RankDraws
from voxelocity.infer import ModelSpec, Predictor, save_model
from voxelocity.metrics import summarize
from voxelocity.observe import Clock, EventLog, peak_device_bytes, peak_host_bytes
from voxelocity.planning import Plan, Planned
from voxelocity.report import RunFacts, duration_text, read_run, render_page, render_progress_png
from voxelocity.step import TrainingStep, build_loss, build_network, set_backend
from voxelocity.training.budget import Allotment, Budget, StepBudget, TimeBudget, allot
from voxelocity.training.cache_progress import CacheProgress
from voxelocity.training.checkpoint import Checkpoints
from voxelocity.training.loop import Loop, LoopState
from voxelocity.training.metrics_table import write_metrics
from voxelocity.training.pictures import SlicePictures
from voxelocity.training.progress import TerminalProgress
from voxelocity.training.run_folder import RunFolder
from voxelocity.training.stage import Stage
from voxelocity.training.stop import StopRequest
from voxelocity.training.validate import NUM_REHEARSED, rehearse, score_cases, validate_prepared

# Rendering the page, the picture and the model's files; measured at 1.5 to 3 s on two cores.
_REPORT_S = 3.0


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a finished run came to.

    Attributes:
        folder: where everything lies.
        mean_dice: mean foreground Dice of the final validation, on each scan's own grid; None where no case has any
            foreground in truth or prediction.
        scores: one per validation case.
        step: optimiser steps done.
        seconds: of the whole run, all sessions.
        target_reached_s: seconds until a validation on the way reached the target; None where none did or none was set.
    """

    folder: Path
    mean_dice: float | None
    scores: tuple[CaseScore, ...]
    step: int
    seconds: float
    target_reached_s: float | None


@dataclass(kw_only=True)
class Run:
    """One training run in its folder, from the plan to the report. Use `train` from `voxelocity.training`."""

    planned: Planned
    folder: RunFolder
    log: EventLog
    console: Console
    clock: Clock
    stop: StopRequest

    def __post_init__(self) -> None:
        self.plan: Plan = self.planned.plan
        self.device = self.planned.machine.torch_device
        self.split: Split = self.planned.cases.split(self.planned.fold)
        self.num_threads = self.planned.machine.num_cpus
        self.spec = ModelSpec(
            network=self.plan.network,
            channels=self.planned.cases.channels,
            labels=dict(self.planned.cases.labels),
            prepare=self.plan.data.prepare,
            window=self.plan.window,
            # Windows are predicted by the network as it is: compiled, it would have to be made for each batch of them.
            precision=self.plan.precision.model_copy(update={"compile": "none"}),
            trained_on=self.planned.fingerprint.trained_on(),
        )
        self.checkpoints = Checkpoints(self.folder.checkpoints, keep=self.plan.train.keep_checkpoints)

    def execute(self) -> RunResult:
        """Runs to the end.

        Raises:
            InterruptedRunError: a signal asked it to stop; the state is saved.
            NonFiniteLossError: training broke; the last checkpoint is from before.
            ScanError: a case cannot be used.
            DatasetError: no label holds anything but background.
            DeviceMemoryError: a step on a single patch does not fit into memory.
        """
        training_cases, validation_cases = self._fill_caches()
        with self._stage("network"):
            training, state = self._restore()
        predictor = Predictor(training.averaged, self.spec, device=self.device)
        budget = self._budget(predictor, state)
        finished = self._train(training, state, budget, training_cases, validation_cases)
        if not finished:
            raise self._interrupted(state)
        with self._stage("report"):
            trained = self.spec.model_copy(update={"num_steps": state.step})
            save_model(self.folder.path, training.averaged, trained)
        scores = self._score(Predictor(training.averaged, self.spec, device=self.device))
        return self._finish(scores, state)

    def _fill_caches(self) -> tuple[PreparedCases, PreparedCases]:
        """Prepared training cases, and those of the validation cases that are judged on the way."""
        refs = self.split.training + (self.split.validation if self.split.held_out else ())
        both, count = self._prepared(refs), len(self.split.training)
        training_cases = both.part(range(count))
        first = self._needed_first(both, training_cases)
        with CacheProgress(self.console, self.plan.data.cache.tier, len(first)) as progress, self._stage("cache"):
            if len(first):
                facts = first.fill(
                    num_threads=self.num_threads, on_case=progress.advance, should_stop=self.stop.__bool__
                )
                progress.finish(facts)
        if self.stop:
            raise self._interrupted(None)
        if len(first) and facts.num_with_foreground == 0:
            self._tell_of_background(len(first), len(refs))
        judged = range(count, len(refs)) if self.split.held_out else range(count)
        return training_cases, both.part(self._judged_on_the_way(judged))

    def _needed_first(self, both: PreparedCases, training_cases: PreparedCases) -> PreparedCases:
        """What fills the cache before the training begins: all cases, the window of one that rotates, or none."""
        if self.plan.data.cache.holds_every_case:
            return both
        if self.plan.data.cache.tier == "none":
            return both.part(())
        draws = RankDraws(training_cases, self.plan.data, seed=self.plan.seed)
        return training_cases.part(draws.cases_from(self.checkpoints.latest_step()))

    def _tell_of_background(self, num_filled: int, num_cases: int) -> None:
        where = f"of {self.planned.cases.root}"
        if num_filled == num_cases:
            raise DatasetError(
                f"train: none of the {num_cases} labels {where} holds anything but background, so nothing can be "
                "learnt; are these the right label files?"
            )
        self.warn(
            f"train: none of the first {num_filled} labels {where} that the rotating cache holds has anything but "
            "background, so nothing is learnt before others replace them; are these the right label files?"
        )

    def _judged_on_the_way(self, indices: Sequence[int]) -> Sequence[int]:
        """Some of the cases, evenly chosen, so that validations on the way stay quick; always the same ones."""
        most = self.plan.train.validation_cases or len(indices)
        if len(indices) <= most:
            return indices
        return [indices[i * len(indices) // most] for i in range(most)]

    def _prepared(self, refs: tuple[VolumeRef, ...]) -> PreparedCases:
        return PreparedCases(
            refs,
            label_values=self.spec.label_values,
            class_names=self.spec.class_names,
            prepare=self.plan.data.prepare,
            cache=self.plan.data.cache,
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
            self.warn(f"train: the checkpoint {file} cannot be used and is removed; going on from {path.name}")
            # Left there, it would count among the newest and push good ones out.
            file.unlink(missing_ok=True)
        training.load_state(saved["training"])
        return training, LoopState(**saved["loop"])

    def _budget(self, predictor: Predictor, state: LoopState) -> Budget:
        train = self.plan.train
        if train.time_budget_s == 0.0:
            return StepBudget(train.steps)
        refs = self.split.validation
        with self._stage("rehearse validation"):
            validate_s = rehearse(predictor, refs, self.spec, num_threads=self.num_threads)
        allotted = allot(
            train.time_budget_s,
            now_s=self.log.elapsed_s(),
            # A resumed run has trained already; its share of the schedule must not start over.
            trained_s=state.trained_s + state.validated_s,
            validate_s=validate_s,
            report_s=_REPORT_S,
            may_end_early=train.steps > 0 or train.target_dice > 0.0,
        )
        if allotted.is_short:
            self.warn(_short_budget_text(allotted, train.time_budget_s, len(refs)))
        return TimeBudget(self.log.elapsed_s, begin_s=allotted.begin_s, end_s=allotted.end_s, max_steps=train.steps)

    def _train(
        self,
        training: TrainingStep,
        state: LoopState,
        budget: Budget,
        training_cases: PreparedCases,
        validation_cases: PreparedCases,
    ) -> bool:
        training.network.train()
        feed = Feed(training_cases, self.plan.data, seed=self.plan.seed, device=self.device, start_step=state.step)
        with (
            self._stage("train"),
            feed,
            TerminalProgress(self.console, self.clock, target_dice=self.plan.train.target_dice) as progress,
        ):
            loop = Loop(
                plan=self.plan,
                training=training,
                feed=feed,
                budget=budget,
                validate=lambda: validate_prepared(training.averaged, validation_cases, self.spec, device=self.device),
                checkpoints=self.checkpoints,
                log=self.log,
                progress=progress,
                clock=self.clock,
                should_stop=self.stop.__bool__,
                on_validated=self._draw_progress,
                state=state,
            )
            return loop.run()

    def _draw_progress(self, step: int) -> None:
        with self._stage("report"):
            render_progress_png(read_run(self.folder.path), self.folder.progress_picture)

    def _score(self, predictor: Predictor) -> list[CaseScore]:
        scores, pictures = [], SlicePictures()
        with self._stage("validate"):
            for score, scan, prediction in score_cases(
                predictor, self.split.validation, self.spec, num_threads=self.num_threads
            ):
                scores.append(score)
                pictures.add(score, scan, prediction)
                if self.stop:
                    raise self._interrupted(None)
        with self._stage("report"):
            self.folder.write_scores([asdict(score) for score in scores])
            pictures.save(self.folder.slices)
        return scores

    def _finish(self, scores: list[CaseScore], state: LoopState) -> RunResult:
        summary = summarize(scores)
        # The event ends the run, so all that `voxelocity report` cannot make again stands before it.
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
            peak_host_bytes=peak_host_bytes(),
            peak_device_bytes=peak_device_bytes(),
        )
        # Written when it is over, so the page that is made here does not count its own making; one made later does.
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
                "the same command with --resume goes on from there"
            )
        return InterruptedRunError(text, signal_number=number)

    def _stage(self, name: str) -> Stage:
        return Stage(name, self.log, self.clock)

    def warn(self, text: str) -> None:
        """Writes a warning down and shows it."""
        self.log.write("warning", text=text)
        self.console.print(f"warning: {text}", style="yellow", highlight=False, soft_wrap=True)


def _short_budget_text(allotted: Allotment, budget_s: float, num_cases: int) -> str:
    fewest_s, most_s = allotted.late_s
    late = f"will end at least {duration_text(fewest_s)} and" if fewest_s > 0.0 else "may end"
    return (
        f"train: a budget of {duration_text(budget_s)} is short: {duration_text(allotted.begin_s)} went into what "
        f"comes before training, and validating {num_cases} cases takes about {duration_text(allotted.validate_s)} "
        f"(measured on {min(num_cases, NUM_REHEARSED)} of them); the run trains for at most a fifth of the budget and "
        f"{late} up to {duration_text(most_s)} late: the model's files and the report take up to "
        f"{duration_text(allotted.report_s)}"
    )


def _reached_s(facts: RunFacts, target_dice: float) -> float | None:
    if target_dice == 0.0:
        return None
    return next((v.time_s for v in facts.validations if v.mean_dice >= target_dice), None)
