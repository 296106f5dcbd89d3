"""Rules on the machine: memory, quotas, other programs, a GPU that is held back, the CPU's threads."""

from __future__ import annotations

from voxelocity_observe.core.quantities import bytes_text, count_text, duration_text
from voxelocity_observe.diagnose.accounting import part_s, resident_s, steps_s, watched_s
from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.rules.loader_model import training_loader
from voxelocity_observe.diagnose.rules.rule import Found, rule
from voxelocity_observe.diagnose.rules.seen import compute_s, is_shown, num_cores, of_steps, on_gpu
from voxelocity_observe.diagnose.rules.words import percent

_SWAPPED_BYTES = 64 * 1024**2
_FAULTS_PER_S = 100.0
_MEMORY_SHARE = 0.9
_THROTTLED_SHARE = 0.05
_OTHERS_SHARE = 0.1
_OWN_SHARE = 0.05
_GPU_THROTTLED_SHARE = 0.1
_GPU_MEMORY_SHARE = 0.95
# Of the reasons that NVML names, these hold a GPU back; the others are idling and user settings.
_HELD_BACK = ("thermal", "power", "slowdown", "brake")

# Assumed, not measured: the share of a 3-D network's step that threads divide; the rest is Python and small layers.
_PARALLEL_SHARE = 0.8
# If a step takes this many times as long with workers as alone, their CPU time alone does not explain it.
_SPUN_FACTOR = 1.3
# From this many threads per core, each operation waits for threads without a core; below, the effect is small.
_CROWDED_FACTOR = 4


@rule("VX501", "The machine swaps", pool="machine")
def swapping(facts: Facts) -> Found | None:
    """Memory ran out, and pages went to disk and came back."""
    host = facts.host
    if host is None or host.swap_in_bytes + host.swap_out_bytes < _SWAPPED_BYTES:
        return None
    return Found(
        cause=f"While the program ran, {bytes_text(host.swap_out_bytes)} went to the swap space and "
        f"{bytes_text(host.swap_in_bytes)} came back; each use of such a page waits for the disk.",
        evidence=[
            f"memory of the program: {bytes_text(host.memory_bytes)} of {bytes_text(host.memory_limit_bytes)}",
            f"{host.major_faults_per_s:.0f} pages a second had to be read from disk",
        ],
        change="CacheDataset(files, transform, cache_rate=0.5)  # or fewer workers: each holds a copy of what it makes",
        is_cause=host.swap_in_bytes >= _SWAPPED_BYTES or host.major_faults_per_s >= _FAULTS_PER_S,
    )


@rule("VX502", "Memory is nearly used up", pool="machine")
def memory_near_limit(facts: Facts) -> Found | None:
    """A little more, and the program is killed or the machine swaps."""
    host = facts.host
    if host is None or host.memory_limit_bytes <= 0:
        return None
    share = host.memory_bytes / host.memory_limit_bytes
    if share < _MEMORY_SHARE:
        return None
    was_killed = facts.status in (-9, 137)
    return Found(
        cause=f"The program and its workers took {bytes_text(host.memory_bytes)} of "
        f"{bytes_text(host.memory_limit_bytes)} ({percent(share)})"
        f"{', and the program was killed' if was_killed else ''}.",
        evidence=[f"{count_text(host.num_processes, 'process', 'processes')} at most"],
        change="CacheDataset(files, transform, cache_rate=0.5)  # or PersistentDataset, which keeps items on disk",
        is_cause=was_killed,
    )


@rule("VX503", "The container's CPU quota holds the program back", pool="machine")
def throttled(facts: Facts) -> Found | None:
    """The control group used its share before the period was over."""
    host = facts.host
    if host is None or host.throttled_share < _THROTTLED_SHARE:
        return None
    return Found(
        cause=f"In {percent(host.throttled_share)} of the time the control group had used up its CPU quota and "
        f"the whole program was stopped; it has {count_text(host.num_threads, 'thread')} for "
        f"{count_text(host.num_cpus, 'core')}.",
        evidence=[f"cpu.stat: throttled {percent(host.throttled_share)} of the time"],
        saves_s=watched_s(facts) * host.throttled_share,
        change=f"export OMP_NUM_THREADS={host.num_cpus}  # and num_workers no more than that; or a larger quota: "
        "docker run --cpus=...",
    )


