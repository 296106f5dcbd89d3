"""The processes that train one network together, and what they exchange, on torch.distributed."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from voxelocity.parallel.watchdog import Watchdog
from voxelocity_observe.core.errors import ConfigError, RankLostError, VoxelocityError
from voxelocity_observe.core.host import cpu_budget
from voxelocity_observe.core.place import Place, read_place
from voxelocity_observe.spans import span

_T = TypeVar("_T")
# Longer than any wait of one rank for another: preparing a large case, or planning, while the others wait.
_TIMEOUT = timedelta(minutes=30)
_LET_GO_S = 0.1
# gloo raises these itself, as a plain RuntimeError.
_GLOO_WORDS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


@dataclass(eq=False)
class World:
    """The ranks of a training. Each call of a method is made by all of them, in the same order.

    In a world of one, nothing is exchanged. If another rank has ended, the block of `join_world` ends in a
    RankLostError. If it hangs, this process ends with a message.

    Attributes:
        place: of this process.
        watchdog: that notices ranks which hang.
    """

    place: Place = field(default_factory=Place)
    watchdog: Watchdog | None = None

    @property
    def is_alone(self) -> bool:
        return self.place.is_alone

    @property
    def is_leader(self) -> bool:
        """Whether this is the one rank that decides, writes and prints."""
        return self.place.rank == 0

    def from_leader(self, value: _T) -> _T:
        """The leader's value, on every rank."""
        if self.is_alone:
            return value
        self.advance()
        carried = [value]
        dist.broadcast_object_list(carried, src=0)
        return carried[0]

    def tensor_from_leader(self, values: torch.Tensor) -> torch.Tensor:
        """The leader's values, written into the tensor of each rank, which has their shape and type."""
        if not self.is_alone:
            self.advance()
            dist.broadcast(values, src=0)
        return values

    def gather(self, value: _T) -> list[_T]:
        """The values of all ranks, by rank, on every rank."""
        if self.is_alone:
            return [value]
        self.advance()
        values: list[Any] = [None] * self.place.size
        dist.all_gather_object(values, value)
        return values

    def agree(self, values: Sequence[float], *, flag: bool = False) -> tuple[list[float], bool]:
        """The leader's values, and whether any rank raises its flag. Does not wait for a GPU."""
        if self.is_alone:
            return list(values), flag
        own = [*(values if self.is_leader else [0.0] * len(values)), float(flag)]
        total = torch.tensor(own, dtype=torch.float64)
        self._add_up(total)
        *agreed, flags = total.tolist()
        return agreed, flags > 0.0

    def _add_up(self, values: torch.Tensor) -> None:
        """Replaces the values by their sum over the ranks. Those on a GPU are waited for by its queue alone."""
        self.advance()
        dist.all_reduce(values)

    def advance(self) -> None:
        """This rank has come to another place in the code, and what comes next may wait for the others."""
        if self.watchdog is not None:
            self.watchdog.advance()

    def set_silence(self, silence_s: float) -> None:
        """A rank that gives no sign of life for this long counts as stopped."""
        if self.watchdog is not None:
            self.watchdog.silence_s = silence_s

    @contextlib.contextmanager
    def limit_waiting(self, limit_s: float, *, idle_limit_s: float = math.inf) -> Iterator[None]:
        """Within the block, a rank that this one waits for longer counts as hanging.

        Args:
            limit_s: for any rank.
            idle_limit_s: for one that neither computes nor waits for a disk meanwhile.
        """
        if self.watchdog is None:
            yield
            return
        before = self.watchdog.limit(limit_s, idle_limit_s)
        try:
            yield
        finally:
            self.watchdog.limit(*before)

    def run_on_leader(self, work: Callable[[], _T]) -> _T:
        """What `work` returns on the leader, which alone does it, on every rank.

        Raises:
            BaseException: what `work` raised, on the leader.
            RankLostError: on the other ranks in that case.
        """
        if self.is_alone:
            return work()
        made: tuple[_T] | None = None
        try:
            made = (work(),) if self.is_leader else None
        finally:
            # Also if the work failed: the others wait for it.
            received = self.from_leader(made)
        if received is None:
            raise RankLostError("parallel: rank 0 failed; see its own message")
        return received[0]

    def run_on_all(self, work: Callable[[], _T]) -> _T:
        """What `work` returns on this rank, once it has succeeded on all of them.

        Raises:
            Exception: what `work` raised, on the first rank on which it failed.
            RankLostError: on the other ranks in that case.
        """
        if self.is_alone:
            return work()
        made: tuple[_T] | None = None
        failure: Exception | None = None
        try:
            made = (work(),)
        except Exception as error:  # raised below, whatever it is
            failure = error
        succeeded = self.gather(made is not None)
        if failure is not None and all(succeeded[: self.place.rank]):
            raise failure
        if made is None or not all(succeeded):
            raise RankLostError(f"parallel: rank {succeeded.index(False)} failed; see its own message")
        return made[0]

    def together(self, work: Callable[[], _T]) -> list[_T]:
        """What `work` returns on each rank, by rank, on every rank. Errors as `run_on_all`."""
        return self.gather(self.run_on_all(work))

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks. The gradient of a mean over ranks, as DDP takes it, is that of the sum.

        Every rank must then compute the same loss from the sum; each then back-propagates through its own part.
        """
        return values if self.is_alone else _Total.apply(values, self)  # type: ignore[no-untyped-call]

    def wrap_network(self, network: torch.nn.Module, *, bucket_mb: float) -> torch.nn.Module:
        """The network, whose backward pass averages gradients over the ranks while it still computes others."""
        if self.is_alone:
            return network
        device = next(network.parameters()).device
        return torch.nn.parallel.DistributedDataParallel(
            network,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=bucket_mb,
            gradient_as_bucket_view=True,
        )


ALONE = World()


class _Total(torch.autograd.Function):
    """All-reduce whose backward pass needs no exchange."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, world: World) -> torch.Tensor:
        context.size = world.place.size
        total = values.clone()
        # Each rank waits here for the slowest.
        with span("exchange", color="tomato"):
            world._add_up(total)
        return total

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        # DDP divides the sum of the ranks' gradients by their number.
        return gradients[0] * context.size, None


