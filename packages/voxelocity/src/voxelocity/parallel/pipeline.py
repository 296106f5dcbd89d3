"""A network cut across ranks by `torch.distributed.pipelining`: each rank holds one stage, and patches pass through.

Gradients are those of the whole network on the whole batch. Not here: which cuts, `fit`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from voxelocity.parallel.segments import Segment, Stack, segments_of
from voxelocity.parallel.world import World
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.spans import span

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Logits and labels of a whole batch to a scalar."""


class PipelineParallelModule(nn.Module):
    """One stage of a network, on this rank; all ranks of the world call every method together.

    Its parameters are those of the stage, so each rank has an optimizer of its own; its `state_dict` has all, under the
    network's own names.

    Args:
        network: equal on all ranks; only one stage of it is moved to the device. See `segments_of` for what can be cut.
        world: its ranks are the stages, in order.
        device: of this rank.
        num_microbatches: pieces of a batch; while one stage works on a piece, the others work on others. A batch that
            they do not divide is filled up with zeros, whose logits are dropped before the loss.
        cuts: for each rank after the first, the index of the segment with which its stage begins; stages of about as
            many parameters if not given. `fit.decide_by_measurement` measures.
        schedule: "gpipe" keeps the activations of all pieces and takes any loss of the whole batch; "1f1b" keeps those
            of as many pieces as there are stages, and needs a loss that is a mean over patches.

    Attributes:
        stage: what this rank computes.
        names: for each tensor of the stage, its names in the network; two if layers share it.

    Raises:
        InputError: the network cannot be cut, has fewer segments than there are ranks, or has batch norms, which would
            see pieces in place of the batch.
    """

    def __init__(
        self,
        network: nn.Module,
        world: World,
        *,
        device: torch.device,
        num_microbatches: int = 8,
        cuts: Sequence[int] | None = None,
        schedule: Literal["gpipe", "1f1b"] = "gpipe",
    ) -> None:
        super().__init__()
        if num_microbatches < 1:
            raise InputError(f"parallel: num_microbatches is {num_microbatches}; it must be at least 1")
        _check_no_batch_norm(network)
        segments = segments_of(network)
        size, rank = world.place.size, world.place.rank
        weights = [1.0 + sum(parameter.numel() for parameter in segment.parameters()) for segment in segments]
        cuts = cheapest_cuts([weights] * size) if cuts is None else tuple(cuts)
        bounds = (0, *cuts, len(segments))
        if len(cuts) != size - 1 or any(a >= b for a, b in itertools.pairwise(bounds)):
            raise InputError(
                f"parallel: {type(network).__name__} has {len(segments)} segments, which cannot be cut at "
                f"{tuple(cuts)} for {size} ranks; give {size - 1} increasing indices between 1 and {len(segments) - 1}"
            )
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
        self._whole = _WholeLoss()

    @property
    def is_first(self) -> bool:
        """Whether this rank takes the images."""
        return self._world.place.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank makes the logits, and needs the labels."""
        return self._world.place.rank == self._world.place.size - 1

    def make_gradients(self, image_bcxyz: torch.Tensor, label: torch.Tensor, loss: Loss) -> torch.Tensor:
        """Adds the gradients of the loss to the parameters of all stages; the loss, a scalar, on every rank.

        Args:
            image_bcxyz: the whole batch; used by the first rank, but its shape is known by all.
            label: the whole batch; used by the last rank.
            loss: of the whole batch.
        """
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


class _WholeLoss:
    """The loss of a whole batch, for a schedule that asks for one of each piece.

    GPipe asks for the losses of all pieces before it propagates the first of them back, so the true loss is computed
    at the last of them, and each piece then gets its part of the gradient.
    """

    def begin(
        self, label: torch.Tensor, loss: Loss, *, num_patches: int, num_pieces: int, size: int, is_late: bool
    ) -> None:
        """For the next batch: `size` patches a piece, of which the first `num_patches` of all count."""
        self._label, self._loss, self._num_patches = label, loss, num_patches
        self._num_pieces, self._size, self._is_late = num_pieces, size, is_late
        self._pieces: dict[int, _Piece] = {}
        self._values: dict[int, torch.Tensor] = {}

    def __call__(self, logits: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        index = int(number)
        start = index * self._size
        num_real = max(0, min(self._size, self._num_patches - start))
        if not self._is_late:
            label = self._label[start : start + num_real].to(logits.device)
            value = (
                self._loss(logits[:num_real], label) * (num_real / self._num_patches) if num_real else 0 * logits.sum()
            )
            self._values[index] = value.detach()
            return value
        piece = _Piece(logits.detach()[:num_real])
        self._pieces[index] = piece
        # Before its first step, torch asks for the loss of the first piece once more, to learn shapes.
        if index == self._num_pieces - 1:
            self._propagate()
        scalar: torch.Tensor = _Late.apply(logits, piece)  # type: ignore[no-untyped-call]
        return scalar

    def result(self) -> torch.Tensor:
        return torch.stack(list(self._values.values())).sum()

    def _propagate(self) -> None:
        pieces = [self._pieces[index] for index in sorted(self._pieces)]
        with span("loss", color="lightgreen"), torch.enable_grad():
            logits = torch.cat([piece.logits for piece in pieces]).requires_grad_()
            value = self._loss(logits, self._label.to(logits.device))
            (slope,) = torch.autograd.grad(value, logits)
        self._values = {0: value.detach()}
        for piece, part in zip(pieces, torch.split(slope, [len(piece.logits) for piece in pieces]), strict=True):
            piece.slope = part


class _Piece:
    """Logits of a piece, and later the gradient of the loss with respect to them."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits
        self.slope: torch.Tensor | None = None


