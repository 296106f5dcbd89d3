"""How many patches of each batch a rank takes: as the user set it, or by what its device needs for them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import torch

from voxelocity.parallel import even_shares, shares_by_time, shares_in_proportion
from voxelocity.step import TrainingStep
from voxelocity.training.session import Session

_NUM_TRIALS = 3
# A smaller gain may be the noise of a few passes, and equal shares need less memory on the fullest device.
_LEAST_GAIN = 0.1
_MOST_OF_FREE = 0.9


def batch_shares(session: Session, training: TrainingStep) -> tuple[int, ...]:
    """Patches of a batch by rank, the same on all ranks; says so if they are not equal."""
    size, num_patches = session.world.place.size, session.plan.data.batch_size
    balance, equal = session.plan.parallel.balance, even_shares(num_patches, size)
    if size == 1 or num_patches == size:
        return equal
    machine = session.planned.machine
    if balance == "auto":
        devices = session.world.gather((machine.device_name, machine.device_memory_bytes, machine.num_cpus))
        balance = "measured" if len(set(devices)) > 1 else "equal"
    if balance == "equal":
        return equal
    if balance == "measured":
        with session.stage("balance"):
            shares, reason = _measured_shares(session, training, equal)
    else:
        shares, reason = shares_in_proportion(num_patches, balance), "as parallel.balance says"
    if shares != equal:
        session.log.write("balance", shares=shares, reason=reason)
        session.console.print(f"patches of a batch by rank: {', '.join(map(str, shares))}, {reason}", highlight=False)
    return shares


def _measured_shares(session: Session, training: TrainingStep, equal: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """The shares with which the slowest rank ends earliest, if that is clearly earlier than with equal ones."""
    patch, channels = session.plan.data.patch.shape_voxel, len(session.spec.channels)

    def trials(num_patches: int) -> tuple[float, int]:
        # All ranks at once, as in a step: those of a machine share its cores.
        each = [training.trial((num_patches, channels, *patch), clock=session.clock) for _ in range(_NUM_TRIALS)]
        return median(seconds for seconds, _ in each), max(num_bytes for _, num_bytes in each)

    few, many = 1, max(2, equal[0])
    (few_s, few_bytes), (many_s, many_bytes) = session.world.all_succeed(lambda: (trials(few), trials(many)))
    item_s = max(1e-9, (many_s - few_s) / (many - few))
    most, item_bytes = sum(equal), (many_bytes - few_bytes) / (many - few)
    if item_bytes > 0:
        most = few + int((_MOST_OF_FREE * _room_bytes(session.device) - few_bytes) / item_bytes)
    found = session.world.gather((max(0.0, few_s - few * item_s), item_s, max(1, most)))
    base_s, items_s, limits = zip(*found, strict=True)
    shares = shares_by_time(sum(equal), base_s=base_s, item_s=items_s, most=limits)

    def slowest_s(shares: Sequence[int]) -> float:
        return float(max(base + each * item for base, each, item in zip(base_s, shares, items_s, strict=True)))

    fits = all(each <= limit for each, limit in zip(equal, limits, strict=True))
    gain = 1.0 - slowest_s(shares) / slowest_s(equal)
    if fits and gain < _LEAST_GAIN:
        return equal, ""
    if not fits:
        return shares, "as equal ones do not fit every device"
    return shares, f"as a step then takes {gain:.0%} less time on the slowest rank"


def _room_bytes(device: torch.device) -> int:
    """Memory of a CUDA device that is free or already held by this process."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
