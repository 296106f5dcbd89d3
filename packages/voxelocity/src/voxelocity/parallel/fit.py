"""How a model fits the devices of its ranks: what it takes is measured, then one way to distribute it is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, Unpack

import torch
from torch import nn

from voxelocity.parallel.cuts import cheapest_cuts
from voxelocity.parallel.footprint import SegmentCost, free_bytes, measure_segments
from voxelocity.parallel.modes import Mode
from voxelocity.parallel.segments import Segment, segments_of
from voxelocity.parallel.world import World
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.quantities import bytes_text

# AdamW's two moments in float32.
ADAM_BYTES = 8.0
_MEBI = 1 << 20
NUM_MICROBATCHES = 8


class FitOptions(TypedDict, total=False):
    """What is known of a model beyond what is measured, and which ways are considered."""

    model_size_mb: float | None
    """Of the parameters; measured if not given."""
    mode: Mode | Literal["auto"]
    """The only way to consider; "auto", the default, takes the simplest that fits."""
    optimizer_bytes: float
    """State of the optimizer for each parameter; 8 for AdamW, the default, 4 for SGD with momentum and Muon."""
    num_microbatches: int
    """Of a pipeline; 8 by default."""


@dataclass(frozen=True, kw_only=True)
class ParallelDecision:
    """How a model was distributed.

    Attributes:
        mode: "one device"; "ddp": a copy on each rank; "fsdp": parameters, gradients and optimizer state in shards;
            "checkpointing": a copy on each rank, whose activations are computed again for the backward pass;
            "pipeline": a stage on each rank, or on each device of one process.
        predicted_bytes: what a training step takes, by rank or, in one process, by device.
        limit_bytes: what there is there.
        reason: in one sentence, with the figures that decided.
        rejected: for each simpler way, why it was not chosen.
        cuts: of a pipeline.
        measured_bytes: what a step of the result took, by rank (of one process, on the first device); empty if it was
            not tried.
    """

    mode: Mode
    predicted_bytes: tuple[int, ...]
    limit_bytes: tuple[int, ...]
    reason: str
    rejected: tuple[str, ...] = ()
    cuts: tuple[int, ...] = ()
    measured_bytes: tuple[int, ...] = ()


def decide(
    costs: Sequence[Sequence[SegmentCost]],
    limit_bytes: Sequence[int],
    *,
    num_patches: int,
    mode: Mode | Literal["auto"] = "auto",
    optimizer_bytes: float = ADAM_BYTES,
    num_pieces: int = 1,
) -> ParallelDecision:
    """The simplest way in which a training step fits every rank: one device, copies, shards, checkpointing, a pipeline.

    They are tried in the order of what they cost: DDP exchanges gradients, FSDP parameters as well, checkpointing
    computes a third more, a pipeline leaves ranks idle at its ends.

    Args:
        costs: of each segment on each rank, for the patches of a whole batch.
        limit_bytes: of each rank.
        num_patches: of a batch.
        mode: the only way to consider; "auto" considers all.
        optimizer_bytes: state of the optimizer for each parameter.
        num_pieces: into which a pipeline divides the batch.

    Raises:
        InputError: none of them fits.
    """
    size = len(limit_bytes)
    # Copies and shards each take a share of the patches.
    share = -(-num_patches // size) / num_patches
    ways: dict[Mode, list[int]] = {
        "one device" if size == 1 else "ddp": [_step_bytes(chain, optimizer_bytes, share=share) for chain in costs]
    }
    if size > 1:
        ways["fsdp"] = [_shard_bytes(chain, optimizer_bytes, size=size, share=share) for chain in costs]
    ways["checkpointing"] = [_checkpointed_bytes(chain, optimizer_bytes, share=share) for chain in costs]
    rejected: list[str] = []
    for way, needed in ways.items():
        if mode not in ("auto", way):
            continue
        if all(need <= limit for need, limit in zip(needed, limit_bytes, strict=True)):
            return _decision(way, needed, limit_bytes, rejected)
        rejected.append(_too_much(way, needed, limit_bytes))
    if size > 1 and mode in ("auto", "pipeline"):
        found = _pipelined(costs, limit_bytes, rejected, optimizer_bytes=optimizer_bytes, num_pieces=num_pieces)
        if found is not None:
            return found
    raise _fits_nowhere(num_patches, rejected or [f"{mode} is for several ranks"])


def decide_in_process(
    costs: Sequence[SegmentCost],
    limit_bytes: Sequence[int],
    *,
    num_patches: int,
    mode: Mode | Literal["auto"] = "auto",
    optimizer_bytes: float = ADAM_BYTES,
    num_pieces: int = 1,
) -> ParallelDecision:
    """As `decide`, for the devices of one process: the first alone, a stage on each, the first with checkpointing.

    Stages come before checkpointing, as the other devices would be idle.

    Args:
        costs: of each segment, for the patches of a whole batch.
        limit_bytes: of each device.
        num_patches: of a batch.
        mode: the only way to consider; "auto" considers all.
        optimizer_bytes: state of the optimizer for each parameter.
        num_pieces: into which a pipeline divides the batch.

    Raises:
        InputError: none of them fits.
    """
    whole, checkpointed = _step_bytes(costs, optimizer_bytes), _checkpointed_bytes(costs, optimizer_bytes)
    rejected: list[str] = []
    if mode in ("auto", "one device"):
        if whole <= limit_bytes[0]:
            return _decision("one device", [whole], limit_bytes[:1], rejected)
        rejected.append(_too_much("one device", [whole], limit_bytes, kind="device"))
    if len(limit_bytes) > 1 and mode in ("auto", "pipeline"):
        chains = [costs] * len(limit_bytes)
        found = _pipelined(chains, limit_bytes, rejected, optimizer_bytes=optimizer_bytes, num_pieces=num_pieces)
        if found is not None:
            return found
    if mode in ("auto", "checkpointing"):
        if checkpointed <= limit_bytes[0]:
            return _decision("checkpointing", [checkpointed], limit_bytes[:1], rejected)
        rejected.append(_too_much("checkpointing", [checkpointed], limit_bytes, kind="device"))
    raise _fits_nowhere(num_patches, rejected or [f"{mode} is for several ranks or devices"])


def decide_by_measurement(
    model: nn.Module,
    sample: torch.Tensor,
    *,
    world: World,
    limit_bytes: int | Sequence[int] | None,
    **options: Unpack[FitOptions],
) -> ParallelDecision:
    """What `decide` says of a model, once one of its patches was measured on each rank. Called by all ranks.

    Arguments as for `auto_parallelize_model`, but `limit_bytes` is that of this rank, or of each device of a process
    alone. The model is left unchanged.
    """
    segments = world.run_on_all(lambda: segments_of(model) if world.place.size > 1 else _segments_or_whole(model))
    with _undisturbed(model, sample.device):
        costs = [_scaled(cost, model, options.get("model_size_mb")) for cost in _measure_on(segments, sample)]
    limit_bytes = free_bytes(sample.device) if limit_bytes is None else limit_bytes
    known: _Known = {
        "num_patches": len(sample),
        "mode": options.get("mode", "auto"),
        "optimizer_bytes": options.get("optimizer_bytes", ADAM_BYTES),
        "num_pieces": min(options.get("num_microbatches", NUM_MICROBATCHES), len(sample)),
    }
    if not isinstance(limit_bytes, int):
        return decide_in_process(costs, limit_bytes, **known)
    gathered = world.gather((costs, limit_bytes))
    return world.run_on_leader(
        lambda: decide([of_rank for of_rank, _ in gathered], [limit for _, limit in gathered], **known)
    )


class _Known(TypedDict):
    num_patches: int
    mode: Mode | Literal["auto"]
    optimizer_bytes: float
    num_pieces: int


def _segments_or_whole(model: nn.Module) -> Sequence[Segment]:
    """A network that cannot be cut is one segment: it may fit the device as it is."""
    try:
        return segments_of(model)
    except InputError:
        return (Segment("replace", model, (model,)),)


@contextmanager
def _undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Within the block, passes leave running statistics and random numbers as they were, and make gradients."""
    before = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        yield
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])