def _is_lost(error: Exception) -> bool:
    return isinstance(error, dist.DistError) or any(word in str(error) for word in _GLOO_WORDS)


@contextlib.contextmanager
def _watch(place: Place) -> Iterator[World]:
    # torch has no public name for the store at which the ranks have met.
    with Watchdog(distributed_c10d._get_default_store(), place.rank, place.size) as watchdog:
        yield World(place, watchdog)


def _meet(place: Place, *, uses_gpu: bool, timeout: timedelta) -> None:
    """Forms the group of all ranks; errors as `join_world`."""
    if uses_gpu:
        num_gpus = torch.cuda.device_count()
        if place.local_rank >= num_gpus:
            raise ConfigError(
                f"parallel: {place.local_size} ranks on a machine with {num_gpus} GPUs; start one rank for each "
                "GPU, or train on CPUs with --device cpu"
            )
        torch.cuda.set_device(place.local_rank)
    # The store of the ranks writes its stack to the terminal when the process that holds it ends.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    host, port = place.address
    if host:
        os.environ.setdefault("MASTER_ADDR", host)
        os.environ.setdefault("MASTER_PORT", str(port))
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if uses_gpu else "gloo", rank=place.rank, world_size=place.size, timeout=timeout
        )
    except (dist.DistError, RuntimeError, ValueError) as error:
        said = str(error).partition("\n")[0]
        where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
        raise RankLostError(
            f"parallel: rank {place.rank} of {place.size} cannot reach rank 0 at {where} ({said}); check that the "
            "machines can connect to each other there"
        ) from None


@contextlib.contextmanager
def one_group(place: Place | None = None, *, uses_gpu: bool = False, timeout: timedelta = _TIMEOUT) -> Iterator[None]:
    """Within the block, `join_world` can be entered several times: ranks find each other only once in a process.

    Arguments and errors as `join_world`.
    """
    place = read_place() if place is None else place
    # A program that joined its ranks itself keeps its own group.
    if place.is_alone or dist.is_initialized():
        yield
        return
    _meet(place, uses_gpu=uses_gpu, timeout=timeout)
    # torchrun gives each rank one thread, other launchers all cores.
    torch.set_num_threads(cpu_budget())
    try:
        yield
        # gloo's threads hold the tensors of the last exchange for a moment. One that lets go of them while Python ends
        # aborts the process (pytorch/pytorch#179291). They end with the group, unless something still refers to it.
        gc.collect()
    finally:
        dist.destroy_process_group()
        time.sleep(_LET_GO_S)


@contextlib.contextmanager
def join_world(place: Place | None = None, *, uses_gpu: bool = False, timeout: timedelta = _TIMEOUT) -> Iterator[World]:
    """The world of this process within the block; waits for all of its ranks.

    Each rank takes the GPU of its number on its machine, and its share of the cores.

    Args:
        place: of this process; from the launcher's environment if not given.
        uses_gpu: whether tensors on GPUs are exchanged.
        timeout: after which an exchange fails in which a rank waits for another.

    Raises:
        ConfigError: the environment says something impossible, or there are fewer GPUs than ranks.
        RankLostError: the others cannot be reached.
    """
    place = read_place() if place is None else place
    if place.is_alone:
        yield World(place)
        return
    with one_group(place, uses_gpu=uses_gpu, timeout=timeout):
        try:
            with _watch(place) as world:
                yield world
        except VoxelocityError:
            raise
        except Exception as error:  # whatever it is, it is raised again, or another rank has raised it
            if not isinstance(error, RuntimeError) or not _is_lost(error):
                error.add_note(f"raised on rank {place.rank} of {place.size}")
                raise
            # gloo's words would only lead away from the cause.
            raise RankLostError("parallel: another rank has ended; see its own message") from None
