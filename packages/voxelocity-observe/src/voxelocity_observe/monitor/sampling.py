"""Samples of host and GPUs at an even pace, in their own thread or on request."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.monitor.gpu import GpuSampler
from voxelocity_observe.monitor.host_sampling import HostSampler
from voxelocity_observe.monitor.nvml import GpuName
from voxelocity_observe.monitor.samples import Sample, ThinnedSamples

_LEAST_PERIOD_S, _GREATEST_PERIOD_S = 0.1, 60.0
# Over a shorter time a rate made of 10 ms ticks means nothing.
_LEAST_STRETCH_S = 0.02
# A driver that hangs must not keep the program from ending.
_PATIENCE_S = 5.0


class Sampler:
    """Samples from `start` to `stop`, every `period_s`; usable as a context.

    Ticks lie on a grid: a late one does not delay the next, and missed ones are left out, which `Sample.period_s`
    shows. In memory `ThinnedSamples` keeps a bounded number. You can call `take` at any time in between, from any
    thread.

    Args:
        pid: of the watched program's first process.
        period_s: seconds between two samples, 0.1 to 60.
        on_sample: is called with each sample, in the thread that takes it; an exception ends the sampling.
        max_samples: kept in memory.
        clock: returns seconds.
        make_host: gives the sampler of the host.
        make_gpu: gives the sampler of the GPUs.

    Attributes:
        begin_s: what the clock showed at `start`; `Sample.time_s` counts from there.
        own_cpu_s: CPU seconds that sampling took, `on_sample` included.
        last: the newest sample, as it was taken.

    Raises:
        ConfigError: `period_s` is out of range.
    """

    def __init__(
        self,
        pid: int | None = None,
        *,
        period_s: float = 0.5,
        on_sample: Callable[[Sample], None] | None = None,
        max_samples: int = 8192,
        clock: Clock = system_clock,
        make_host: Callable[[int | None], HostSampler] = HostSampler,
        make_gpu: Callable[[], GpuSampler] = GpuSampler,
    ) -> None:
        self.period_s = checked_period_s(period_s)
        self.begin_s = 0.0
        self.own_cpu_s = 0.0
        self.last: Sample | None = None
        self._pid = pid
        self._on_sample = on_sample
        self._clock = clock
        self._make_host = make_host
        self._make_gpu = make_gpu
        self._host: HostSampler | None = None
        self._gpu: GpuSampler | None = None
        self._thinned = ThinnedSamples(max_samples)
        self._before_s = 0.0
        self._sampling = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure = ""
        self._missing: tuple[str, ...] = ()

    @property
    def samples(self) -> Sequence[Sample]:
        """The kept samples, oldest first."""
        return self._thinned.samples()

    @property
    def missing(self) -> tuple[str, ...]:
        """What could not be sampled so far, and why."""
        if self._host is not None and self._gpu is not None:
            self._missing = (*self._host.missing, *self._gpu.missing)
        return (*self._missing, self._failure) if self._failure else self._missing

    @property
    def gpus(self) -> Sequence[GpuName]:
        """The sampled GPUs; known once `start` was called."""
        return () if self._gpu is None else self._gpu.gpus

    @property
    def elapsed_s(self) -> float:
        """Seconds since `start`."""
        return self._clock() - self.begin_s

    def start(self) -> Self:
        """Notes where all counters stand and begins; the first sample comes a period later."""
        assert self._thread is None, "this sampler was started already"
        cpu_begin_s = time.thread_time()
        self._host, self._gpu = self._make_host(self._pid), self._make_gpu()
        self._host.sample()
        self.begin_s = self._before_s = self._clock()
        self.own_cpu_s += time.thread_time() - cpu_begin_s
        # It must not keep a program alive that forgot to stop it.
        self._thread = threading.Thread(target=self._run, name="voxelocity sampler", daemon=True)
        self._thread.start()
        return self

    def take(self) -> Sample | None:
        """One more sample, now. None if sampling has not begun, has ended or hangs in a driver, or just took one."""
        if self._failure or not self._sampling.acquire(timeout=_PATIENCE_S):
            return None
        try:
            return self._take()
        except Exception as error:
            # A failure here must never reach the watched program; `missing` reports it.
            self._failure = f"samples after {self.elapsed_s:.1f} s: {type(error).__name__}: {error}"
            return None
        finally:
            self._sampling.release()

    def stop(self) -> None:
        """Ends sampling. A second call does nothing."""
        self._stopping.set()
        if self._thread is None or self._host is None or self._gpu is None:
            return
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            self._failure = f"the end: a driver query did not finish within {_PATIENCE_S:g} s"
            return
        self._missing = self.missing[: -1 if self._failure else None]
        self._host.close()
        self._gpu.close()
        self._host = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _run(self) -> None:
        due_s = self.begin_s + self.period_s
        while not self._failure and not self._stopping.wait(max(0.0, due_s - self._clock())):
            self.take()
            due_s = next_tick_s(due_s, self._clock(), self.period_s)

    def _take(self) -> Sample | None:
        if self._host is None or self._gpu is None:
            return None
        cpu_begin_s = time.thread_time()
        now_s = self._clock()
        if now_s - self._before_s < _LEAST_STRETCH_S:
            return None
        host = self._host.sample()
        sample = Sample(
            time_s=now_s - self.begin_s,
            period_s=now_s - self._before_s,
            host=host,
            gpus=self._gpu.sample(self._host.pids),
        )
        self._before_s = now_s
        self.last = sample
        self._thinned.add(sample)
        if self._on_sample is not None:
            self._on_sample(sample)
        self.own_cpu_s += time.thread_time() - cpu_begin_s
        return sample


def checked_period_s(period_s: float) -> float:
    """The period itself.

    Raises:
        ConfigError: it is out of range.
    """
    if not _LEAST_PERIOD_S <= period_s <= _GREATEST_PERIOD_S:
        raise ConfigError(
            f"observe.sampling: a period of {period_s} s is out of range; "
            f"choose {_LEAST_PERIOD_S:g} to {_GREATEST_PERIOD_S:g} s"
        )
    return period_s


def next_tick_s(due_s: float, now_s: float, period_s: float) -> float:
    """The first tick after now on the grid that `due_s` lies on."""
    return due_s + period_s * max(1, math.floor((now_s - due_s) / period_s) + 1)
