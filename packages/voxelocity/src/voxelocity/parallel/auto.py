"""A model distributed over the ranks or the devices of one process, in the simplest way that fits."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import nn

from voxelocity.parallel.fit import (
    ADAM_BYTES,
    NUM_MICROBATCHES,
    FitOptions,
    ParallelDecision,
    decide_by_measurement,
)
from voxelocity.parallel.footprint import backward, free_bytes, peak_bytes, process_devices
from voxelocity.parallel.modes import shard
from voxelocity.parallel.pipeline import PipelineParallelModule
from voxelocity.parallel.segments import WrappedNetwork, segments_of
from voxelocity.parallel.world import ALONE, World
from voxelocity_observe.core.errors import InputError


def auto_parallelize_model(
    model: nn.Module,
    sample: torch.Tensor | None = None,
    *,
    world: World = ALONE,
    devices: Sequence[int] | None = None,
    verify: bool = True,
    **options: Unpack[FitOptions],
) -> nn.Module:
    """The model distributed in the simplest way that fits; its `parallel_decision` says how, and why.

    One process uses its devices: the one of the sample if a step fits there, else a stage on each GPU, else
    checkpointing. Ranks share the work in the ways of `decide`; all of them call this.

    Args:
        model: equal on all ranks; `segments_of` says which can be cut. In one process, others may fit uncut.
        sample: (b, c, x, y, z), a whole batch, on the device of this rank. Without it, the first call decides by what
            it passes; parameters stay the same objects, so the optimizer may be made before.
        world: the ranks.
        devices: bytes that each rank may use, or each device of this process; what is free there if not given. More of
            them than the process has devices stand for parts of its last.
        verify: whether to run one step of the result, on the sample, and measure what it takes.
        options: see `FitOptions`.

    Returns:
        The model as DDP, FSDP2, with checkpointing, as a `PipelineParallelModule` or unchanged, on the device of the
        sample; without a sample, a `DecidedAtFirstCall`.

    Raises:
        InputError: the model cannot be cut, or fits in no way.
    """
    if sample is None:
        return DecidedAtFirstCall(model, world=world, devices=devices, **options)
    result, decision = _distribute(model, sample, world=world, devices=devices, **options)
    if verify:
        measured = world.gather(_try_step(result, sample, world, options.get("optimizer_bytes", ADAM_BYTES)))
        decision = replace(decision, measured_bytes=tuple(measured))
    result.parallel_decision = decision  # type: ignore[assignment]  # torch expects tensors and modules
    return result


class DecidedAtFirstCall(WrappedNetwork):
    """A model that is distributed by what its first call passes. Attributes that it lacks are those of the model.

    Arguments as for `auto_parallelize_model`.

    Attributes:
        network: the model.
        parallel_decision: see `ParallelDecision`; None before the first call.
    """

    def __init__(
        self, network: nn.Module, *, world: World, devices: Sequence[int] | None, **options: Unpack[FitOptions]
    ) -> None:
        super().__init__(network)
        self._known = (world, devices, options)
        self.parallel_decision: ParallelDecision | None = None
        # Not a module of this one: its parameters are those of the network.
        self._distributed: tuple[nn.Module, ...] = ()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the model returns.

        Raises:
            InputError: at the first call, as `auto_parallelize_model` does; or a way was chosen whose ranks hold parts
                of the parameters.
        """
        if self.parallel_decision is None:
            self._decide(inputs, named)
        way = self._distributed[0] if self._distributed else self.network
        return way(*inputs, **named)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or "network" not in self.__dict__.get("_modules", {}):
                raise
            return getattr(self.network, name)

    def _decide(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        world, devices, options = self._known
        sample = inputs[0] if len(inputs) == 1 and not named else None
        if not isinstance(sample, torch.Tensor) or not _returns_a_tensor(self.network, sample):
            if not world.is_alone:
                raise InputError("parallel: a model on several ranks takes one tensor and returns one; give a sample")
            self.parallel_decision = ParallelDecision(
                mode="one device", predicted_bytes=(), limit_bytes=(),
                reason="one device: a model that takes or returns more than one tensor is neither measured nor split",
            )  # fmt: skip
            return
        try:
            result, decision = _distribute(
                self.network, sample, world=world, devices=devices, is_in_place=True, **options
            )
        except InputError as error:
            stated_mb = options.pop("model_size_mb", None)
            if stated_mb is None or not world.is_alone:
                raise
            # Guides state a size that is not that of the reader's model.
            warnings.warn(
                f"parallel: model_size_mb={stated_mb:g} would not fit ({error}); the measured size is used",
                UserWarning,
                stacklevel=4,
            )
            result, decision = _distribute(
                self.network, sample, world=world, devices=devices, is_in_place=True, **options
            )
        self._distributed = () if result is self.network else (result,)
        self.parallel_decision = decision


def _distribute(
    model: nn.Module,
    sample: torch.Tensor,
    *,
    world: World,
    devices: Sequence[int] | None,
    is_in_place: bool = False,
    **options: Unpack[FitOptions],
) -> tuple[nn.Module, ParallelDecision]:
    """The model as it was decided. `is_in_place`: each rank must keep all parameters."""
    places = process_devices(sample.device) if world.is_alone else (sample.device,)
    limits: int | Sequence[int] | None = None
    if world.is_alone:
        limits = [free_bytes(place) for place in places] if devices is None else [int(limit) for limit in devices]
        places = tuple(places[min(number, len(places) - 1)] for number in range(len(limits)))
    elif devices is not None:
        limits = int(devices[world.place.rank])
    decision = decide_by_measurement(model, sample, world=world, limit_bytes=limits, **options)
    if is_in_place and not world.is_alone and decision.mode in ("fsdp", "pipeline"):
        raise InputError(
            f"parallel: {decision.reason}. Then each rank holds a part of the parameters, which must happen before "
            "the optimizer is created: give auto_parallelize_model a sample"
        )
    num_microbatches = options.get("num_microbatches", NUM_MICROBATCHES)
    if world.is_alone and decision.mode == "pipeline":
        return PipelineParallelModule(
            model, device=places, cuts=decision.cuts, num_microbatches=num_microbatches
        ), decision
    sharding = shard(
        model, world, decision.mode, device=sample.device, cuts=decision.cuts, num_microbatches=num_microbatches
    )
    return sharding.module, decision


def _returns_a_tensor(model: nn.Module, sample: torch.Tensor) -> bool:
    """Tried with one patch, where the model is; a network that can be cut returns one."""
    with contextlib.suppress(InputError):
        segments_of(model)
        return True
    modes = [(module, module.training) for module in model.modules()]
    device = next((parameter.device for parameter in model.parameters()), sample.device)
    with torch.no_grad():
        made = model.eval()(sample[:1].to(device))
    for module, is_training in modes:
        module.training = is_training
    return isinstance(made, torch.Tensor)


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
