"""From samples of the machine, taken while a program ran, to the facts that rules read. Takes no samples itself."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from voxelocity_observe.core.host import cpu_budget, file_system_of, total_memory_bytes
from voxelocity_observe.diagnose.facts.whole import Facts, HostFacts
from voxelocity_observe.monitor.samples import GpuSample, Sample

_SHM = Path("/dev/shm")


def host_facts(
    samples: Sequence[Sample],
    *,
    within_s: tuple[float, float] | None = None,
    files: Sequence[str] = (),
    num_cpus: int | None = None,
    memory_limit_bytes: int | None = None,
    shm: Path = _SHM,
) -> HostFacts:
    """What the machine did while the program ran.

    Means are over time and leave out what could not be read; peaks are over all samples. What was never seen is 0.

    Args:
        samples: in order; may be none.
        within_s: means are over this stretch of the samples' time, if any sample lies in it; over all if not given.
            Start-up and experiments would dilute what the cores do in training.
        files: paths the program read; the kind of file system that holds most of them is reported.
        num_cpus: cores the program may use; by default those this process may use.
        memory_limit_bytes: memory it could have; by default this process's limit.
        shm: the file system in memory.
    """
    cpus = cpu_budget() if num_cpus is None else num_cpus
    chosen = _within(samples, within_s)
    hosts = [sample.host for sample in samples]
    cores = _mean((sample.host.program_cores, sample.period_s) for sample in chosen)
    return HostFacts(
        num_cpus=cpus,
        num_machine_cpus=max((len(host.core_shares) for host in hosts), default=0) or os.cpu_count() or cpus,
        cpu_share=cores / cpus,
        others_share=_mean((sample.host.others_cores, sample.period_s) for sample in chosen),
        throttled_share=_mean((sample.host.throttled_share, sample.period_s) for sample in chosen),
        num_processes=_peak((host.num_processes for host in hosts), least=1),
        num_threads=_peak((host.num_threads for host in hosts), least=1),
        memory_bytes=_peak(host.program_memory_bytes for host in hosts),
        memory_limit_bytes=total_memory_bytes() if memory_limit_bytes is None else memory_limit_bytes,
        swap_in_bytes=round(sum((s.host.swap_in_bytes_per_s or 0.0) * s.period_s for s in samples)),
        swap_out_bytes=round(sum((s.host.swap_out_bytes_per_s or 0.0) * s.period_s for s in samples)),
        major_faults_per_s=_mean((sample.host.major_faults_per_s, sample.period_s) for sample in chosen),
        shm_used_bytes=_peak(host.shm_used_bytes for host in hosts),
        shm_size_bytes=_size_bytes(shm),
        disk_read_bytes_per_s=_mean((sample.host.disk_read_bytes_per_s, sample.period_s) for sample in chosen),
        gpu_busy=[_mean((gpu.busy_share, period_s) for gpu, period_s in of) for of in _by_gpu(chosen)],
        gpu_memory_bytes=[_peak(gpu.memory_used_bytes for gpu, _ in of) for of in _by_gpu(samples)],
        gpu_memory_total_bytes=[_peak(gpu.memory_total_bytes for gpu, _ in of) for of in _by_gpu(samples)],
        gpu_throttle_reasons=_throttle_reasons(chosen),
        gpu_other_processes=_peak(gpu.num_other_processes for sample in samples for gpu in sample.gpus),
        file_system=_file_system(files),
    )


def watched_stretch_s(facts: Facts, *, sampled_from_s: float | None = None) -> tuple[float, float] | None:
    """From the start of the first counted step or pass to the end of the last, on the clock of the samples.

    Args:
        facts: what was seen of the program.
        sampled_from_s: when sampling began, on the clock of `ProcessFacts.began_s`. Where either is unknown,
            sampling is assumed to begin with the process, which is wrong where a script does other work before it.
    """
    began_s = facts.main.began_s
    late_s = 0.0 if began_s is None or sampled_from_s is None else began_s - sampled_from_s
    spans = [(step.start_s, step.start_s + step.seconds) for step in facts.counted]
    spans += [(interval.start_s, interval.start_s + interval.seconds) for interval in facts.passes if spans]
    if not spans:
        return None
    return late_s + min(start for start, _ in spans), late_s + max(stop for _, stop in spans)


def _within(samples: Sequence[Sample], within_s: tuple[float, float] | None) -> Sequence[Sample]:
    if within_s is None:
        return samples
    start_s, stop_s = within_s
    return [sample for sample in samples if start_s <= sample.time_s <= stop_s] or samples


def _mean(weighted: Iterable[tuple[float | None, float]]) -> float:
    known = [(value, weight) for value, weight in weighted if value is not None and weight > 0.0]
    whole = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / whole if whole else 0.0


def _peak(values: Iterable[int | None], *, least: int = 0) -> int:
    return max([least, *(value for value in values if value is not None)])


def _by_gpu(samples: Sequence[Sample]) -> list[list[tuple[GpuSample, float]]]:
    """The samples of each device, or each slice, with their periods, in the order of the devices."""
    found: dict[tuple[int, int], list[tuple[GpuSample, float]]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            key = (gpu.index, -1 if gpu.slice is None else gpu.slice)
            found.setdefault(key, []).append((gpu, sample.period_s))
    return [found[key] for key in sorted(found)]


def _throttle_reasons(samples: Sequence[Sample]) -> dict[str, float]:
    """Share of the samples with a GPU in which any device gave this reason."""
    seen = [sample for sample in samples if sample.gpus]
    counts = Counter(reason for sample in seen for reason in {r for gpu in sample.gpus for r in gpu.throttle_reasons})
    return {reason: count / len(seen) for reason, count in counts.most_common()}


def _size_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return 0


def _file_system(files: Sequence[str]) -> str:
    kinds = Counter(map(file_system_of, files))
    return kinds.most_common(1)[0][0] if kinds else ""
