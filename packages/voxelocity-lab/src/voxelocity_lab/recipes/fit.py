"""The training that recipes share: a step on numbered batches, by steps or by the clock, saved and resumed exactly.

What is trained is a recipe's own: it brings the step, and a function that makes batch `n`. The folder is that of a run
of `voxelocity train`, with a record, events and checkpoints.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from voxelocity.core.batch import Batch
from voxelocity.core.config import Config
from voxelocity.core.learning import unlearned
from voxelocity.data.feed import OrderedPrefetch
from voxelocity.parallel import even_shares
from voxelocity.step import (
    BackendConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainingStep,
    backend_as_found,
    learning_rate_at,
    set_backend,
)
from voxelocity.training.balancing import measure_shares
from voxelocity.training.broken_step import explained
from voxelocity.training.budget import Budget
from voxelocity.training.checkpoint import Checkpoints
from voxelocity.training.progress import TerminalProgress
from voxelocity_lab.recipes.run import Run
from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.core.errors import ConfigError, InterruptedRunError, NonFiniteLossError
from voxelocity_observe.core.host import cpu_budget, peak_device_bytes, peak_host_bytes
from voxelocity_observe.core.quantities import count_text, duration_text
from voxelocity_observe.spans import span

_WINDOW_S = 2.0
_NUM_AHEAD = 4
# A thread that makes batches holds the interpreter no longer while the step asks for it; Python's default is 5 ms.
_SWITCH_S = 3e-4
# Between the checkpoints of short epochs.
_SHORTEST_SAVE_S = 5.0


class FitConfig(Config):
    """How long a recipe trains, and how its weights follow the gradients."""

    steps: int = Field(default=0, ge=0)
    """Optimizer steps; 0 for as many as the time budget allows."""
    time_budget_s: float = Field(default=0.0, ge=0.0)
    """Seconds for the whole command, what follows the training included; 0 for no limit."""
    batch_size: int = Field(gt=0)
    """Items of a batch, of all ranks together."""
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()
    checkpoint_every_s: float = Field(default=60.0, gt=0.0)
    """Seconds between two saved states; one is also saved at the end of each epoch, but at most every 5 seconds."""
    keep: int = Field(default=2, ge=1)
    """Checkpoints that stay on the disk."""
    backend: BackendConfig = BackendConfig()
    """Switches of a GPU's libraries while the steps are made, as `voxelocity train` sets them."""


