"""What a part of a network takes in training: seconds, and bytes on a CPU or a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from voxelocity.parallel.segments import Segment, Stack
from voxelocity_observe.core.clock import system_clock
from voxelocity_observe.core.device import numbered
from voxelocity_observe.core.host import available_memory_bytes
from voxelocity_observe.core.place import read_place


@dataclass(frozen=True, kw_only=True)
class SegmentCost:
    """What a segment takes for the patches that were measured.

    Attributes:
        seconds: of its forward and backward pass.
        parameter_bytes: of its parameters.
        num_parameters: how many values these are.
        activation_bytes: kept for its backward pass.
        working_bytes: needed meanwhile in addition, gradients included.
        output_bytes: of what it adds to the stack.
    """

    seconds: float
    parameter_bytes: int
    num_parameters: int
    activation_bytes: int
    working_bytes: int
    output_bytes: int


def measure_segments(segments: Sequence[Segment], sample_bcxyz: torch.Tensor) -> list[SegmentCost]:
    """What each segment takes on the device of the sample, one after the other; gradients are left as they were.

    Args:
        segments: of a network; each is on that device only while it is measured.
        sample_bcxyz: patches of the size that will be trained.
    """
    costs = []
    stack: Stack = (sample_bcxyz,)
    for segment in segments:
        parameters = list({id(parameter): parameter for parameter in segment.parameters()}.values())
        before = [parameter.grad for parameter in parameters]
        home = parameters[0].device if parameters else sample_bcxyz.device
        # Otherwise the backward pass would add to these very tensors.
        for parameter in parameters:
            parameter.grad = None
        # One segment at a time: the whole network may be larger than the device.
        _move(segment, sample_bcxyz.device)
        inputs = tuple(tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in stack)
        start_s = _now(sample_bcxyz.device)
        backward(segment(inputs))
        seconds = _now(sample_bcxyz.device) - start_s
        with peak_bytes(sample_bcxyz.device) as peak, _count_kept_bytes(exclude=parameters) as kept:
            outputs = segment(inputs)
            backward(outputs)
        for parameter in parameters:
            parameter.grad = None
        _move(segment, home)
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
        costs.append(
            SegmentCost(
                seconds=seconds,
                parameter_bytes=sum(parameter.nbytes for parameter in parameters),
                num_parameters=sum(parameter.numel() for parameter in parameters),
                activation_bytes=kept(),
                working_bytes=max(0, peak() - kept()),
                output_bytes=outputs[-1].nbytes,
            )
        )
        stack = tuple(tensor.detach() for tensor in outputs)
    return costs


def _move(segment: Segment, device: torch.device) -> None:
    for module in segment.modules:
        module.to(device)


def backward(stack: Stack) -> None:
    """A backward pass from the sum of what is on top."""
    stack[-1].float().sum().backward()  # type: ignore[no-untyped-call]


@contextmanager
def _count_kept_bytes(*, exclude: Sequence[torch.Tensor]) -> Iterator[Callable[[], int]]:
    """Counts the bytes that autograd keeps for the backward pass, each storage once."""
    known = {tensor.untyped_storage().data_ptr() for tensor in exclude}
    held: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield lambda: sum(held.values())


@contextmanager
def peak_bytes(device: torch.device) -> Iterator[Callable[[], int]]:
    """Counts the most bytes that are allocated at once within the block, in addition to those before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - before
        return
    # torch counts no memory of a CPU, so every operation is followed, which takes longer.
    with _Allocations() as allocations:
        yield lambda: allocations.most_bytes


def free_bytes(device: torch.device) -> int:
    """Memory of a device that is free, or held by this process without being used."""
    if device.type != "cuda":
        return available_memory_bytes()
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def process_devices(first: torch.device | None = None) -> tuple[torch.device, ...]:
    """The GPUs that this process may use, the current one first: all, or its own if it is one of several ranks.

    Args:
        first: comes before the others; if it is no GPU, it is the only one. The CPU if there are no GPUs.
    """
    if not torch.cuda.is_available() or (first is not None and first.type != "cuda"):
        return (first or torch.device("cpu"),)
    first = numbered(torch.device("cuda") if first is None else first)
    others = range(torch.cuda.device_count()) if read_place().is_alone else ()
    return (first, *(torch.device("cuda", number) for number in others if number != first.index))


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that operations make, until nothing holds their memory.

    Attributes:
        most_bytes: that were held at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most_bytes = 0
        self._bytes = 0
        self._held: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        before = {_storage_of(leaf) for leaf in tree_leaves((arguments, options)) if isinstance(leaf, torch.Tensor)}
        made = function(*arguments, **(options or {}))
        for tensor in tree_leaves(made):
            is_plain = isinstance(tensor, torch.Tensor) and not is_traceable_wrapper_subclass(tensor)
            if is_plain and (key := _storage_of(tensor)) not in before and key not in self._held:
                storage = tensor.untyped_storage()
                self._held[key] = storage.nbytes()
                self._bytes += storage.nbytes()
                self.most_bytes = max(self.most_bytes, self._bytes)
                weakref.finalize(storage, self._release, key).atexit = False
        return made

    def _release(self, key: int) -> None:
        self._bytes -= self._held.pop(key)


def _storage_of(tensor: torch.Tensor) -> int:
    """A number for its memory that no other has while it is alive."""
    number: int = tensor.untyped_storage()._cdata
    return number


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return system_clock()
