"""The training loop: batches in, a trained network out, facts logged on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from voxelocity.core.errors import NonFiniteLossError
from voxelocity.data.pipeline import Feed
from voxelocity.observe import Clock, EventLog, SpanRecorder, device_clock, phase, span
from voxelocity.planning import Plan
from voxelocity.step import TrainingStep, learning_rate_at
from voxelocity.training.budget import Budget
from voxelocity.training.checkpoint import Checkpoints
from voxelocity.training.parts import EpochPhases, part_seconds
from voxelocity.training.stop import StopAskedError


class Progress(Protocol):
    """Shows the user how the training is going."""

    def update(self, window: LogInterval, *, progress: float, remaining_s: float) -> None: ...

    def validated(self, step: int, mean_dice: float, is_best: bool, *, num_absent: int = 0) -> None: ...


@dataclass(frozen=True, kw_only=True)
class LogInterval:
    """What the last few steps did, summed.

    Attributes:
        seconds: from the end of the previous window, or of what came between, until the losses are read.
        parts: how they divide among the parts of the step; see `part_seconds`.
    """

    step: int
    epoch: int
    loss: float
    learning_rate: float
    num_steps: int
    num_images: int
    seconds: float
    parts: Mapping[str, float]

    @property
    def wait_s(self) -> float:
        """The part of `seconds` in which the step waited for a batch."""
        return self.parts.get("wait", 0.0)


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

    def to_plain(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(kw_only=True)
class Loop:
    """One training, from its current state to the end of its budget.

    Attributes:
        validate: returns mean foreground Dice and Dice per class of the averaged network during training; NaN for a
            class in no case, which the mean leaves out. May raise `StopAskedError`.
        should_stop: checked between two steps; once true the state is saved and `run` returns.
        on_validated: called with the seconds of each intermediate validation once its facts are logged.
        first_validation_s: seconds that the first of them is expected to take.
    """

    plan: Plan
    training: TrainingStep
    feed: Feed
    budget: Budget
    validate: Callable[[], tuple[float, dict[str, float]]]
    checkpoints: Checkpoints
    log: EventLog
    progress: Progress
    clock: Clock
    should_stop: Callable[[], bool]
    on_validated: Callable[[float], None]
    first_validation_s: float = 1.0
    state: LoopState = field(default_factory=LoopState)
    _epochs: EpochPhases = field(default_factory=EpochPhases, init=False)
    _saved_step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._saved_step = self.state.step

    def run(self) -> bool:
        """Trains until the budget is spent or the target is reached; returns False if it was asked to stop, else True.

        Raises:
            NonFiniteLossError: the loss or a weight became NaN or infinite. The last checkpoint is from before that.
        """
        with SpanRecorder(device=device_clock(self.training.device), clock=self.clock) as recorder:
            try:
                return self._run(recorder)
            finally:
                self._epochs.end()

    def _run(self, recorder: SpanRecorder) -> bool:
        if self.state.has_reached(self.plan.train.target_dice):
            # The run was killed between that validation and its end; its last state is saved.
            return True
        pending = _Pending()
        window_start = saved_at = self.clock()
        while True:
            progress = self.budget.progress(self.state.step)
            done, stop = progress >= 1.0, self.should_stop()
            if pending.losses and (done or stop or self._window_is_full(pending, self.clock() - window_start)):
                window_start = self._close_window(pending, window_start, progress, recorder)
                pending = _Pending()
            if done or stop:
                self._save()
                return not stop
            if not pending.losses:
                if self._validation_is_due():
                    if self.state.step != self._saved_step and self._expected_validation_s() >= _WINDOW_S:
                        # A kill during a long validation must not lose the steps before it.
                        self._save()
                        saved_at = self.clock()
                    try:
                        is_reached = self._validate_now()
                    except StopAskedError:
                        self._save()
                        return False
                    if is_reached:
                        self._save()
                        return True
                    window_start = self.clock()
                if self.clock() - saved_at >= self.plan.train.checkpoint_every_s:
                    self._save()
                    saved_at = window_start = self.clock()
            self._one_step(pending, progress)

    def _one_step(self, pending: _Pending, progress: float) -> None:
        self._epochs.at(self.feed.epoch_of(self.state.step))
        pending.learning_rate = learning_rate_at(
            progress, peak=self.plan.optimizer.learning_rate, config=self.plan.schedule
        )
        with span("step"):
            with span("wait", color="red"):
                batch = next(self.feed)
            assert batch.step == self.state.step, "the feed and the loop count the same steps"
            pending.losses.append(self.training(batch, pending.learning_rate))
        pending.case_ids.append(batch.case_ids)
        pending.num_images += batch.image.shape[0]
        self.state.step += 1

    def _window_is_full(self, pending: _Pending, seconds: float) -> bool:
        if seconds >= _WINDOW_S or len(pending.losses) >= 200:
            return True
        # A validation requested at a certain step must run at that step, however quick the steps are.
        return self.plan.train.validate_every_steps > 0 and self._validation_is_due()

    def _close_window(self, pending: _Pending, start_s: float, progress: float, recorder: SpanRecorder) -> float:
        """Reads the losses of the last steps at once: the only place that waits for the device.

        Returns:
            The time at which the window ended and the next one begins.
        """
        losses = torch.stack(pending.losses).float().cpu().tolist()
        first_step = self.state.step - len(losses)
        for offset, (loss, case_ids) in enumerate(zip(losses, pending.case_ids, strict=True)):
            if not math.isfinite(loss):
                raise NonFiniteLossError(
                    f"train: the loss became {loss} at step {first_step + offset} on the cases "
                    f"{', '.join(sorted(set(case_ids)))}; look at these scans, or lower "
                    f"optimizer.learning_rate (now {self.plan.optimizer.learning_rate:g})",
                    case_ids=case_ids,
                    step=first_step + offset,
                )
        self._check_weights(pending)
        # The device has finished everything queued before the losses, so every span of these steps is complete.
        parts = part_seconds(recorder.take())
        end_s = self.clock()
        window = LogInterval(
            step=self.state.step,
            epoch=self.feed.epoch_of(self.state.step - 1),
            loss=sum(losses) / len(losses),
            learning_rate=pending.learning_rate,
            num_steps=len(losses),
            num_images=pending.num_images,
            seconds=end_s - start_s,
            parts=parts,
        )
        self.state.trained_s += window.seconds
        self.state.waited_s += window.wait_s
        self.state.num_images += window.num_images
        self.log.write(
            "steps",
            step=window.step,
            epoch=window.epoch,
            loss=window.loss,
            learning_rate=window.learning_rate,
            num_steps=window.num_steps,
            num_images=window.num_images,
            seconds=window.seconds,
            wait_s=window.wait_s,
            parts=parts,
        )
        share = max(progress, 1e-6)
        spent_s = self.state.trained_s + self.state.validated_s
        self.progress.update(window, progress=progress, remaining_s=spent_s / share * (1.0 - share))
        return end_s

    def _check_weights(self, pending: _Pending) -> None:
        """Finds an error that no loss has shown yet: a gradient that broke the weights in the last step."""
        norms = torch._foreach_norm([weight.detach() for weight in self.training.network.parameters()])
        if bool(torch.stack(norms).isfinite().all()):
            return
        step, case_ids = self.state.step - 1, pending.case_ids[-1]
        raise NonFiniteLossError(
            f"train: weights became NaN or infinite by step {step}, the last cases were "
            f"{', '.join(sorted(set(case_ids)))}; look at these scans, or lower "
            f"optimizer.learning_rate (now {self.plan.optimizer.learning_rate:g})",
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
        return is_paid and expected_s <= self.budget.remaining_s()

    def _expected_validation_s(self) -> float:
        return self.state.last_validation_s or self.first_validation_s

    def _validate_now(self) -> bool:
        """Validates, logs the facts, and returns whether the target is reached."""
        start = self.clock()
        with phase("validation", color="gold"):
            mean_dice, dice = self.validate()
        seconds = self.clock() - start
        state = self.state
        is_best = math.isfinite(mean_dice) and mean_dice > state.best_dice
        state.best_dice = mean_dice if is_best else state.best_dice
        state.validated_s += seconds
        state.last_validation_s = seconds
        state.validated_at_s = state.trained_s
        state.validated_step = state.step
        self.log.write("validation", step=state.step, seconds=seconds, mean_dice=mean_dice, dice=dice, is_best=is_best)
        num_absent = sum(math.isnan(value) for value in dice.values())
        self.progress.validated(state.step, mean_dice, is_best, num_absent=num_absent)
        self.on_validated(seconds)
        return state.has_reached(self.plan.train.target_dice)

    def _save(self) -> None:
        start = self.clock()
        with phase("checkpoint", color="grey"):
            path = self.checkpoints.save(
                self.state.step, {"loop": self.state.to_plain(), "training": self.training.state()}
            )
        self._saved_step = self.state.step
        self.log.write(
            "checkpoint", step=self.state.step, path=f"{path.parent.name}/{path.name}", seconds=self.clock() - start
        )


_WINDOW_S = 1.0


@dataclass(kw_only=True)
class _Pending:
    """Steps whose losses have not been read yet."""

    losses: list[torch.Tensor] = field(default_factory=list)
    case_ids: list[tuple[str, ...]] = field(default_factory=list)
    num_images: int = 0
    learning_rate: float = 0.0