@dataclass(kw_only=True)
class FitState:
    """Of a training, saved with it: steps done, and the seconds they took."""

    step: int = 0
    trained_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A training that came to its end.

    Attributes:
        step: optimizer steps done.
        trained_s: seconds they took.
        unlearned: why it is too short to be scored, in words; "" where it is not.
    """

    step: int
    trained_s: float
    unlearned: str

    def log_end(self, run: Run) -> None:
        """Marks the run as finished, once its model is written."""
        run.log.write(
            "run_finished", step=self.step, seconds=run.log.elapsed_s(), trained_s=self.trained_s,
            unlearned=self.unlearned, peak_host_bytes=peak_host_bytes(), peak_device_bytes=peak_device_bytes(),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FitJob:
    """What is trained, and on what.

    Attributes:
        step: the network in training, with the world of its run.
        make_batch: these items of batch `n`, a function of `n` alone, on the host. Called from several threads at once.
        config: of this training.
        num_items: of an epoch.
        num_threads: that make batches ahead.
        unit: what items are, for the line of progress.
        reserve_s: of the time budget, for what follows.
        spares_cores: whether a step on a CPU leaves a core to each thread that makes batches. The threads of a step
            wait for each other after each operation, thus for the one whose core makes a batch; but a core that makes
            batches quickly is then idle. On two cores, patches of slides train 1.4 times as fast so, and streamlines
            0.9 times (docs/log).
    """

    step: TrainingStep
    make_batch: Callable[[int, slice], Batch]
    config: FitConfig
    num_items: int
    num_threads: int
    unit: str
    reserve_s: float = 0.0
    spares_cores: bool = False


def fit(run: Run, job: FitJob) -> Fitted:
    """Trains to the end of the steps or of the time, and leaves the last state in a checkpoint of the run.

    Warns of a training that made too few steps to be scored.

    A run that is resumed continues from its last checkpoint. Ranks take equal shares of each batch; on unequal devices,
    shares by the time that each needs for an item.

    Raises:
        ConfigError: neither steps nor a time budget are given.
        InterruptedRunError: a stop was asked for; the state is saved.
        NonFiniteLossError: the loss became NaN or infinite. The last checkpoint is from before that.
    """
    if not job.config.steps and not job.config.time_budget_s:
        raise ConfigError("recipe: neither a number of steps nor a time budget is set; give --time-budget 10m")
    with _share_cores(job), backend_as_found(job.step.device):
        set_backend(job.config.backend, job.step.device)
        state = _Fit(run, job).train()
    short = unlearned(state.step, steps_of_a_pass=job.num_items / job.config.batch_size)
    if short:
        budget_s = job.config.time_budget_s
        spent = ""
        if budget_s and state.trained_s < 0.5 * budget_s:
            spent = f" Start-up and preparation took most of the time budget of {duration_text(budget_s)}."
        run.warn(
            f"recipe: the training in {run.folder.path} has no score: {short}.{spent} Train longer: give a longer "
            "--time-budget, or more fit.steps, with --overwrite"
        )
    elif run.world.is_leader:
        run.console.print(
            f"trained {count_text(state.step, 'step')} in {duration_text(state.trained_s)}, into {run.folder.path}",
            highlight=False,
            soft_wrap=True,
        )
    return Fitted(step=state.step, trained_s=state.trained_s, unlearned=short)


@contextmanager
def _share_cores(job: FitJob) -> Iterator[None]:
    """Within the block, a step on a CPU leaves the cores that the job spares, and threads switch quickly."""
    num_threads, switch_s = torch.get_num_threads(), sys.getswitchinterval()
    if job.spares_cores and job.step.device.type == "cpu":
        torch.set_num_threads(max(1, min(num_threads, cpu_budget() - job.num_threads)))
    sys.setswitchinterval(min(switch_s, _SWITCH_S))
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
        sys.setswitchinterval(switch_s)


def _own_share(run: Run, job: FitJob) -> slice:
    """The items of each batch that this rank makes."""
    world, device = run.world, job.step.device
    shares = even_shares(job.config.batch_size, world.place.size)
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else str(cpu_budget())
    if min(shares) > 0 and len(set(world.gather(kind))) > 1:
        item_shape = tuple(job.make_batch(0, slice(0, 1)).image.shape[1:])
        shares, _, reason = measure_shares(world, job.step, shares, item_shape, clock=run.clock)
        run.log.write("balance", shares=shares, reason=reason)
        if world.is_leader and reason:
            run.console.print(f"items of a batch by rank: {', '.join(map(str, shares))}, {reason}", highlight=False)
    start = sum(shares[: world.place.rank])
    return slice(start, start + shares[world.place.rank])


class _Fit:
    def __init__(self, run: Run, job: FitJob) -> None:
        config = job.config
        self._run, self._job, self._step, self._config = run, job, job.step, config
        self._share = _own_share(run, job)
        self._checkpoints = Checkpoints(run.folder.checkpoints, keep=config.keep)
        self._state = FitState()
        console = run.console if run.world.is_leader else PlainConsole(quiet=True)
        self._shown = TerminalProgress(console, run.clock, unit=job.unit)
        self._epoch_steps = max(1, job.num_items // config.batch_size)
        end_s = config.time_budget_s - job.reserve_s if config.time_budget_s else math.inf
        self._restore()
        begin_s = run.log.elapsed_s() - self._state.trained_s
        self._budget = Budget(run.log.elapsed_s, max_steps=config.steps, begin_s=begin_s, end_s=end_s)

    def _restore(self) -> None:
        # All ranks put the state together.
        like = self._like()
        found = self._run.world.run_on_leader(lambda: self._latest(like)) if self._run.is_resumed else None
        if found is not None:
            state, _, damaged = found
            for path in damaged:
                self._run.warn(f"recipe: the checkpoint {path} is damaged; the previous one is used")
            self._state = FitState(**state["loop"])
            self._step.load_state(state["training"])

    def _latest(self, like: Mapping[str, Any]) -> tuple[dict[str, Any], Path, list[Path]] | None:
        self._checkpoints.remove_abandoned()
        return self._checkpoints.load_latest(like=like)

    def train(self) -> FitState:
        run, state, clock = self._run, self._state, self._run.clock
        window: list[torch.Tensor] = []
        window_s, waited_s = clock(), 0.0
        self._saved_s = window_s
        self._saved_step = state.step
        copier, threads = _Copier(self._make, self._step.device), self._job.num_threads
        prefetch = OrderedPrefetch(copier, start=state.step, num_threads=threads, num_ahead=_NUM_AHEAD)
        with self._shown, prefetch as batches:
            while True:
                is_full, saves = clock() - window_s >= _WINDOW_S, self._save_is_due()
                # The leader's clock decides for all ranks; a signal may have reached any of them.
                values = [self._budget.progress(state.step), float(is_full), float(saves)]
                (progress, full, late), stop = run.world.agree(values, flag=bool(run.stop))
                ends = progress >= 1.0 or stop
                if window and (ends or full or late):
                    seconds, wait_s = clock() - window_s, batches.wait_s - waited_s
                    state.trained_s += seconds
                    self._close(window, progress, seconds=seconds, wait_s=wait_s)
                    window = []
                if ends or late:
                    self._save()
                if stop:
                    raise self._log_interruption()
                if ends:
                    return state
                if not window:
                    window_s, waited_s = clock(), batches.wait_s
                window.append(self._one_step(copier.receive(next(batches)), progress))

    def _make(self, step: int) -> Batch:
        return self._job.make_batch(step, self._share)

    def _save_is_due(self) -> bool:
        since_s, step = self._run.clock() - self._saved_s, self._state.step
        is_new_epoch = step // self._epoch_steps > self._saved_step // self._epoch_steps
        return since_s >= (_SHORTEST_SAVE_S if is_new_epoch else self._config.checkpoint_every_s)

    def _one_step(self, batch: Batch, progress: float) -> torch.Tensor:
        with span("step"):
            loss = self._step(batch, self._rate(progress))
        self._state.step += 1
        return loss

    def _rate(self, progress: float) -> float:
        return learning_rate_at(progress, peak=self._config.optimizer.learning_rate, config=self._config.schedule)

    def _close(self, losses: Sequence[torch.Tensor], progress: float, *, seconds: float, wait_s: float) -> None:
        """Reads the losses of some steps, for the first time since they were computed."""
        values = torch.stack(list(losses)).float().cpu()
        run, step = self._run, self._state.step
        if not bool(torch.isfinite(values).all()):
            first = step - len(values) + int((~torch.isfinite(values)).nonzero()[0, 0])
            raise self._not_finite(first)
        mean, epoch = float(values.mean()), step // self._epoch_steps
        num_images = len(values) * self._config.batch_size
        run.log.write(
            "steps", step=step, num_steps=len(values), num_images=num_images, loss=mean, epoch=epoch,
            learning_rate=self._rate(progress), seconds=seconds, wait_s=wait_s,
        )  # fmt: skip
        self._shown.show_steps(
            step=step,
            loss=mean,
            images_per_s=num_images / seconds,
            wait_share=wait_s / seconds,
            progress=progress,
            remaining_s=self._state.trained_s / max(progress, 1e-6) * (1.0 - progress),
        )

    def _not_finite(self, step: int) -> NonFiniteLossError:
        run = self._run
        error = NonFiniteLossError(
            f"recipe: the loss of step {step} is NaN or infinite; train again with a lower "
            f"fit.optimizer.learning_rate (--set) and --overwrite. The last checkpoint in {run.folder.checkpoints} is "
            "from before",
            case_ids=(),
            step=step,
        )
        like = self._like()
        kept = run.world.run_on_leader(lambda: self._checkpoints.load_good(like=like))
        return explained(
            error, self._step, lambda step: _moved(self._make(step), self._step.device), kept, world=run.world
        )

    def _like(self) -> dict[str, Any]:
        return {"loop": dict(vars(self._state)), "training": self._step.state()}

    def _save(self) -> None:
        run = self._run
        state = self._like()
        path = run.world.run_on_leader(lambda: self._checkpoints.save(self._state.step, state))
        run.log.write("checkpoint", step=self._state.step, path=f"{path.parent.name}/{path.name}")
        self._saved_s, self._saved_step = run.clock(), self._state.step

    def _log_interruption(self) -> InterruptedRunError:
        run, step = self._run, self._state.step
        run.log.write("interrupted", signal=run.stop.signal_number)
        return InterruptedRunError(
            f"recipe: stopped at step {step} after {duration_text(self._state.trained_s)} of training, with its state "
            f"saved in {run.folder.path}; the same command with --resume continues",
            signal_number=run.stop.signal_number or 15,
        )


class _Copier:
    """Batches on the device, copied from pinned memory by the threads that make them, on a stream of their own."""

    def __init__(self, make: Callable[[int], Batch], device: torch.device) -> None:
        self._make, self._device = make, device
        # First in line, as the streams of `voxelocity train`'s feed: a copy would wait behind a step's kernels.
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def __call__(self, step: int) -> tuple[Batch, torch.cuda.Event | None]:
        batch = self._make(step)
        if self._stream is None:
            return _moved(batch, self._device), None
        with torch.cuda.stream(self._stream):
            batch = _moved(batch.with_(image=batch.image.pin_memory(), label=batch.label.pin_memory()), self._device)
            return batch, self._stream.record_event()

    def receive(self, made: tuple[Batch, torch.cuda.Event | None]) -> Batch:
        """The batch, for the stream that trains. The host does not wait for the copy."""
        batch, copied = made
        if copied is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(copied)
            for tensor in (batch.image, batch.label):
                tensor.record_stream(stream)
        return batch


def _moved(batch: Batch, device: torch.device) -> Batch:
    if device.type == "cpu":
        return batch
    return batch.with_(image=batch.image.to(device, non_blocking=True), label=batch.label.to(device, non_blocking=True))