class _Late(torch.autograd.Function):
    """A scalar whose gradient is known only when it is asked for."""

    @staticmethod
    def forward(context: Any, logits: torch.Tensor, piece: _Piece) -> torch.Tensor:
        context.piece, context.shape = piece, logits.shape
        return logits.new_zeros(())

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        slope = context.piece.slope
        whole = gradients[0].new_zeros(context.shape) if slope is None else slope.new_zeros(context.shape)
        if slope is not None:
            whole[: len(slope)] = slope
        return whole * gradients[0], None


def cheapest_cuts(
    costs: Sequence[Sequence[float]],
    *,
    sizes: Sequence[Sequence[float]] | None = None,
    limits: Sequence[float] | None = None,
) -> tuple[int, ...]:
    """Where each stage after the first begins, so that the most expensive stage is as cheap as possible.

    Args:
        costs: for each stage, what each segment costs there.
        sizes: for each stage, the bytes of each segment.
        limits: for each stage, the bytes there are.

    Raises:
        InputError: there are fewer segments than stages, or no cuts are within the limits.
    """
    num_stages, num_segments = len(costs), len(costs[0])
    infinity = float("inf")
    # least[n] and where[n]: for the first n segments on the stages so far.
    least = [0.0] + [infinity] * num_segments
    where: list[list[int]] = []
    for stage in range(num_stages):
        best, begins = [infinity] * (num_segments + 1), [0] * (num_segments + 1)
        for stop in range(1, num_segments + 1):
            for start in range(stop):
                is_full = sizes is not None and limits is not None and sum(sizes[stage][start:stop]) > limits[stage]
                value = infinity if is_full else max(least[start], sum(costs[stage][start:stop]))
                if value < best[stop]:
                    best[stop], begins[stop] = value, start
        least = best
        where.append(begins)
    if least[num_segments] == infinity:
        few, full = "it has fewer segments than there are ranks", "with any cut, a stage does not fit into memory"
        raise InputError(
            f"parallel: a network of {num_segments} segments cannot be cut for {num_stages} ranks, because "
            f"{few if num_segments < num_stages else full}"
        )
    cuts, stop = [], num_segments
    for begins in reversed(where[1:]):
        stop = begins[stop]
        cuts.append(stop)
    return tuple(reversed(cuts))


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
            "parallel: the network has batch norms, which would normalize pieces of a batch in place of the batch; set "
            "network.norm=instance"
        )
