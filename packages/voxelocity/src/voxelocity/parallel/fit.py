"""How a model fits the devices of its ranks: what it takes is measured, then one way to distribute it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, Unpack

import torch
from torch import nn

from voxelocity.parallel.footprint import SegmentCost, backward, free_bytes, measure_segments, peak_bytes
from voxelocity.parallel.modes import Mode, shard
from voxelocity.parallel.pipeline import PipelineParallelModule, cheapest_cuts
from voxelocity.parallel.segments import Segment, segments_of
from voxelocity.parallel.world import ALONE, World
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.quantities import bytes_text

# AdamW's two moments in float32.
_ADAM_BYTES = 8.0
_MEBI = 1 << 20
_NUM_MICROBATCHES = 8


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
            "pipeline": a stage on each rank.
        predicted_bytes: what a training step takes, by rank.
        limit_bytes: what there is, by rank.
        reason: in one sentence, with the figures that decided.
        rejected: for each simpler way, why it was not chosen.
        cuts: of a pipeline.
        measured_bytes: what a step of the result took, by rank; empty if it was not tried.
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
    optimizer_bytes: float = _ADAM_BYTES,
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
        try:
            # One piece of the batch is computed at a time.
            cuts = cheapest_cuts(
                [[cost.seconds for cost in chain] for chain in costs],
                sizes=[
                    [_step_bytes([cost], optimizer_bytes, num_pieces=num_pieces) for cost in chain] for chain in costs
                ],
                limits=limit_bytes,
            )
        except InputError as error:
            rejected.append(f"{error}")
        else:
            bounds = (0, *cuts, len(costs[0]))
            stages = (costs[rank][bounds[rank] : bounds[rank + 1]] for rank in range(size))
            needed = [_step_bytes(stage, optimizer_bytes, num_pieces=num_pieces) for stage in stages]
            return _decision("pipeline", needed, limit_bytes, rejected, cuts)
    why_not = "; ".join(rejected) or f"{mode} is for several ranks"
    raise InputError(
        f"parallel: a step on {num_patches} patches does not fit: {why_not}; use smaller patches, a "
        "smaller batch, narrower network.widths, or more devices"
    )


def decide_by_measurement(
    model: nn.Module,
    sample: torch.Tensor,
    *,
    world: World,
    limit_bytes: int | None,
    **options: Unpack[FitOptions],
) -> ParallelDecision:
    """What `decide` says of a model, once one of its patches was measured on each rank. Called by all ranks.

    Arguments as for `auto_parallelize_model`, but `limit_bytes` is that of this rank. The model is left unchanged.
    """
    segments = world.run_on_all(lambda: segments_of(model))
    costs = [_scaled(cost, model, options.get("model_size_mb")) for cost in _measure_on(segments, sample)]
    limit_bytes = free_bytes(sample.device) if limit_bytes is None else limit_bytes
    gathered = world.gather((costs, limit_bytes))
    return world.run_on_leader(
        lambda: decide(
            [of_rank for of_rank, _ in gathered],
            [limit for _, limit in gathered],
            num_patches=len(sample),
            mode=options.get("mode", "auto"),
            optimizer_bytes=options.get("optimizer_bytes", _ADAM_BYTES),
            num_pieces=min(options.get("num_microbatches", _NUM_MICROBATCHES), len(sample)),
        )
    )


def auto_parallelize_model(
    model: nn.Module,
    sample: torch.Tensor,
    *,
    world: World = ALONE,
    devices: Sequence[int] | None = None,
    verify: bool = True,
    **options: Unpack[FitOptions],
) -> tuple[nn.Module, ParallelDecision]:
    """The model distributed over the ranks in the simplest way that fits, and what decided. Called by all ranks.

    Args:
        model: equal on all ranks; `segments_of` says which can be cut.
        sample: (b, c, x, y, z), a whole batch, on the device of this rank.
        world: the ranks.
        devices: bytes that each rank may use; what is free on its device if not given.
        verify: whether to run one step of the result, on the sample, and measure what it takes.
        options: see `FitOptions`.

    Returns:
        The model as DDP, FSDP2, with checkpointing, as a `PipelineParallelModule` or unchanged, on the device of the
        sample; and the decision.

    Raises:
        InputError: the model cannot be cut, or fits in no way.
    """
    decision = decide_by_measurement(
        model,
        sample,
        world=world,
        limit_bytes=None if devices is None else int(devices[world.place.rank]),
        **options,
    )
    num_microbatches = options.get("num_microbatches", _NUM_MICROBATCHES)
    result = shard(
        model, world, decision.mode, device=sample.device, cuts=decision.cuts, num_microbatches=num_microbatches
    ).module
    if not verify:
        return result, decision
    measured = tuple(world.gather(_try_step(result, sample, world, options.get("optimizer_bytes", _ADAM_BYTES))))
    return result, replace(decision, measured_bytes=measured)


def _measure_on(segments: Sequence[Segment], sample: torch.Tensor) -> list[SegmentCost]:
    """One patch at a time, as a batch may not fit; what it takes grows with the patches."""
    # The first pass also pays for what happens once.
    measure_segments(segments, sample[:1])
    num = len(sample)
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


def _checkpointed_bytes(costs: Sequence[SegmentCost], optimizer_bytes: float, *, share: float) -> int:
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


def _too_much(mode: Mode, needed: Sequence[int], limits: Sequence[int]) -> str:
    rank = next(rank for rank, (need, limit) in enumerate(zip(needed, limits, strict=True)) if need > limit)
    return f"{mode} would take {bytes_text(needed[rank])} on rank {rank}, which has {bytes_text(limits[rank])}"


def _try_step(model: nn.Module, sample: torch.Tensor, world: World, optimizer_bytes: float) -> int:
    """Bytes of a step on this rank; those of the optimizer's state are computed."""
    size, rank = world.place.size, world.place.rank
    parameters = list(model.parameters())

    def step() -> None:
        if isinstance(model, PipelineParallelModule):
            model.make_gradients(sample, torch.zeros(0), lambda logits, _: logits.float().mean())
        else:
            share = -(-len(sample) // size)
            part = sample[rank * share : (rank + 1) * share]
            # A rank without patches still takes part in the exchange.
            backward((model(part if len(part) else sample[:1]),))
        for parameter in parameters:
            parameter.grad = None

    # The first also does what happens once.
    step()
    with peak_bytes(sample.device) as peak:
        step()
    local = [_local(parameter) for parameter in parameters]
    return round(peak() + sum(tensor.nbytes + optimizer_bytes * tensor.numel() for tensor in local))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a tensor that FSDP distributes."""
    to_local: Callable[[], torch.Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
