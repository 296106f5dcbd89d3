"""Networks of which each rank has only a part: shards of all tensors, or the tensors of a stage."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from voxelocity.parallel.pipeline import RankPipeline
from voxelocity.parallel.segments import segments_of
from voxelocity.parallel.sharding import Named, Sharding
from voxelocity.parallel.whole_loss import Loss
from voxelocity.parallel.world import World


class FullySharded(Sharding):
    """A network whose parameters each rank has a shard of: FSDP2, one segment after the other.

    Arguments as for `Sharding`; the device is that of this rank.
    """

    is_plain = False

    def __init__(self, network: nn.Module, world: World, *, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self._world, self.blank = world, copy.deepcopy(network)
        # Moves one module after the other to the device, where only its shard stays.
        mesh = init_device_mesh(device.type, (world.place.size,))
        # An in-place operation on such a view would lose its gradient; segments only read what others return.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
        for segment in segments_of(network):
            for module in segment.modules:
                if any(True for _ in module.parameters()):
                    fully_shard(module, mesh=mesh)
        fully_shard(network, mesh=mesh)
        self.module = network
        self.own = nn.Module()
        # Pairs of FSDP's tensor and of the shard that it keeps in this process.
        self._sharded: dict[str, tuple[Any, nn.Parameter]] = {}
        for name, value in network.state_dict(keep_vars=True).items():
            own_name = name.replace(".", "/")
            if hasattr(value, "to_local"):
                shard = nn.Parameter(value.detach().to_local())
                self._sharded[own_name] = (value, shard)
                self.own.register_parameter(own_name, shard)
            else:
                self.own.register_buffer(own_name, value)
        self._name_of = {id(shard): name for name, (_, shard) in self._sharded.items()}

    def trained(self) -> list[nn.Parameter | None]:
        assert self.blank is not None
        return [self._sharded[name.replace(".", "/")][1] for name, _ in self.blank.named_parameters()]

    def drop_gradients(self) -> None:
        for whole, shard in self._sharded.values():
            whole.grad = shard.grad = None

    def take_gradients(self) -> None:
        for whole, shard in self._sharded.values():
            if whole.grad is not None:
                shard.grad = whole.grad.to_local()

    def gather_weights(self, weights: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [self._whole(self._name_of[id(weight)], value) for weight, value in zip(weights, values, strict=True)]

    def part(self, weight: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        size = -(-len(whole) // self._world.place.size)
        return whole[size * self._world.place.rank :][: len(weight)]

    def collect(self, values: Named) -> Named:
        return {
            name.replace("/", "."): {key: self._whole(name, value).cpu() for key, value in inner.items()}
            for name, inner in values.items()
        }

    def select(self, values: Mapping[str, Mapping[str, torch.Tensor]]) -> Named:
        found: Named = {}
        for name, inner in values.items():
            own_name = name.replace(".", "/")
            _, shard = self._sharded.get(own_name, (None, None))
            # Copies, as views would keep all of the memory.
            found[own_name] = {
                key: self.part(shard, value).clone() if shard is not None and value.ndim == shard.ndim else value
                for key, value in inner.items()
            }
        return found

    def _whole(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Buffers and counts are the same on all ranks."""
        from torch.distributed.tensor import DTensor

        if name not in self._sharded or value.ndim != self._sharded[name][1].ndim:
            return value
        like, _ = self._sharded[name]
        shaped = DTensor.from_local(
            value, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
        return shaped.full_tensor()


class Pipelined(Sharding):
    """A network of which each rank trains a stage, see `RankPipeline`."""

    is_plain = takes_shares = False
    module: RankPipeline

    def __init__(
        self, network: nn.Module, world: World, *, device: torch.device, cuts: Sequence[int], num_microbatches: int
    ) -> None:
        self._world, self.blank = world, copy.deepcopy(network)
        self.module = RankPipeline(network, world, device=device, cuts=cuts, num_microbatches=num_microbatches)
        self.own = self.module.stage

    def trained(self) -> list[nn.Parameter | None]:
        assert self.blank is not None
        own = {name: tensor for inner, tensor in self.own.named_parameters() for name in self.module.names[inner]}
        return [own.get(name) for name, _ in self.blank.named_parameters()]

    def make_gradients(self, image_bcxyz: torch.Tensor, label: torch.Tensor, loss: Loss) -> torch.Tensor:
        """See `RankPipeline.make_gradients`."""
        return self.module.make_gradients(image_bcxyz, label, loss)

    def collect(self, values: Named) -> Named:
        own = {
            name: {key: value.detach().cpu() for key, value in inner.items()}
            for own_name, inner in values.items()
            for name in self.module.names[own_name]
        }
        return {name: inner for part in self._world.gather(own) for name, inner in part.items()}

    def select(self, values: Mapping[str, Mapping[str, torch.Tensor]]) -> Named:
        return {own_name: dict(values[names[0]]) for own_name, names in self.module.names.items() if names}
