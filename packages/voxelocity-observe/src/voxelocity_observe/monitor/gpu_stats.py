"""`GPUStats`, the monitor under the names that CUDA-optimized TractoDiff gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from voxelocity_observe.monitor.monitor import Monitor
from voxelocity_observe.monitor.sampling import checked_period_s


class GPUStats(Monitor):
    """A `Monitor`, whose methods are there too.

    Args:
        log_dir: the folder of the record.
        options: as `Monitor` takes them.
    """

    def __init__(self, log_dir: str | Path = "gpu_logs", **options: Any) -> None:
        super().__init__(log_dir, **options)

    def start_monitoring(self, interval: float | None = None) -> Self:
        """`Monitor.start`.

        Args:
            interval: seconds between two samples; `period_s` if not given.
        """
        if interval is not None:
            self.period_s = checked_period_s(interval)
        return self.start()

    stop_monitoring = Monitor.stop
    plot_stats = Monitor.plot
