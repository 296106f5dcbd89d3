"""From samples of the machine, taken while a program ran, to the facts that rules read. Takes no samples itself."""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from voxelocity_observe.core.host import cpu_budget, file_system_of, total_memory_bytes
from voxelocity_observe.diagnose.facts.whole import Facts, HostFacts
from voxelocity_observe.monitor.columns import Columns, peak
from voxelocity_observe.monitor.record import MonitorRecord
from voxelocity_observe.monitor.samples import Sample

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
    some, whole = (Columns(MonitorRecord(seconds=0.0, period_s=0.0, samples=of)) for of in (chosen, samples))

    def mean(field: str) -> float:
        return _or_zero(some.mean(some.host(field)))

    def highest(field: str, *, least: int = 0) -> int:
        return max(least, int(_or_zero(peak(whole.host(field)))))

    def swapped_bytes(field: str) -> int:
        return round(float(np.nansum(whole.host(field) * whole.periods_s)))

    return HostFacts(
        num_cpus=cpus,
        num_machine_cpus=whole.num_cores or os.cpu_count() or cpus,
        cpu_share=mean("program_cores") / cpus,
        others_share=mean("others_cores"),
        throttled_share=mean("throttled_share"),
        num_processes=highest("num_processes", least=1),
        num_threads=highest("num_threads", least=1),
        memory_bytes=highest("program_memory_bytes"),
        memory_limit_bytes=total_memory_bytes() if memory_limit_bytes is None else memory_limit_bytes,
        swap_in_bytes=swapped_bytes("swap_in_bytes_per_s"),
        swap_out_bytes=swapped_bytes("swap_out_bytes_per_s"),
        major_faults_per_s=mean("major_faults_per_s"),
        shm_used_bytes=highest("shm_used_bytes"),
        shm_size_bytes=_size_bytes(shm),
        disk_read_bytes_per_s=mean("disk_read_bytes_per_s"),
        gpu_busy=[_or_zero(some.mean(device.column("busy_share"))) for device in some.devices],
        gpu_memory_bytes=[int(_or_zero(peak(device.column("memory_used_bytes")))) for device in whole.devices],
        gpu_memory_total_bytes=[int(_or_zero(peak(device.column("memory_total_bytes")))) for device in whole.devices],
        gpu_throttle_reasons=_throttle_reasons(chosen),
        gpu_other_processes=max((gpu.num_other_processes or 0 for s in samples for gpu in s.gpus), default=0),
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


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


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
