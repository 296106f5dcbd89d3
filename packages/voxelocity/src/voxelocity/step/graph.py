"""The whole training step as one CUDA graph: recorded once for each shape of a batch, then replayed.

A small step takes the host longer than the device: 350 to 450 kernels were launched in 20.7 ms for about 2 ms of work
on an H100. A graph launches them at once. What changes from step to step is read from tensors: the batch, and the
numbers in `StepNumbers`.
"""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from voxelocity.core.kernels import refuse_compiling_in_captures
from voxelocity.parallel import Sharding, World
from voxelocity.step.optimizer_table import OPTIMIZERS
from voxelocity.step.precision_config import PrecisionConfig
from voxelocity_observe.core.device import is_out_of_memory, numbered
from voxelocity_observe.spans import span

WARM_UP_STEPS = 3
"""Eager steps before a capture: they make the optimizer's state, compile kernels, and let cuDNN choose algorithms."""
_MOST_GRAPHS = 4
"""Kept at once, one for each shape of a batch; beyond them the one used longest ago is dropped."""
LARGE_SHARE = 0.4
"""Of a device's memory: with more in recordings, a validation might not find enough."""
_MOST_CAPTURES = 24
"""A training whose shapes keep changing would record more than it replays."""


class Recorder(Protocol):
    """Records work on a device for replay.

    Attributes:
        num_bytes: of the device's memory that recordings hold.
        share: the same, as a share of the device's memory.
    """

    num_bytes: int

    @property
    def share(self) -> float: ...

    def aside(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Runs the work now, on the stream on which it will be recorded, between what is queued before and after."""

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        """Records the work without running it. Returns what runs it, and the tensor that it then writes."""

    def wait(self) -> None:
        """Waits until none of its recordings runs."""

    def release(self) -> None:
        """Gives back the memory of recordings that nobody holds any more; later ones have memory of their own."""


class CudaRecorder:
    """Records CUDA graphs, whose memory is one private pool: they never run at the same time.

    Other threads may use the device meanwhile (capture mode "thread_local").

    Args:
        device: with its number.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None
        self.num_bytes = 0

    @property
    def share(self) -> float:
        return self.num_bytes / torch.cuda.get_device_properties(self._device).total_memory

    def aside(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                return work()
        finally:
            current.wait_stream(self._stream)

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        """As in `Recorder`. Waits for the device once.

        Raises:
            RuntimeError: the memory does not suffice, or the work waits for the device or does what else cannot be
                recorded. Nothing has run.
        """
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(self._device)
        # The recording has memory of its own, so what eager steps left must be free for it.
        torch.cuda.empty_cache()
        graph, reserved = torch.cuda.CUDAGraph(), torch.cuda.memory_reserved(self._device)
        numbers = torch.cuda.default_generators[self._device.index]
        found = numbers.get_state()
        refuse_compiling_in_captures()
        with torch.cuda.stream(self._stream):
            try:
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                made = work()
                graph.capture_end()
            except BaseException:
                self._abandon(graph)
                numbers.set_state(found)
                raise
        self.num_bytes += torch.cuda.memory_reserved(self._device) - reserved
        # The method holds the graph, and the graph its memory.
        return graph.replay, made

    def wait(self) -> None:
        torch.cuda.current_stream(self._device).synchronize()

    def release(self) -> None:
        self._pool, self.num_bytes = None, 0
        torch.cuda.empty_cache()

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a capture that failed. If CUDA refuses to end it, torch leaves its own state as during a capture."""
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
            return
        native: Any = torch._C
        with contextlib.suppress(RuntimeError, AttributeError):
            # Otherwise the allocator would never again look at the events of freed memory.
            native._cuda_endAllocateToPool(self._device.index, self._pool)
            native._cuda_releasePool(self._device.index, self._pool)
        with contextlib.suppress(RuntimeError, AttributeError):
            # Otherwise its generator would refuse to draw.
            numbers = torch.cuda.default_generators[self._device.index]
            numbers.graphsafe_set_state(torch.Generator(self._device).graphsafe_get_state())


def recorder_of(device: torch.device) -> Recorder | None:
    """What records steps on this device; None if it has no graphs."""
    return CudaRecorder(numbered(device)) if device.type == "cuda" else None


class StepNumbers:
    """What a step needs to know besides its batch, on the device: float32 scalars that a recorded step reads.

    Setting one is a kernel whose argument is the number, so no memory of the host must outlive it.

    Attributes:
        learning_rate: of the optimizer.
        average_weight: of the new weights in the running average.
    """

    def __init__(self, device: torch.device) -> None:
        self.learning_rate = torch.zeros((), device=device)
        self.average_weight = torch.zeros((), device=device)
        self._now = (0.0, 0.0)

    def set(self, learning_rate: float, average_weight: float) -> None:
        """Queues what differs from before: each call of torch may have to wait for Python's lock."""
        for tensor, before, now in zip(
            (self.learning_rate, self.average_weight), self._now, (learning_rate, average_weight), strict=True
        ):
            if now != before:
                tensor.fill_(now)
        self._now = (learning_rate, average_weight)

    def forget(self) -> None:
        """The tensors may have been written by others: the next `set` writes them both."""
        self._now = (math.nan, math.nan)


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """The step, in two forms that train the same weights up to roundings.

    Attributes:
        eager: a step on (image, label) with this number, with all that it counts on the host.
        recorded: the same without anything that only the host does, and without `masks`.
        masks: a context in which dropout draws the numbers of this step.
        count: what the host counts in a step.
        free: drops the gradients, which may lie in the memory of a recording.
        recover: makes an eager step possible after a recording that failed anywhere.
    """

    eager: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
    recorded: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    masks: Callable[[int], AbstractContextManager[object]]
    count: Callable[[], None]
    free: Callable[[], None]
    recover: Callable[[], None]


@dataclass(kw_only=True, eq=False)
class _Slot:
    """The inputs of steps of one shape, always at the same place, and their recording."""

    image: torch.Tensor
    label: torch.Tensor
    num_steps: int = 0
    replay: Callable[[], object] | None = None
    loss: torch.Tensor | None = None


class StepGraphs:
    """Runs steps: eagerly until they are warm, then by replaying. If that is not possible, eagerly throughout.

    Args:
        work: the step.
        recorder: of the device.
        memory_format: of images.
        warn: called once if steps cannot be recorded.

    Attributes:
        why_not: why steps are eager from now on; "" while they are not.
        num_replays: steps so far that were replayed.
    """

    def __init__(
        self,
        work: StepWork,
        recorder: Recorder,
        *,
        memory_format: torch.memory_format,
        warn: Callable[[str], None] | None,
    ) -> None:
        self._work, self._recorder, self._warn = work, recorder, warn
        self._memory_format = memory_format
        self._slots: OrderedDict[tuple[object, ...], _Slot] = OrderedDict()
        self._num_captures = 0
        self.num_replays = 0
        self.why_not = ""

    def __call__(self, image: torch.Tensor, label: torch.Tensor, step: int) -> torch.Tensor:
        """The loss of a step, a tensor of its own."""
        if self.why_not:
            with span("layout", color="orange"):
                image = image.to(memory_format=self._memory_format)
            return self._work.eager(image, label, step)
        slot = self._slot(image, label)
        if slot.num_steps < WARM_UP_STEPS:
            slot.num_steps += 1
            with span("layout", color="orange"):
                slot.image.copy_(image)
                slot.label.copy_(label)
            return self._recorder.aside(lambda: self._work.eager(slot.image, slot.label, step)).clone()
        if slot.replay is None and not self._record(slot, step):
            return self(image, label, step)
        assert slot.replay is not None
        assert slot.loss is not None
        with span("graph", color="green"), self._work.masks(step):
            slot.image.copy_(image)
            slot.label.copy_(label)
            slot.replay()
            # The next step writes the recorded one again.
            loss = slot.loss.clone()
        self._work.count()
        self.num_replays += 1
        return loss

    @property
    def is_large(self) -> bool:
        """Whether recordings hold a large part of the device's memory."""
        return self._recorder.share > LARGE_SHARE

    @property
    def holds_recordings(self) -> bool:
        """Whether recordings hold memory that `stop` would give back."""
        return any(slot.replay is not None for slot in self._slots.values())

    def stop(self, why: str, *, is_said: bool = False) -> None:
        """Steps are eager from now on.

        Args:
            why: the reason, in a sentence without its beginning.
            is_said: whether the user already knows.
        """
        self.drop()
        self.why_not = why
        if self._warn is not None and not is_said:
            self._warn(
                f"train: steps are not replayed as a CUDA graph, because {why}; this trains the same weights, but "
                "small steps take longer; precision.step_graph=false avoids the attempt"
            )

    def drop(self) -> None:
        """Forgets all recordings, as after a change of the tensors that they use; later steps are recorded again."""
        self._num_captures = 0
        if not self._slots:
            return
        self._recorder.wait()
        self._slots.clear()
        # One that is left would keep its whole segment of memory.
        self._work.free()
        self._recorder.release()

    def _slot(self, image: torch.Tensor, label: torch.Tensor) -> _Slot:
        key = (image.shape, image.dtype, label.shape, label.dtype)
        slot = self._slots.get(key)
        if slot is None:
            if len(self._slots) >= _MOST_GRAPHS:
                self._drop_oldest()
            slot = self._slots[key] = _Slot(
                image=torch.empty_like(image, memory_format=self._memory_format),
                label=torch.empty_like(label, memory_format=torch.contiguous_format),
            )
        elif len(self._slots) > 1:
            self._slots.move_to_end(key)
        return slot

    def _drop_oldest(self) -> None:
        _, oldest = self._slots.popitem(last=False)
        if oldest.replay is None:
            return
        self._recorder.wait()
        del oldest
        if not self.holds_recordings:
            # torch refuses a pool that no graph uses any more.
            self._work.free()
            self._recorder.release()

    def _record(self, slot: _Slot, step: int) -> bool:
        """Whether the step of this slot could be recorded. Recording changes no weight."""
        if self._num_captures == _MOST_CAPTURES:
            self.stop(f"the shapes of its batches changed {_MOST_CAPTURES} times")
            return False
        self._num_captures += 1
        # Those of the last eager step would take memory beside the recording.
        self._work.free()
        try:
            with span("capture", color="grey"), self._work.masks(step):
                slot.replay, slot.loss = self._recorder.record(lambda: self._work.recorded(slot.image, slot.label))
        except RuntimeError as error:
            is_full = _is_full(error)
            said = str(error).partition("\n")[0]
        else:
            return True
        # Outside the handler, whose traceback holds the tensors of the failed recording.
        self._work.recover()
        self.stop(
            f"the device's memory does not suffice for it ({said})" if is_full else f"it cannot be recorded: {said}"
        )
        return False


def open_graphs(
    work: StepWork,
    precision: PrecisionConfig,
    network: Sharding,
    world: World,
    *,
    optimizer: str,
    device: torch.device,
    warn: Callable[[str], None] | None,
) -> StepGraphs | None:
    """What records and replays the steps of a training; None if that is off, or cannot work, which is reported."""
    if not precision.step_graph:
        return None
    recorder = recorder_of(device)
    skipping = sorted(name for name, kind in OPTIMIZERS.items() if kind.skips_on_device)
    why_not = {
        f"the device is a {device.type}": recorder is None,
        "several ranks train together": not world.is_alone,
        "the network is split": not network.is_plain,
        f"precision.compile={precision.compile} records its own graphs": precision.compile != "none",
        f"in float16, the host decides whether a step of {optimizer} is left out; {' and '.join(skipping)} decide on "
        "the device": precision.compute == "float16" and optimizer not in skipping,
    }
    if recorder is None or any(why_not.values()):
        if warn is not None:
            reason = next(reason for reason, holds in why_not.items() if holds)
            warn(f"train: precision.step_graph=true has no effect, because {reason}")
        return None
    return StepGraphs(work, recorder, memory_format=precision.memory_format, warn=warn)


def _is_full(error: BaseException | None) -> bool:
    """Whether this error, or one that it followed from, says that memory is full."""
    while error is not None:
        if is_out_of_memory(error):
            return True
        error = error.__context__
    return False
