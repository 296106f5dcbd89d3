"""How many accelerators a feed could keep busy, without any: MLPerf Storage's rule for its 3-D U-Net.

An accelerator is a pause of the length its training step would have. It counts as kept busy where it pauses for at
least 90 % of the time, the rest being spent waiting for data. Source: MLPerf Storage v1.0 rules, workload unet3d.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from voxelocity.bench.stream import OpenStream
from voxelocity.observe import Clock, system_clock

_MAX_TRIALS = 12
_HOPELESS = 0.5
"""Where a feed's full rate is half of what one accelerator needs, none is tried."""


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One emulated accelerator. MLPerf's H100 takes a batch of 7 in 0.323 s."""

    batch_size: int = 7
    step_s: float = 0.323
    busy_share: float = 0.9


def busy_share(
    open_stream: OpenStream,
    accelerator: Accelerator,
    count: int,
    *,
    trial_s: float,
    min_batches: int = 8,
    clock: Clock = system_clock,
    pause: Callable[[float], None] = time.sleep,
) -> float:
    """Share of the time for which `count` accelerators on one feed are busy, taken in turn.

    They are one consumer that takes a batch and then pauses for the count-th part of a step: as many batches a second
    as that many accelerators side by side, without their threads.

    Args:
        open_stream: batches of `accelerator.batch_size`.
        accelerator: what is emulated.
        count: how many of them, at least 1.
        trial_s: for how long at least.
        min_batches: how many batches at least; must be well above what the feed makes ahead.
        clock: tells seconds.
        pause: waits so many seconds.
    """
    each_s = accelerator.step_s / count
    taken = 0
    with open_stream() as stream:
        next(stream)
        start_s = now_s = clock()
        while taken < min_batches or now_s - start_s < trial_s:
            pause(each_s)
            next(stream)
            taken += 1
            now_s = clock()
    return taken * each_s / (now_s - start_s)


def most_kept_busy(
    open_stream: OpenStream,
    accelerator: Accelerator,
    *,
    batches_per_s: float,
    trial_s: float,
    min_batches: int = 8,
    clock: Clock = system_clock,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """The largest number of accelerators that this feed keeps busy; 0 where it cannot feed one.

    Args:
        open_stream: as in `busy_share`.
        accelerator: what is emulated.
        batches_per_s: the feed's rate without pauses, from which the search begins.
        trial_s: for each number that is tried.
        min_batches: for each number that is tried.
        clock: tells seconds.
        pause: waits so many seconds.
    """

    def is_enough(count: int) -> bool:
        share = busy_share(
            open_stream, accelerator, count, trial_s=trial_s, min_batches=min_batches, clock=clock, pause=pause
        )
        return share >= accelerator.busy_share

    could_feed = batches_per_s * accelerator.step_s / accelerator.busy_share
    if could_feed < _HOPELESS:
        return 0
    count = max(1, int(could_feed))
    grows = is_enough(count)
    for _ in range(_MAX_TRIALS):
        if not grows and count == 1:
            return 0
        count += 1 if grows else -1
        if is_enough(count) != grows:
            return count - 1 if grows else count
    return count