def _measure_on(segments: Sequence[Segment], sample: torch.Tensor) -> list[SegmentCost]:
    """One patch at a time, as a batch may not fit; what it takes grows with the patches."""
    # The first pass also pays for what happens once.
    sample, num = sample.detach(), len(sample)
    measure_segments(segments, sample[:1])
    return [
        replace(
            cost,
            seconds=cost.seconds * num,
            activation_bytes=cost.activation_bytes * num,
            working_bytes=cost.working_bytes * num,
            output_bytes=cost.output_bytes * num,
        )
        for cost in measure_segments(segments, sample[:1])
    ]


def _scaled(cost: SegmentCost, model: nn.Module, model_size_mb: float | None) -> SegmentCost:
    if model_size_mb is None:
        return cost
    factor = model_size_mb * _MEBI / max(1, sum(parameter.nbytes for parameter in model.parameters()))
    return replace(
        cost,
        parameter_bytes=round(cost.parameter_bytes * factor),
        num_parameters=round(cost.num_parameters * factor),
    )


def _state_bytes(costs: Sequence[SegmentCost], optimizer_bytes: float) -> float:
    """Parameters, gradients and the state of the optimizer."""
    return sum(2.0 * cost.parameter_bytes + optimizer_bytes * cost.num_parameters for cost in costs)


