"""The training loop: batches in, a trained network out, facts logged between steps."""

from __future__ import annotations

import math
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from voxelocity.data.pipeline import Feed
from voxelocity.report import read_run
from voxelocity.step import TrainingStep, learning_rate_at
from voxelocity.training.balancing import Balance
from voxelocity.training.budget import Budget, first_dice_is_due
from voxelocity.training.checkpoint import Checkpoints
from voxelocity.training.progress import EpochPhases, ProgressPicture, TerminalProgress
from voxelocity.training.readings import AskedLosses, RunAhead, StepParts, Window
from voxelocity.training.session import Session, StopAskedError
from voxelocity.training.sharding import FeedOfLeader
from voxelocity.training.validation import Validation
from voxelocity_observe.core.errors import NonFiniteLossError
from voxelocity_observe.spans import SpanRecorder, device_clock, phase, span

# Losses are logged this often, and at least every this many steps.
_WINDOW_S, _WINDOW_STEPS = 1.0, 200
# A rank that takes this many times as long as the longest of this many last steps hangs.
_TIMES_A_STEP, _NUM_KNOWN_STEPS = 20.0, 20
# What is not a step has a longer limit: a large case is scored, a large file is written.
_TIMES_SILENCE = 4.0


@dataclass(kw_only=True)
class LoopState:
    """What must be saved besides the training step to continue exactly."""

    step: int = 0
    trained_s: float = 0.0
    validated_s: float = 0.0
    validated_at_s: float = 0.0
    validated_step: int = 0
    last_validation_s: float = 0.0
    best_dice: float = -1.0
    num_images: int = 0
    waited_s: float = 0.0

    def has_reached(self, target_dice: float) -> bool:
        """Whether an intermediate validation reached the target (0: none). A resumed run must not train past it."""
        return 0.0 < target_dice <= self.best_dice