@rule("VX504", "Other programs use the same cores", pool="machine", is_context=True)
def shared_cores(facts: Facts) -> Found | None:
    """The machine has too few cores for all that runs on it."""
    host = facts.host
    if host is None or not facts.counted:
        return None
    cores = host.num_machine_cpus or host.num_cpus
    own = host.cpu_share * host.num_cpus
    if host.others_share < _OTHERS_SHARE * cores or own + host.others_share < 0.9 * cores:
        return None
    if own < _OWN_SHARE * cores:
        # The program sleeps or waits for something else; it would do so on its own cores, too.
        return None
    whole_s = watched_s(facts) - (compute_s(facts) if on_gpu(facts) else 0.0)
    # The other programs' share of the busy cores, but at most the time in which this one could have run and did not.
    others = host.others_share / (own + host.others_share)
    saves_s = min(whole_s * others, max(0.0, _could_run_s(facts) - watched_s(facts) * own / _num_runners(facts)))
    evidence = [f"CPU of the program: {percent(host.cpu_share)} of {count_text(host.num_cpus, 'core')}"]
    if facts.core_wait is not None and facts.core_wait.of_s > 0.0:
        waited = facts.core_wait.seconds / facts.core_wait.of_s
        evidence.append(f"the thread that trains was ready but had no core in {percent(waited)} of the time")
        saves_s = min(saves_s, watched_s(facts) * waited + _behind_workers_s(facts) * others)
    return Found(
        cause=f"Other programs kept {host.others_share:.1f} of {count_text(cores, 'core')} busy, this one "
        f"{own:.1f}; no core was free.",
        evidence=evidence,
        saves_s=saves_s,
        change=f"# run it when the machine is free, or on its own cores: taskset -c 0-{max(0, host.num_cpus - 1)} ...",
    )


def _behind_workers_s(facts: Facts) -> float:
    """Seconds in which the training waited for workers, which may have had no core either."""
    loader = training_loader(facts)
    has_workers = loader is not None and loader.num_workers > 0
    return part_s(facts, "wait") if has_workers else 0.0


def _could_run_s(facts: Facts) -> float:
    """Seconds in which the program may have wanted a core: all but waiting, in its own thread, for a slow source."""
    loader = training_loader(facts)
    if loader is None or loader.num_workers > 0:
        return watched_s(facts)
    fetches = [fetch for fetch in facts.fetches if fetch.key == loader.key]
    made_s = sum(fetch.item_s + fetch.collate_s for fetch in fetches)
    cpu_share = sum(fetch.item_cpu_s + fetch.collate_cpu_s for fetch in fetches) / made_s if made_s > 0.0 else 1.0
    return watched_s(facts) - part_s(facts, "wait") * max(0.0, 1.0 - cpu_share)


def _num_runners(facts: Facts) -> int:
    """Threads and workers of all ranks that could have run at once, at most one a core."""
    loader = training_loader(facts)
    threads = 1 if on_gpu(facts) or facts.settings is None else max(1, facts.settings.num_threads)
    of_a_rank = min(num_cores(facts), threads + (loader.num_workers if loader else 0))
    return of_a_rank * facts.main.num_local_ranks