def _step_bytes(
    costs: Sequence[SegmentCost], optimizer_bytes: float, *, share: float = 1.0, num_pieces: int = 1
) -> int:
    """The state, the activations of a share of the patches, and what is needed meanwhile for one piece of them."""
    activations = sum(cost.activation_bytes for cost in costs)
    working = max(cost.working_bytes for cost in costs) / num_pieces
    return round(_state_bytes(costs, optimizer_bytes) + share * (activations + working))


def _shard_bytes(costs: Sequence[SegmentCost], optimizer_bytes: float, *, size: int, share: float) -> int:
    """A shard of the state, the largest segment gathered with its gradients, and the activations."""
    gathered = 2 * max(cost.parameter_bytes for cost in costs)
    whole = _step_bytes(costs, optimizer_bytes, share=share) - _state_bytes(costs, optimizer_bytes)
    return round(_state_bytes(costs, optimizer_bytes) / size + gathered + whole)


def _checkpointed_bytes(costs: Sequence[SegmentCost], optimizer_bytes: float, *, share: float = 1.0) -> int:
    """The state, what segments start with, and the activations of the largest."""
    kept = sum(cost.output_bytes for cost in costs)
    kept += max(cost.activation_bytes + cost.working_bytes for cost in costs)
    return round(_state_bytes(costs, optimizer_bytes) + share * kept)


def _decision(
    mode: Mode, needed: Sequence[int], limits: Sequence[int], rejected: Sequence[str], cuts: Sequence[int] = ()
) -> ParallelDecision:
    figures = ", ".join(f"{bytes_text(a)} of {bytes_text(b)}" for a, b in zip(needed, limits, strict=True))
    return ParallelDecision(
        mode=mode,
        predicted_bytes=tuple(needed),
        limit_bytes=tuple(limits),
        reason=f"{mode}: a step takes {figures}" + (f"; {'; '.join(rejected)}" if rejected else ""),
        rejected=tuple(rejected),
        cuts=tuple(cuts),
    )


def _pipelined(
    costs: Sequence[Sequence[SegmentCost]],
    limits: Sequence[int],
    rejected: list[str],
    *,
    optimizer_bytes: float,
    num_pieces: int,
) -> ParallelDecision | None:
    """A stage on each rank or device; None, with the reason in `rejected`, if one does not fit."""
    try:
        # One piece of the batch is computed at a time.
        cuts = cheapest_cuts(
            [[cost.seconds for cost in chain] for chain in costs],
            sizes=[[_step_bytes([cost], optimizer_bytes, num_pieces=num_pieces) for cost in chain] for chain in costs],
            limits=limits,
        )
    except InputError as error:
        rejected.append(f"{error}")
        return None
    bounds = (0, *cuts, len(costs[0]))
    stages = (costs[rank][bounds[rank] : bounds[rank + 1]] for rank in range(len(limits)))
    needed = [_step_bytes(stage, optimizer_bytes, num_pieces=num_pieces) for stage in stages]
    return _decision("pipeline", needed, limits, rejected, cuts)


def _too_much(mode: Mode, needed: Sequence[int], limits: Sequence[int], *, kind: str = "rank") -> str:
    place = next(place for place, (need, limit) in enumerate(zip(needed, limits, strict=False)) if need > limit)
    return f"{mode} would take {bytes_text(needed[place])} on {kind} {place}, which has {bytes_text(limits[place])}"


def _fits_nowhere(num_patches: int, rejected: Sequence[str]) -> InputError:
    return InputError(
        f"parallel: a step on {num_patches} patches does not fit: {'; '.join(rejected)}; use smaller patches, a "
        "smaller batch, narrower network.widths, or more devices"
    )
