"""What a machine was doing at one moment, as plain records; days of them in bounded memory, and among a run's events.

None stands for what could not be read.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from voxelocity_observe.core.events import EventLog
from voxelocity_observe.core.plain import record_of

# A run of a week has about 5,000 samples: one in 10 s for the first three hours, then each 0.1 % of its time.
_SHARE_OF_TIME = 0.001


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU, or one slice of it (MIG), at one moment; rates cover the period before.

    Attributes:
        index: of the device; `slice` is the number of its slice, None for the whole.
        busy_share: time in which a kernel ran (what NVML calls utilization), 0 to 1.
        memory_busy_share: time in which its memory was read or written, 0 to 1.
        program_memory_bytes: of the watched program's processes.
        num_other_processes: programs on the device that are not the watched one.
        throttle_reasons: why its clocks are held back, as NVML names them.
    """

    index: int
    slice: int | None = None
    name: str = ""
    uuid: str = ""
    busy_share: float | None = None
    memory_busy_share: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    program_memory_bytes: int | None = None
    num_other_processes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    pcie_receive_bytes_per_s: float | None = None
    pcie_send_bytes_per_s: float | None = None
    throttle_reasons: tuple[str, ...] = ()

    @property
    def memory_ratio(self) -> float | None:
        """Used memory as a share of all, 0 to 1."""
        if self.memory_used_bytes is None or not self.memory_total_bytes:
            return None
        return self.memory_used_bytes / self.memory_total_bytes


@dataclass(frozen=True, kw_only=True)
class RankSample:
    """One rank of the watched program, with the processes it has started.

    Attributes:
        cores: CPU time over the period before, in cores.
        memory_bytes: resident; what processes share counts once, for one of them.
    """

    rank: int
    cores: float
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class HostSample:
    """The host at one moment; rates cover the period before.

    Attributes:
        core_shares: busy share of each core of the machine, 0 to 1.
        throttled_share: of the period in which the control group was held back by its quota.
        memory_used_bytes: of the machine or the control group, without pages of files that can be dropped.
        page_cache_bytes: pages of files that can be dropped.
        shm_used_bytes: of /dev/shm.
        major_faults_per_s: pages of the watched program that had to be read from a disk.
        program_cores: CPU time of the watched program and its children, in cores.
        others_cores: of everything else on the machine.
        ranks: those on this machine, if the program has several.
    """

    core_shares: tuple[float, ...] = ()
    throttled_share: float | None = None
    memory_used_bytes: int | None = None
    memory_available_bytes: int | None = None
    page_cache_bytes: int | None = None
    swap_used_bytes: int | None = None
    swap_in_bytes_per_s: float | None = None
    swap_out_bytes_per_s: float | None = None
    shm_used_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    network_receive_bytes_per_s: float | None = None
    network_send_bytes_per_s: float | None = None
    major_faults_per_s: float | None = None
    program_cores: float | None = None
    program_memory_bytes: int | None = None
    program_read_bytes_per_s: float | None = None
    num_processes: int | None = None
    num_threads: int | None = None
    others_cores: float | None = None
    ranks: tuple[RankSample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The machine at one moment.

    Attributes:
        time_s: since sampling began.
        period_s: since the previous sample.
    """

    time_s: float
    period_s: float
    host: HostSample
    gpus: tuple[GpuSample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PhaseMark:
    """A named stretch of a program, on the time axis of the samples."""

    name: str
    start_s: float
    seconds: float
    color: str = ""
    rank: int = 0


# Those that are one number.
HOST_FIELDS = [field.name for field in fields(HostSample) if field.name not in ("core_shares", "ranks")]
GPU_FIELDS = [
    field.name
    for field in fields(GpuSample)
    if field.name not in ("index", "slice", "name", "uuid", "throttle_reasons")
]


class ThinnedSamples:
    """Keeps at most `max_samples` samples, evenly over the whole time.

    At `max_samples`, every two neighbors are merged into one and every later sample covers twice as many periods, and
    so on: after n days all samples are equally long, and the highest memory ever seen is still there.
    Another thread may read while one adds.

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
        self._changing = threading.Lock()

    def add(self, sample: Sample) -> None:
        """Takes the next sample, which follows the last in time."""
        with self._changing:
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
        with self._changing:
            kept, pending = list(self._kept), list(self._pending)
        return [*kept, merge_samples(pending)] if pending else kept


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
        ranks=_merge_ranks([host.ranks for host in hosts], seconds),
        **{name: _merge(name, [getattr(host, name) for host in hosts], seconds) for name in HOST_FIELDS},
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
        **{name: _merge(name, [getattr(gpu, name) for gpu in gpus], seconds) for name in GPU_FIELDS},
    )


def _merge(name: str, values: Sequence[Any], seconds: Sequence[float]) -> Any:
    known = [(value, weight) for value, weight in zip(values, seconds, strict=True) if value is not None]
    if not known:
        return None
    if name == "memory_available_bytes":
        return min(value for value, _ in known)
    # Of memory and counts the maximum matters; everything else is a rate or a level, and averaged over time.
    if name.endswith("_bytes") or name.startswith("num_") or name in ("power_limit_w", "temperature_c"):
        return max(value for value, _ in known)
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


def _merge_ranks(ranks: Sequence[tuple[RankSample, ...]], seconds: Sequence[float]) -> tuple[RankSample, ...]:
    """Each rank over the samples in which it was there."""
    found: dict[int, list[tuple[RankSample, float]]] = {}
    for some, weight in zip(ranks, seconds, strict=True):
        for sample in some:
            found.setdefault(sample.rank, []).append((sample, weight))
    return tuple(
        RankSample(
            rank=rank,
            cores=_merge("cores", [sample.cores for sample, _ in seen], [weight for _, weight in seen]),
            memory_bytes=max(sample.memory_bytes for sample, _ in seen),
        )
        for rank, seen in sorted(found.items())
    )


class SampleEvents:
    """Writes samples into the events of a run as event `sample`; called with each sample, by one thread.

    Args:
        log: of the run.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._due_s = 0.0

    def __call__(self, sample: Sample) -> None:
        """Writes the sample where one is due, else nothing.

        Raises:
            OutputError: the line cannot be written.
        """
        now_s = self._log.elapsed_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + now_s * _SHARE_OF_TIME
        shares = tuple(round(share, 4) for share in sample.host.core_shares)
        self._log.write(
            "sample",
            period_s=round(sample.period_s, 3),
            host=replace(sample.host, core_shares=shares),
            gpus=sample.gpus,
        )


def sample_of(event: Mapping[str, Any]) -> Sample:
    """The sample in an event `sample`; ignores fields that a newer version added."""
    sample: Sample = record_of(Sample, event, has_gaps=True)
    return sample
