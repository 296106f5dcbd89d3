"""The ways to distribute a network over ranks, and the network as each of them has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from voxelocity.parallel.segments import SegmentedNetwork, Stack
from voxelocity.parallel.sharding import Sharding
from voxelocity.parallel.world import World

Mode = Literal["one device", "ddp", "fsdp", "checkpointing", "pipeline"]


class CheckpointedSegments(SegmentedNetwork):
    """A network whose segments keep only what they start with and are computed again for the backward pass."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        # Refuses a network that cannot be cut.
        assert self.segments

    def forward(self, image_bcxyz: torch.Tensor) -> torch.Tensor:
        stack: Stack = (image_bcxyz,)
        for segment in self.segments:
            stack = replace(segment, run=partial(checkpoint, segment.run, use_reentrant=False))(stack)
        return stack[0]


def shard(
    network: nn.Module,
    world: World,
    mode: Mode,
    *,
    device: torch.device,
    cuts: Sequence[int] = (),
    num_microbatches: int = 8,
    bucket_mb: float = 25.0,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Sharding:
    """Places a network on the devices of its ranks.

    Args:
        network: equal on all ranks.
        world: the ranks.
        mode: see `ParallelDecision`.
        device: of this rank.
        cuts: of a pipeline.
        num_microbatches: of a pipeline.
        bucket_mb: of gradients that copies exchange at once.
        memory_format: of the weights; FSDP2 shards only contiguous ones.
    """
    # Importing them takes seconds.
    if mode == "fsdp":
        from voxelocity.parallel.distributed import FullySharded

        return FullySharded(network, world, device=device)
    if mode == "pipeline":
        from voxelocity.parallel.distributed import Pipelined

        network = _set_memory_format(network, memory_format)
        return Pipelined(network, world, device=device, cuts=cuts, num_microbatches=num_microbatches)
    network = _set_memory_format(network.to(device), memory_format)
    computed = CheckpointedSegments(network) if mode == "checkpointing" else None
    return Sharding(network, world, bucket_mb=bucket_mb, computed=computed)


def _set_memory_format(network: nn.Module, memory_format: torch.memory_format) -> nn.Module:
    to: Callable[..., nn.Module] = network.to
    return to(memory_format=memory_format)
