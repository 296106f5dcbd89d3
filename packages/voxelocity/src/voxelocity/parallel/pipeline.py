"""A network cut into stages through which the pieces of a batch pass: on the devices of one process, or a stage on each
rank by `torch.distributed.pipelining`.

Gradients are those of the whole network on the whole batch. Not here: which cuts, `fit`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from voxelocity.parallel.cuts import cheapest_cuts
from voxelocity.parallel.footprint import free_bytes, process_devices
from voxelocity.parallel.segments import Segment, SegmentedNetwork, Stack, segments_of
from voxelocity.parallel.whole_loss import Loss, WholeLoss
from voxelocity.parallel.world import ALONE, World
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.spans import span

Schedule = Literal["gpipe", "1f1b"]


class PipelineParallelModule(nn.Module):
    """A network in stages, one after the other on several devices; while one works on a piece, others work on others.

    In one process (`ProcessPipeline`), it trains as any network does: `model(images)` has gradients, `parameters()` are
    all of them, and `state_dict()` is that of the network. With ranks (`RankPipeline`), each has one stage, and all
    call every method together.

    Args:
        network: equal on all ranks. See `segments_of` for what can be cut.
        world: its ranks are the stages, in order; alone, the devices of this process are.
        device: of this rank, or of each stage of this process; where the network is, or all GPUs that this process may
            use (the CPU if there are none), if not given.
        num_microbatches: pieces of a batch. With ranks, a batch that they do not divide is filled up with zeros, whose
            logits are dropped before the loss.
        cuts: for each stage after the first, the index of the segment with which it begins; stages of about as many
            parameters if not given, in one process in proportion to the free memory of its GPUs.
            `fit.decide_by_measurement` measures.
        schedule: of `make_gradients`. "gpipe" keeps the activations of all pieces and takes any loss of the whole
            batch; "1f1b" keeps those of fewer, and needs a loss that is a mean over patches.

    Raises:
        InputError: the network cannot be cut, has fewer segments than there are stages, or has batch norms, which would
            see pieces in place of the batch.
    """

    def __new__(
        cls,
        network: nn.Module | None = None,
        world: World = ALONE,
        *,
        device: torch.device | str | Sequence[torch.device | str] | None = None,
        num_microbatches: int = 8,
        cuts: Sequence[int] | None = None,
        schedule: Schedule = "gpipe",
    ) -> Self:
        # Copies and pickles name the class that they are of.
        kind: Any = cls
        if cls is PipelineParallelModule:
            kind = ProcessPipeline if world.is_alone else RankPipeline
        made: Self = super().__new__(kind)
        return made

    def make_gradients(self, image_bcxyz: torch.Tensor, label: torch.Tensor, loss: Loss) -> torch.Tensor:
        """Adds the gradients of the loss to the parameters of all stages; the loss, a scalar, on every rank.

        Args:
            image_bcxyz: the whole batch; used by the first rank, but its shape is known by all.
            label: the whole batch; used by the last rank.
            loss: of the whole batch.
        """
        raise NotImplementedError


class ProcessPipeline(SegmentedNetwork, PipelineParallelModule):
    """All stages of a network in this process, on one device each; arguments as for `PipelineParallelModule`.

    A network on one device is called unchanged, whatever it takes. Others take one tensor; GPUs work at the same time,
    as nothing here waits for them.

    Attributes:
        devices: of the stages, in order.
        cuts: where the stages after the first begin.
    """

    def __init__(
        self,
        network: nn.Module,
        world: World = ALONE,
        *,
        device: torch.device | str | Sequence[torch.device | str] | None = None,
        num_microbatches: int = 8,
        cuts: Sequence[int] | None = None,
        schedule: Schedule = "gpipe",
    ) -> None:
        _check_num_microbatches(num_microbatches)
        super().__init__(network)
        given = [device] if isinstance(device, torch.device | str) else device
        self.devices = process_devices() if given is None else tuple(map(torch.device, given))
        self._num_microbatches, self._schedule = num_microbatches, schedule
        self.cuts: tuple[int, ...] = ()
        if len(self.devices) > 1 or cuts:
            if num_microbatches > 1:
                _check_no_batch_norm(network)
            # A network of few segments needs no more devices.
            self.devices = self.devices[: len(self.segments)]
            shares = [free_bytes(place) if place.type == "cuda" else 1.0 for place in self.devices]
            self.cuts = _checked_cuts(network, self.segments, cuts, [share / max(shares) for share in shares])
        self._place()

    @property
    def is_first(self) -> bool:
        """Whether this process takes the images."""
        return True

    @property
    def is_last(self) -> bool:
        """Whether this process makes the logits, and needs the labels."""
        return True

    def forward(self, image_bcxyz: torch.Tensor, *others: Any, **options: Any) -> Any:
        """What the network returns, on the device of the image, with gradients."""
        if not self.cuts:
            made = self.network(_moved(image_bcxyz, self.devices[0]), *others, **options)
            return _moved(made, image_bcxyz.device) if isinstance(made, torch.Tensor) else made
        if others or options:
            raise InputError(
                f"parallel: a pipeline of {len(self.devices)} devices passes on one tensor, and "
                f"{type(self.network).__name__} was called with more; give one device, or keep the others in the module"
            )
        pieces = torch.split(image_bcxyz, -(-len(image_bcxyz) // self._num_microbatches))
        # Moved last: a copy to the host would wait for the piece.
        return _moved(torch.cat([self._through_stages(piece) for piece in pieces]), image_bcxyz.device)

    def make_gradients(self, image_bcxyz: torch.Tensor, label: torch.Tensor, loss: Loss) -> torch.Tensor:
        size = len(image_bcxyz)
        if self._schedule == "1f1b" and self.cuts:
            size = -(-size // self._num_microbatches)
        total = torch.zeros((), device=image_bcxyz.device)
        for image, part in zip(torch.split(image_bcxyz, size), torch.split(label, size), strict=True):
            made = self(image)
            value = loss(made, part.to(made.device)) * (len(image) / len(image_bcxyz))
            value.backward()  # type: ignore[no-untyped-call]
            total += value.detach()
        return total

    def _through_stages(self, image_bcxyz: torch.Tensor) -> torch.Tensor:
        stack: Stack = (image_bcxyz,)
        for segments, device in self._stages():
            stack = tuple(_moved(tensor, device) for tensor in stack)
            for segment in segments:
                stack = segment(stack)
        return stack[0]

    def _stages(self) -> Iterator[tuple[Sequence[Segment], torch.device]]:
        bounds = itertools.pairwise((0, *self.cuts, len(self.segments)))
        for (start, stop), device in zip(bounds, self.devices, strict=True):
            yield self.segments[start:stop], device

    def _place(self) -> None:
        """Moves each stage to its device. Parameters stay the same objects, so an optimizer may be made before."""
        if not self.cuts:
            self.network.to(self.devices[0])
            return
        for segments, device in self._stages():
            for segment in segments:
                for module in segment.modules:
                    module.to(device)

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        """As of any module, but for devices: the stages stay where they are; a single one moves."""
        super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        if len(set(self.devices)) > 1:
            self._place()
        elif (parameter := next(self.network.parameters(), None)) is not None:
            self.devices = (parameter.device,) * len(self.devices)
        return self


class RankPipeline(PipelineParallelModule):
    """One stage of a network, on this rank; arguments as for `PipelineParallelModule`.

    Its parameters are those of the stage, so each rank has an optimizer of its own; its `state_dict` has all, under the
    network's own names.

    Attributes:
        stage: what this rank computes.
        names: for each tensor of the stage, its names in the network; two if layers share it.
    """

    def __init__(
        self,
        network: nn.Module,
        world: World,
        *,
        device: torch.device | str | None = None,
        num_microbatches: int = 8,
        cuts: Sequence[int] | None = None,
        schedule: Schedule = "gpipe",
    ) -> None:
        super().__init__()
        _check_num_microbatches(num_microbatches)
        _check_no_batch_norm(network)
        segments = segments_of(network)
        size, rank = world.place.size, world.place.rank
        bounds = (0, *_checked_cuts(network, segments, cuts, [1.0] * size), len(segments))
        device = next(network.parameters()).device if device is None else torch.device(device)
        self._world, self._device, self._schedule = world, device, schedule
        self._num_microbatches = num_microbatches
        own = segments[bounds[rank] : bounds[rank + 1]]
        names: dict[int, list[str]] = {}
        for name, value in network.state_dict(keep_vars=True).items():
            names.setdefault(id(value), []).append(name)
        self.stage = _Stage(own)
        # Before tensors move, while they are still those of the network.
        self.names = {inner: names.get(id(value), []) for inner, value in self.stage.state_dict(keep_vars=True).items()}
        self.stage.to(device)
        self._runners: dict[tuple[int, bool], ScheduleGPipe | Schedule1F1B] = {}
        self._whole = WholeLoss()

    @property
    def is_first(self) -> bool:
        """Whether this rank takes the images."""
        return self._world.place.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank makes the logits, and needs the labels."""
        return self._world.place.rank == self._world.place.size - 1

    def make_gradients(self, image_bcxyz: torch.Tensor, label: torch.Tensor, loss: Loss) -> torch.Tensor:
        padded, num_pieces = _in_pieces(image_bcxyz, self._num_microbatches)
        runner = self._runner(num_pieces, padded, has_backward=True)
        self._whole.begin(
            label, loss, num_patches=len(image_bcxyz), num_pieces=num_pieces, size=len(padded) // num_pieces,
            is_late=isinstance(runner, ScheduleGPipe),
        )  # fmt: skip
        runner.step(
            *((padded.to(self._device),) if self.is_first else ()),
            # Each piece has its number in place of its labels: the loss is that of the whole batch.
            target=torch.arange(num_pieces) if self.is_last else None,
            return_outputs=False,
        )
        return self._from_last(self._whole.result() if self.is_last else None, shape=())

    def forward(self, image_bcxyz: torch.Tensor) -> torch.Tensor:
        """Logits (b, k, x, y, z) float32 on every rank, without gradients."""
        padded, num_pieces = _in_pieces(image_bcxyz, self._num_microbatches)
        with torch.no_grad():
            runner = self._runner(num_pieces, padded, has_backward=False)
            made = runner.step(*((padded.to(self._device),) if self.is_first else ()))
        shape = self._world.gather(tuple(made.shape) if self.is_last else ())[-1]
        logits = self._from_last(made.float() if self.is_last else None, shape=shape)
        return logits[: len(image_bcxyz)]

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The state of the whole network, in main memory, by the names that it has there; on every rank."""
        own = {
            name: value.detach().cpu() for inner, value in self.stage.state_dict().items() for name in self.names[inner]
        }
        return {name: value for part in self._world.gather(own) for name, value in part.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Takes this rank's part of the state of the whole network."""
        own = {inner: state_dict[names[0]] for inner, names in self.names.items() if names}
        return self.stage.load_state_dict(own, *args, **kwargs)

    def _runner(self, num_pieces: int, padded: torch.Tensor, *, has_backward: bool) -> ScheduleGPipe | Schedule1F1B:
        # Buffers between stages have one shape for good.
        key = (num_pieces, *padded.shape, has_backward)
        if key not in self._runners:
            stage = _TimedStage(self.stage, self._world.place.rank, self._world.place.size, self._device)
            kind = Schedule1F1B if self._schedule == "1f1b" and num_pieces >= self._world.place.size else ScheduleGPipe
            # The loss is a sum over pieces.
            self._runners[key] = kind(stage, num_pieces, self._whole if has_backward else None, scale_grads=False)
        return self._runners[key]

    def _from_last(self, value: torch.Tensor | None, *, shape: Sequence[int]) -> torch.Tensor:
        if value is None:
            value = torch.empty(shape, device=self._device)
        value = value.detach().float().contiguous()
        dist.broadcast(value, src=self._world.place.size - 1)
        return value


