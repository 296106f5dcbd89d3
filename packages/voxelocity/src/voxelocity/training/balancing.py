"""How many patches of each batch a rank takes: as the user set it, or by what its device needs for them.

A measured balance is measured again in each epoch, by the steps themselves, and changes only between two epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import torch

from voxelocity.parallel import World, even_shares, shares_by_time, shares_in_proportion
from voxelocity.step import TrainingStep
from voxelocity.training.session import Session
from voxelocity_observe.core.clock import Clock

_NUM_TRIALS = 3
# A smaller gain may be the noise of a few passes, and equal shares need less memory on the fullest device.
_LEAST_GAIN = 0.1
_MOST_OF_FREE = 0.9


class Balance:
    """The shares of the ranks. Each call is made by all of them, at the same step; what changes is printed.

    Attributes:
        shares: patches of a batch by rank, the same on all ranks.
        is_measured: whether they are adjusted between epochs.
    """

    def __init__(self, session: Session, training: TrainingStep) -> None:
        self._session = session
        size, num_patches = session.world.place.size, session.plan.data.batch_size
        balance, equal = session.plan.parallel.balance, even_shares(num_patches, size)
        self.shares, self.is_measured = equal, False
        self._most: tuple[int, ...] = ()
        self._forward_s, self._num_patches = 0.0, 0
        if size == 1 or num_patches == size or not training.takes_shares:
            return
        machine = session.planned.machine
        if balance in ("auto", "measured") and not training.is_plain:
            return
        if balance == "auto":
            devices = session.world.gather((machine.device_name, machine.device_memory_bytes, machine.num_cpus))
            balance = "measured" if len(set(devices)) > 1 else "equal"
        if balance == "equal":
            return
        if balance == "measured":
            self.is_measured = True
            with session.stage("balance"):
                item_shape = (len(session.spec.channels), *session.plan.data.patch.shape_voxel)
                shares, self._most, reason = measure_shares(
                    session.world, training, equal, item_shape, clock=session.clock
                )
        else:
            shares, reason = shares_in_proportion(num_patches, balance), "as parallel.balance says"
        if shares != equal:
            self._change(shares, reason)

    def count(self, parts: Mapping[str, float], num_steps: int) -> None:
        """Notes seconds of steps with the current shares. In forward passes, ranks do not wait for each other."""
        self._forward_s += parts.get("forward", 0.0)
        self._num_patches += num_steps * self.shares[self._session.world.place.rank]

    def after_epoch(self) -> bool:
        """Whether other shares make a step clearly shorter, judged by the steps counted since the last call."""
        item_s = self._session.world.gather(self._forward_s / max(1, self._num_patches))
        self._forward_s, self._num_patches = 0.0, 0
        if min(item_s) <= 0.0:
            return False
        shares = shares_by_time(sum(self.shares), base_s=[0.0] * len(item_s), item_s=item_s, most=self._most)
        gain = 1.0 - _slowest_s(shares, item_s) / _slowest_s(self.shares, item_s)
        if gain < _LEAST_GAIN:
            return False
        self._change(shares, f"because the slowest rank then takes {gain:.0%} less time for its forward passes")
        return True

    def _change(self, shares: tuple[int, ...], reason: str) -> None:
        self.shares = shares
        self._session.log.write("balance", shares=shares, reason=reason)
        text = f"patches of a batch by rank: {', '.join(map(str, shares))}, {reason}"
        self._session.console.print(text, highlight=False)


def _slowest_s(shares: Sequence[int], item_s: Sequence[float], base_s: Sequence[float] = ()) -> float:
    base_s = base_s or [0.0] * len(shares)
    return float(max(base + share * item for base, share, item in zip(base_s, shares, item_s, strict=True)))


def measure_shares(
    world: World, training: TrainingStep, equal: tuple[int, ...], item_shape: tuple[int, ...], *, clock: Clock
) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """The shares with which the slowest rank ends earliest, if that is clearly earlier than with equal ones.

    Called by all ranks; `item_shape` is that of one patch with its channels.

    Returns:
        The shares; the most patches that each rank has memory for; the reason, "" for equal ones.
    """

    def trials(num_patches: int) -> tuple[float, int]:
        # All ranks at once, as in a step: those of a machine share its cores.
        each = [training.trial((num_patches, *item_shape), clock=clock) for _ in range(_NUM_TRIALS)]
        return median(seconds for seconds, _ in each), max(num_bytes for _, num_bytes in each)

    few, many = 1, max(2, equal[0])
    (few_s, few_bytes), (many_s, many_bytes) = world.run_on_all(lambda: (trials(few), trials(many)))
    item_s = max(1e-9, (many_s - few_s) / (many - few))
    most, item_bytes = sum(equal), (many_bytes - few_bytes) / (many - few)
    if item_bytes > 0:
        most = few + int((_MOST_OF_FREE * _usable_bytes(training.device) - few_bytes) / item_bytes)
    found = world.gather((max(0.0, few_s - few * item_s), item_s, max(1, most)))
    base_s, items_s, limits = zip(*found, strict=True)
    shares = shares_by_time(sum(equal), base_s=base_s, item_s=items_s, most=limits)

    fits = all(share <= limit for share, limit in zip(equal, limits, strict=True))
    gain = 1.0 - _slowest_s(shares, items_s, base_s) / _slowest_s(equal, items_s, base_s)
    if fits and gain < _LEAST_GAIN:
        return equal, limits, ""
    if not fits:
        return shares, limits, "because equal ones do not fit every device"
    return shares, limits, f"because a step then takes {gain:.0%} less time on the slowest rank"


def _usable_bytes(device: torch.device) -> int:
    """Memory of a CUDA device that is free or already held by this process."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