class Loop:
    """One training, from its current state to the end of its budget. Usable once."""

    def __init__(
        self,
        session: Session,
        training: TrainingStep,
        feed: Feed | FeedOfLeader,
        balance: Balance,
        budget: Budget,
        validation: Validation,
        checkpoints: Checkpoints,
        state: LoopState,
    ) -> None:
        self.session, self.plan, self.clock = session, session.plan, session.clock
        self.training, self.feed, self.balance, self.budget = training, feed, balance, budget
        self.validation, self.checkpoints, self.state = validation, checkpoints, state
        self._epochs = EpochPhases()
        self._bar = TerminalProgress(session.console, session.clock, target_dice=session.plan.train.target_dice)
        self._saved_step, self._saved_at_s, self._longest_save_s = state.step, 0.0, 0.0
        # Later ones replace the forecast of the rehearsal.
        self._first_validation_s = validation.intermediate_s
        self._step_s: deque[float] = deque(maxlen=_NUM_KNOWN_STEPS)
        self._epoch_balanced = feed.epoch_of(state.step)
        self._ahead = RunAhead(training.device)
        # A GPU would be idle while the host reads. Ranks wait for each other anyway.
        self._reads_late = training.device.type == "cuda" and session.world.is_alone
        self._unread: Window | None = None

    def run(self) -> bool:
        """Trains until the budget is spent or the target is reached; returns False if it was asked to stop, else True.

        Raises:
            NonFiniteLossError: the loss or a weight became NaN or infinite. The last checkpoint is from before that.
        """
        with (
            self._open_picture() as self._picture,
            self._bar,
            SpanRecorder(device=device_clock(self.training.device), clock=self.clock) as recorder,
        ):
            self._parts = StepParts(recorder)
            try:
                return self._run()
            finally:
                self._epochs.end()

    def _open_picture(self) -> AbstractContextManager[ProgressPicture | None]:
        session = self.session
        if not session.world.is_leader:
            return nullcontext()
        facts, path = read_run(session.folder.path), session.folder.progress_picture
        return ProgressPicture(facts, path, log=session.log, clock=self.clock, warn=session.warn)

    def _run(self) -> bool:
        if self.state.has_reached(self.plan.train.target_dice):
            # The run was killed between that validation and its end; its last state is saved.
            return True
        self._saved_at_s = self.clock()
        window = Window(start_s=self._saved_at_s)
        while True:
            progress, is_full, stop = self._agree(window)
            done = progress >= 1.0
            if window.losses and (done or stop or is_full):
                window = Window(start_s=self._close(window, progress))
            if done or stop:
                self._save()
                return not stop
            if not window.losses:
                is_due, saves_before, saves = self._agree_on_due()
                if is_due:
                    if saves_before:
                        # A kill during a long validation must not lose the steps before it.
                        self._save()
                    try:
                        self._validate()
                    except StopAskedError:
                        self._save()
                        return False
                    if self.state.has_reached(self.plan.train.target_dice):
                        self._save()
                        return True
                    window.start_s = self.clock()
                if saves:
                    self._save()
                    window.start_s = self._saved_at_s
                self._rebalance()
            self._one_step(window, progress)

    def _rebalance(self) -> None:
        """After an epoch, lets slower ranks take fewer patches. Called between two windows of steps."""
        epoch = self.feed.epoch_of(self.state.step)
        # A cache in parts needs equal shares.
        is_fixed = not self.balance.is_measured or self.plan.data.cache.num_parts > 1
        if is_fixed or epoch == self._epoch_balanced:
            return
        self._epoch_balanced = epoch
        if self.balance.after_epoch():
            self.feed.share_soon(self.state.step, self.balance.shares)

    def _agree(self, window: Window) -> tuple[float, bool, bool]:
        """The progress, whether the window is full, and whether any rank was asked to stop: the same on all ranks."""
        progress = self.budget.progress(self.state.step)
        is_full = bool(window.losses) and self._is_full(window)
        with self._limit_waiting():
            (progress, full), stop = self.session.world.agree([progress, float(is_full)], flag=bool(self.session.stop))
        return progress, bool(full), stop

    def _agree_on_due(self) -> tuple[bool, bool, bool]:
        """Whether a validation is due, whether the state is saved before it, and after it: the same on all ranks."""
        is_due = self._validation_is_due()
        saves_before = is_due and self.state.step != self._saved_step and self._expected_validation_s() >= _WINDOW_S
        saves = not saves_before and self._save_is_due()
        (due, before, after), _ = self.session.world.agree([float(is_due), float(saves_before), float(saves)])
        return bool(due), bool(before), bool(after)

    def _save_is_due(self) -> bool:
        every = self.plan.train.checkpoint_every_epochs
        epoch, saved = (self.feed.epoch_of(step) for step in (self.state.step, self._saved_step))
        is_late = self.clock() - self._saved_at_s >= self.plan.train.checkpoint_every_s
        return is_late or (every > 0 and epoch // every > saved // every)

    def _one_step(self, window: Window, progress: float) -> None:
        self._epochs.at(self.feed.epoch_of(self.state.step))
        if self.training.frozen.turn(progress < self.plan.schedule.frozen_share):
            self.training.release_graphs()
        window.learning_rate = learning_rate_at(
            progress, peak=self.plan.optimizer.learning_rate, config=self.plan.schedule
        )
        start_s = self.clock()
        with span("step"), self._limit_waiting():
            with span("wait", color="red"):
                batch = next(self.feed)
            assert batch.step == self.state.step, "the feed and the loop count the same steps"
            self.session.world.advance()
            window.losses.append(self.training(batch, window.learning_rate))
        self._ahead.wait_for_earlier()
        self._step_s.append(self.clock() - start_s)
        window.case_ids.append(batch.case_ids)
        window.num_images += len(batch.image) if self.session.world.is_alone else self.plan.data.batch_size
        self.state.step += 1

    def _limit_waiting(self, usual_s: float | None = None) -> AbstractContextManager[None]:
        """Within the block, a rank that takes much longer than the last steps, or than this, counts as hanging."""
        world, silence_s = self.session.world, self.plan.parallel.silence_s
        if usual_s is not None:
            return world.limit_waiting(max(_TIMES_SILENCE * silence_s, _TIMES_A_STEP * usual_s), idle_limit_s=silence_s)
        # The first steps compile, and wait for cases.
        is_known = len(self._step_s) == _NUM_KNOWN_STEPS
        return world.limit_waiting(max(silence_s, _TIMES_A_STEP * max(self._step_s))) if is_known else nullcontext()

    def _is_full(self, window: Window) -> bool:
        if self.clock() - window.start_s >= _WINDOW_S or len(window.losses) >= _WINDOW_STEPS:
            return True
        # What was requested at a certain step must be done at that step, however quick the steps are.
        train = self.plan.train
        is_due = train.validate_every_steps > 0 and self._validation_is_due()
        return is_due or (train.checkpoint_every_epochs > 0 and self._save_is_due())

    def _close(self, window: Window, progress: float) -> float:
        """Ends a window, and asks for its losses. With a GPU they are read when the next one ends, without a wait.

        Returns:
            The time at which the window ended and the next one begins.
        """
        state = self.state
        window.stop_step, window.progress = state.step, progress
        if self._reads_late:
            window.asked = AskedLosses(window.losses, self.training.finite_flag())
        else:
            self._check_finite(window)
        self._take_parts(window)
        self.balance.count(window.parts, len(window.losses))
        window.stop_s = self.clock()
        state.trained_s += window.seconds
        state.num_images += window.num_images
        before, self._unread = self._unread, window
        if before is not None:
            self._check_finite(before)
            self._report(before)
        if not self._reads_late:
            self._read_all()
        return window.stop_s

    def _read_all(self) -> None:
        """Waits for all steps and reads their losses: nothing may be saved or judged before."""
        window, self._unread = self._unread, None
        if window is None:
            return
        if self._reads_late:
            self._check_finite(window)
            self._take_parts(window)
        self._report(window)

    def _take_parts(self, window: Window) -> None:
        """Adds the times of steps that the device has passed since the last call."""
        parts = self._parts.take()
        self.state.waited_s += parts.get("wait", 0.0)
        for part, seconds in parts.items():
            window.parts[part] = window.parts.get(part, 0.0) + seconds

    def _report(self, window: Window) -> None:
        """Logs a window whose losses are finite."""
        losses = window.losses_read
        seconds, wait_s = window.seconds, window.parts.get("wait", 0.0)
        loss = sum(losses) / len(losses)
        self.session.log.write(
            "steps",
            step=window.stop_step,
            epoch=self.feed.epoch_of(window.stop_step - 1),
            loss=loss,
            learning_rate=window.learning_rate,
            num_steps=len(losses),
            num_images=window.num_images,
            seconds=seconds,
            wait_s=wait_s,
            parts=window.parts,
        )
        state, share = self.state, max(window.progress, 1e-6)
        self._bar.show_steps(
            step=window.stop_step,
            loss=loss,
            images_per_s=window.num_images / max(seconds, 1e-9),
            wait_share=wait_s / max(seconds, 1e-9),
            progress=window.progress,
            remaining_s=(state.trained_s + state.validated_s) / share * (1.0 - share),
        )

    def _check_finite(self, window: Window) -> None:
        """Reads the losses of a closed window."""
        if window.asked is None:
            window.losses_read = torch.stack(window.losses).float().cpu().tolist()
        else:
            window.losses_read, is_finite = window.asked.read()
        first_step = window.stop_step - len(window.losses)
        for step, (loss, case_ids) in enumerate(
            zip(window.losses_read, window.case_ids, strict=True), start=first_step
        ):
            if not math.isfinite(loss):
                raise self._not_finite(f"the loss became {loss} at step {step} on the cases", case_ids, step)
        # An error that no loss has shown yet: a gradient that broke the weights in the last step.
        if window.asked is None:
            is_finite = self.training.is_finite()
        if not is_finite:
            step = window.stop_step - 1
            found = f"weights became NaN or infinite by step {step}, the last cases were"
            raise self._not_finite(found, window.case_ids[-1], step)

    def _not_finite(self, found: str, case_ids: tuple[str, ...], step: int) -> NonFiniteLossError:
        # All ranks have the same loss and the same weights, so all of them come here.
        case_ids = tuple(case_id for ids in self.session.world.gather(case_ids) for case_id in ids)
        return NonFiniteLossError(
            f"train: {found} {', '.join(sorted(set(case_ids)))}; check these scans, or lower optimizer.learning_rate "
            f"(now {self.plan.optimizer.learning_rate:g})",
            case_ids=case_ids,
            step=step,
        )

    def _validation_is_due(self) -> bool:
        train = self.plan.train
        if self.state.step == 0:
            return False
        if train.validate_every_steps:
            every = train.validate_every_steps
            return self.state.step // every > self.state.validated_step // every
        if train.validation_share == 0.0:
            return False
        # Training time pays for each validation: it may take its share of the time since the last one.
        expected_s = self._expected_validation_s()
        is_paid = self.state.trained_s - self.state.validated_at_s >= expected_s / train.validation_share
        if not is_paid and not (self.state.validated_step or train.target_dice):
            progress = self.budget.progress_ahead(self.state.step)
            is_paid = first_dice_is_due(self.state.trained_s, progress=progress, expected_s=expected_s)
        return is_paid and expected_s <= self.budget.remaining_s()

    def _expected_validation_s(self) -> float:
        return self.state.last_validation_s or self._first_validation_s

    def _validate(self) -> None:
        """Validates, logs the facts, and moves the end of a time budget by what is now known."""
        self._read_all()
        self.training.make_room()
        if not (self.state.validated_step or self.plan.train.time_budget_s):
            self.validation.fit_intermediate(
                self.state.trained_s / max(self.budget.progress_ahead(self.state.step), 1e-6)
            )
        start = self.clock()
        with phase("validation", color="gold"), self._limit_waiting(self._expected_validation_s()):
            mean_dice, dice = self.validation.intermediate(self.training.averaged())
        seconds = self.clock() - start
        state = self.state
        is_best = math.isfinite(mean_dice) and mean_dice > state.best_dice
        state.best_dice = mean_dice if is_best else state.best_dice
        state.validated_s += seconds
        state.last_validation_s = seconds
        state.validated_at_s = state.trained_s
        state.validated_step = state.step
        self.session.log.write(
            "validation", step=state.step, seconds=seconds, mean_dice=mean_dice, dice=dice, is_best=is_best,
            num_cases=self.validation.num_intermediate,
        )  # fmt: skip
        num_absent = sum(math.isnan(value) for value in dice.values())
        self._bar.show_validation(
            state.step, mean_dice, is_best, num_cases=self.validation.num_intermediate, num_absent=num_absent
        )
        self.validation.take_duration(seconds)
        if self.plan.train.time_budget_s:
            self.budget.end_at(
                self.session.world.run_on_leader(
                    lambda: self.validation.allot(stepped_s=state.trained_s, validated_s=state.validated_s).end_s
                )
            )
        if self._picture is not None:
            self._picture.draw()

    def _save(self) -> None:
        self._read_all()
        start = self.clock()
        with phase("checkpoint", color="grey"), self._limit_waiting(self._longest_save_s):
            # All ranks put it together, but only the leader may write.
            state = {"loop": dict(vars(self.state)), "training": self.training.state()}
            path = self.session.world.run_on_leader(lambda: self.checkpoints.save(self.state.step, state))
        self._saved_step, seconds = self.state.step, self.clock() - start
        self._longest_save_s = max(seconds, self._longest_save_s)
        self.session.log.write(
            "checkpoint", step=self.state.step, path=f"{path.parent.name}/{path.name}", seconds=seconds
        )
        self._saved_at_s = self.clock()
