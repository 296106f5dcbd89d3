"""Days of samples in bounded memory: when there are many, neighbors become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from voxelocity.observe.samples import GpuSample, HostSample, Sample

# Of memory and counts the maximum matters; everything else is a rate or a level, and averaged over time.
_HIGHEST = {
    "memory_used_bytes",
    "memory_total_bytes",
    "page_cache_bytes",
    "swap_used_bytes",
    "shm_used_bytes",
    "program_memory_bytes",
    "num_processes",
    "num_threads",
    "num_other_processes",
    "power_limit_w",
    "temperature_c",
}
_LOWEST = {"memory_available_bytes"}
_HOST_NAMES = [field.name for field in fields(HostSample) if field.name != "core_shares"]
_GPU_NAMES = [
    field.name
    for field in fields(GpuSample)
    if field.name not in ("index", "slice", "name", "uuid", "throttle_reasons")
]


class ThinnedSamples:
    """Keeps at most `max_samples` samples, evenly over the whole time.

    At `max_samples`, every two neighbors are merged into one and every later sample covers twice as many periods, and
    so on: after n days all samples are equally long, and the highest memory ever seen is still there.
    Not thread-safe.

    Args:
        max_samples: an even number.
    """

    def __init__(self, max_samples: int = 8192) -> None:
        assert max_samples >= 2, f"max_samples {max_samples}"
        assert max_samples % 2 == 0, f"max_samples {max_samples}"
        self._max_samples = max_samples
        self._span = 1
        self._kept: list[Sample] = []
        self._pending: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Takes the next sample, which follows the last in time."""
        self._pending.append(sample)
        if len(self._pending) < self._span:
            return
        self._kept.append(merge_samples(self._pending))
        self._pending = []
        if len(self._kept) == self._max_samples:
            self._kept = [merge_samples(self._kept[i : i + 2]) for i in range(0, self._max_samples, 2)]
            self._span *= 2

    def samples(self) -> list[Sample]:
        """Samples of the whole time up to the last one, oldest first."""
        return [*self._kept, merge_samples(self._pending)] if self._pending else list(self._kept)


def merge_samples(samples: Sequence[Sample]) -> Sample:
    """One sample over the time of several that follow each other.

    Memory, counts and temperature are the highest, available memory the lowest, reasons for throttling all that
    occurred; the rest is the mean over time of what was known.
    """
    if len(samples) == 1:
        return samples[0]
    seconds = [sample.period_s for sample in samples]
    hosts = [sample.host for sample in samples]
    host = HostSample(
        core_shares=_merge_cores([host.core_shares for host in hosts], seconds),
        **{name: _merge(name, [getattr(host, name) for host in hosts], seconds) for name in _HOST_NAMES},
    )
    devices = dict.fromkeys((gpu.index, gpu.slice) for sample in samples for gpu in sample.gpus)
    return Sample(
        time_s=samples[-1].time_s,
        period_s=sum(seconds),
        host=host,
        gpus=tuple(_merge_gpu(samples, device) for device in devices),
    )


def _merge_gpu(samples: Sequence[Sample], device: tuple[int, int | None]) -> GpuSample:
    seen = [(s.period_s, gpu) for s in samples for gpu in s.gpus if (gpu.index, gpu.slice) == device]
    seconds, gpus = [period_s for period_s, _ in seen], [gpu for _, gpu in seen]
    return GpuSample(
        index=gpus[0].index,
        slice=gpus[0].slice,
        name=gpus[0].name,
        uuid=gpus[0].uuid,
        throttle_reasons=tuple(dict.fromkeys(reason for gpu in gpus for reason in gpu.throttle_reasons)),
        **{name: _merge(name, [getattr(gpu, name) for gpu in gpus], seconds) for name in _GPU_NAMES},
    )


def _merge(name: str, values: Sequence[Any], seconds: Sequence[float]) -> Any:
    known = [(value, weight) for value, weight in zip(values, seconds, strict=True) if value is not None]
    if not known:
        return None
    if name in _HIGHEST:
        return max(value for value, _ in known)
    if name in _LOWEST:
        return min(value for value, _ in known)
    total_s = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total_s if total_s > 0 else known[-1][0]


def _merge_cores(shares: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> tuple[float, ...]:
    """Core by core; where cores came or went, those of the last sample."""
    num_cores = len(shares[-1])
    same = [(s, weight) for s, weight in zip(shares, seconds, strict=True) if len(s) == num_cores]
    total_s = sum(weight for _, weight in same)
    if total_s <= 0:
        return shares[-1]
    return tuple(sum(s[core] * weight for s, weight in same) / total_s for core in range(num_cores))