@rule("VX505", "The GPU is held back by heat or power", pool="machine")
def gpu_throttled(facts: Facts) -> Found | None:
    """The driver lowered the clocks."""
    host = facts.host
    if host is None or not on_gpu(facts):
        return None
    reasons = {
        name: share
        for name, share in host.gpu_throttle_reasons.items()
        if share >= _GPU_THROTTLED_SHARE and any(word in name.lower() for word in _HELD_BACK)
    }
    if not reasons:
        return None
    name, share = max(reasons.items(), key=lambda reason: reason[1])
    is_power = "power" in name.lower() and "thermal" not in name.lower()
    return Found(
        cause=f"In {percent(share)} of the samples the driver held the GPU's clocks back: {name}.",
        evidence=[f"{name}: {percent(share)} of the samples" for name, share in reasons.items()],
        change="nvidia-smi -q -d POWER,CLOCK  # shows the limit; `nvidia-smi -pl` raises it where that is allowed"
        if is_power
        else "nvidia-smi -q -d TEMPERATURE,CLOCK  # cooling: fans, dust, position in the rack",
        # On many cards, large networks normally run at the power limit.
        is_cause=not is_power,
    )


@rule("VX506", "Another program runs on the same GPU", pool="machine")
def shared_gpu(facts: Facts) -> Found | None:
    """Kernels of two programs take turns."""
    host = facts.host
    if host is None or not on_gpu(facts) or host.gpu_other_processes == 0:
        return None
    return Found(
        cause=f"{count_text(host.gpu_other_processes, 'other program')} held memory on the GPU while this one ran; "
        "their kernels compete with its own.",
        evidence=[f"other processes on the device: {host.gpu_other_processes}"],
        change="nvidia-smi  # lists them; then CUDA_VISIBLE_DEVICES=1 python train.py",
        is_cause=False,
    )


@rule("VX507", "The GPU's memory is nearly full", pool="machine")
def gpu_memory_full(facts: Facts) -> Found | None:
    """The allocator has to return memory and ask again."""
    host = facts.host
    if host is None or not on_gpu(facts):
        return None
    pairs = list(zip(host.gpu_memory_bytes, host.gpu_memory_total_bytes, strict=False))
    full = [(used, total) for used, total in pairs if total > 0 and used >= _GPU_MEMORY_SHARE * total]
    if not full:
        return None
    used, total = full[0]
    is_set = facts.settings is not None and "PYTORCH_CUDA_ALLOC_CONF" in facts.settings.environment
    return Found(
        cause=f"{bytes_text(used)} of {bytes_text(total)} of the GPU's memory was in use; if an allocation fails, "
        "torch frees its cached memory, waits for the device and tries again.",
        evidence=[
            f"PYTORCH_CUDA_ALLOC_CONF={'set' if is_set else 'not set'}",
            f"watched for {duration_text(facts.seconds)}",
        ],
        change="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        is_cause=False,
    )


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
        cause=f"The network computes for {of_steps(facts, seconds)} with "
        f"{count_text(settings.num_threads, 'thread')}; {free} cores are free for it.",
        evidence=[
            f"torch.get_num_threads(): {settings.num_threads}; cores for the program: {num_cores(facts)}",
            f"OMP_NUM_THREADS={variable}" if variable else "",
        ],
        saves_s=seconds * (1.0 - left),
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
        cause=f"{settings.num_threads} threads compute on {count_text(cores, 'core')}; each operation waits for its "
        "last thread.",
        evidence=[
            f"torch.get_num_threads(): {settings.num_threads}; cores for the program: {cores}, of the machine: "
            f"{facts.host.num_machine_cpus or 'not known'}"
        ],
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
        cause=f"With {count_text(loader.num_workers, 'worker')} a step computes for "
        f"{duration_text(computing_s / len(facts.counted))}, alone for {duration_text(alone_s)}: "
        f"{settings.num_threads} torch threads wait for each other by spinning on "
        f"{count_text(num_cores(facts), 'core')}.",
        evidence=[
            f"OMP_WAIT_POLICY={policy or 'not set'}, {settings.num_threads} threads and "
            f"{count_text(loader.num_workers, 'worker')}",
            f"step on resident batches: {duration_text(alone_s)}",
        ],
        saves_s=lost_s,
        change="export OMP_WAIT_POLICY=PASSIVE",
    )


def _relative_s(num_threads: int) -> float:
    return 1.0 - _PARALLEL_SHARE + _PARALLEL_SHARE / num_threads
