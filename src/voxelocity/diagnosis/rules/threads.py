"""Rules on the CPU's threads: too few, too many, spinning on the workers' cores."""

from __future__ import annotations

from voxelocity.core.quantities import duration_text
from voxelocity.diagnosis.accounting.watched import part_s, resident_s, steps_s
from voxelocity.diagnosis.facts import Facts
from voxelocity.diagnosis.rules.loader_model import training_loader
from voxelocity.diagnosis.rules.rule import Found, rule
from voxelocity.diagnosis.rules.seen import compute_s, is_shown, num_cores, on_gpu

# Assumed, not measured: the share of a 3-D network's step that threads divide; the rest is Python and small layers.
_PARALLEL_SHARE = 0.8
# If a step takes this many times as long with workers as alone, their CPU time alone does not explain it.
_SPUN_FACTOR = 1.3
# From this many threads per core, each operation waits for threads without a core; below, the effect is small.
_CROWDED_FACTOR = 4


@rule("VX351", "torch uses fewer threads than there are cores", pool="compute")
def too_few_threads(facts: Facts) -> Found | None:
    """A network on the CPU that leaves cores idle."""
    settings = facts.settings
    if settings is None or on_gpu(facts) or not facts.counted or settings.num_threads <= 0:
        return None
    loader = training_loader(facts)
    busy = loader.num_workers if loader is not None and part_s(facts, "wait") > 0.1 * steps_s(facts) else 0
    free = num_cores(facts) - busy
    variable = settings.environment.get("OMP_NUM_THREADS", "")
    # By default, torch uses one thread per physical core, which the system may show as two.
    enough = free if variable else (free + 1) // 2
    if facts.host is None or settings.num_threads >= enough:
        return None
    seconds = compute_s(facts)
    left = _relative_s(free) / _relative_s(settings.num_threads)
    return Found(
        cause=f"The network computes for {duration_text(seconds)} of {duration_text(steps_s(facts))} with "
        f"{settings.num_threads} thread{'s' if settings.num_threads > 1 else ''}; {free} cores are free for it.",
        evidence=[
            f"torch.get_num_threads(): {settings.num_threads}; cores for the program: {num_cores(facts)}",
            *([f"OMP_NUM_THREADS={variable}"] if variable else []),
        ],
        saves_s=seconds * (1.0 - left),
        risk="safe",
        change=f"torch.set_num_threads({free})" if not variable else f"export OMP_NUM_THREADS={free}",
    )


@rule("VX352", "torch uses more threads than there are cores", pool="compute")
def too_many_threads(facts: Facts) -> Found | None:
    """Threads wait for a core; in containers torch counts the machine's cores, not the container's."""
    settings = facts.settings
    if settings is None or facts.host is None or on_gpu(facts) or not facts.counted:
        return None
    cores = num_cores(facts)
    if settings.num_threads <= cores:
        return None
    return Found(
        cause=f"{settings.num_threads} threads compute on {cores} core{'s' if cores > 1 else ''}; each operation "
        "ends only when its last thread has had its turn.",
        evidence=[
            f"torch.get_num_threads(): {settings.num_threads}; cores for the program: {cores}, of the machine: "
            f"{facts.host.num_machine_cpus or 'not known'}"
        ],
        saves_s=None,
        change=f"export OMP_NUM_THREADS={cores}",
        is_cause=settings.num_threads >= _CROWDED_FACTOR * cores,
    )


@rule("VX353", "Threads that wait spin, and take the cores from the workers", pool="data")
def spinning_threads(facts: Facts) -> Found | None:
    """With libgomp's default, waiting threads spin; workers on the same cores then slow down the network."""
    settings, loader, alone_s = facts.settings, training_loader(facts), resident_s(facts)
    if settings is None or loader is None or alone_s is None or on_gpu(facts) or not facts.counted:
        return None
    policy = settings.environment.get("OMP_WAIT_POLICY", "").upper()
    if policy == "PASSIVE" or settings.num_threads < 2 or loader.num_workers == 0:
        return None
    if settings.num_threads + loader.num_workers <= num_cores(facts):
        return None
    computing_s = steps_s(facts) - part_s(facts, "wait", "copy", "other")
    lost_s = computing_s - len(facts.counted) * alone_s
    if computing_s < _SPUN_FACTOR * len(facts.counted) * alone_s or not is_shown(facts, lost_s):
        return None
    return Found(
        cause=f"With {loader.num_workers} workers a step computes for "
        f"{duration_text(computing_s / len(facts.counted))}, alone for {duration_text(alone_s)}: "
        f"{settings.num_threads} torch threads wait for each other by spinning on {num_cores(facts)} cores.",
        evidence=[
            f"OMP_WAIT_POLICY={policy or 'not set'}, {settings.num_threads} threads and {loader.num_workers} workers",
            f"step on resident batches: {duration_text(alone_s)}",
        ],
        saves_s=lost_s,
        change="export OMP_WAIT_POLICY=PASSIVE",
    )


def _relative_s(num_threads: int) -> float:
    return 1.0 - _PARALLEL_SHARE + _PARALLEL_SHARE / num_threads


RULES = (too_few_threads, too_many_threads, spinning_threads)
