"""Whether a rank that others wait for still does something: what tells a slow one from one that hangs."""

from __future__ import annotations

import contextlib

import psutil

from voxelocity.observe import Clock, system_clock

# Of one core. Threads that only look after a training, such as the watchdog's, take less.
_BUSY_SHARE = 0.1


class Idleness:
    """Seconds since this process last did something: it or one it has started computed, or waited for a disk.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """It counts from now on."""
        self._busy_s = self._seen_s = self._clock()
        self._cpu_s: float | None = None

    def seconds(self) -> float:
        """Call it about once a second."""
        now_s, before_s = self._clock(), self._cpu_s
        self._cpu_s, waits_for_disk = _cpu_and_disk()
        is_busy = before_s is None or self._cpu_s - before_s > _BUSY_SHARE * (now_s - self._seen_s)
        self._seen_s = now_s
        if is_busy or waits_for_disk:
            self._busy_s = now_s
        return now_s - self._busy_s


def _cpu_and_disk() -> tuple[float, bool]:
    """CPU seconds of this process and those it has started, and whether the first thread of one waits for a disk."""
    process, cpu_s, waits_for_disk = psutil.Process(), 0.0, False
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = one.cpu_times()
            # Children that have ended count for their parent.
            cpu_s += times.user + times.system + times.children_user + times.children_system
            waits_for_disk = waits_for_disk or one.status() == psutil.STATUS_DISK_SLEEP
    return cpu_s, waits_for_disk