class _TimedStage(PipelineStage):
    """Marks its own work as spans; what a step takes in addition is waiting for other stages."""

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with span("forward", color="green"):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with span("backward", color="blue"):
            return super().backward_one_chunk(*args, **kwargs)


class _Stage(nn.Module):
    """Segments one after the other, from stack to stack."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(module for segment in segments for module in segment.modules)
        self._segments = tuple(segments)

    def forward(self, *stack: torch.Tensor) -> torch.Tensor | Stack:
        stack = tuple(_Crossing.apply(tensor) for tensor in stack)  # type: ignore[no-untyped-call]
        for segment in self._segments:
            stack = segment(stack)
        stack = tuple(tensor.contiguous() for tensor in stack)
        return stack if len(stack) > 1 else stack[0]


class _Crossing(torch.autograd.Function):
    """What comes from another rank, in a form whose gradient can be sent back: torch sends only contiguous tensors."""

    @staticmethod
    def forward(context: Any, received: torch.Tensor) -> torch.Tensor:
        return received.view_as(received)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].contiguous()


def _checked_cuts(
    network: nn.Module, segments: Sequence[Segment], cuts: Sequence[int] | None, shares: Sequence[float]
) -> tuple[int, ...]:
    """The cuts, if they make a stage of each share; where there are none, stages with parameters in these shares."""
    if cuts is None:
        weights = [1.0 + sum(parameter.numel() for parameter in segment.parameters()) for segment in segments]
        return cheapest_cuts([[weight / share for weight in weights] for share in shares])
    size, bounds = len(shares), (0, *cuts, len(segments))
    if len(cuts) != size - 1 or any(a >= b for a, b in itertools.pairwise(bounds)):
        raise InputError(
            f"parallel: {type(network).__name__} has {len(segments)} segments, which cannot be split at "
            f"{tuple(cuts)} for {size} stages; give {size - 1} increasing indices between 1 and {len(segments) - 1}"
        )
    return tuple(cuts)


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    # The host would read what has not arrived.
    return tensor.to(device, non_blocking=device.type == "cuda")


def _check_num_microbatches(number: int) -> None:
    if number < 1:
        raise InputError(f"parallel: num_microbatches is {number}; it must be at least 1")


def _in_pieces(image_bcxyz: torch.Tensor, most_pieces: int) -> tuple[torch.Tensor, int]:
    """The batch, filled up with zeros where pieces do not divide it, and the number of pieces."""
    num_patches = len(image_bcxyz)
    size = -(-num_patches // most_pieces)
    num_pieces = -(-num_patches // size)
    missing = num_pieces * size - num_patches
    if missing:
        image_bcxyz = torch.cat([image_bcxyz, image_bcxyz.new_zeros((missing, *image_bcxyz.shape[1:]))])
    return image_bcxyz, num_pieces


def _check_no_batch_norm(network: nn.Module) -> None:
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()):
        raise InputError(
            "parallel: the network has batch norms, which would normalize microbatches instead of the batch; set "
            "network.norm=instance, or num_microbatches=1 in one process"
        )
