"""GPUs, cores, memory, disk and the limits of a process, judged from what the probes found. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from voxelocity_observe.core.host import is_in_memory, is_on_network
from voxelocity_observe.core.quantities import bytes_text, count_text, duration_text, joined
from voxelocity_observe.diagnose.doctor.records import Check, Disk, Driver, Gpu, Memory, Processor, ResourceLimits

_GIB = 2**30

COSTS_OF_IDLE_GPU = "training runs on the CPU, many times slower than on the installed GPU"
_PERSISTENCE = "https://docs.nvidia.com/deploy/driver-persistence/overview.html"
# Other programs' share of a GPU's memory from which it is worth reporting.
_USED_SHARE = 0.1
# By compute capability, NVIDIA's tables of what its units compute.
_TENSOR_CORES, _AMPERE, _ADA = (7, 0), (8, 0), (8, 9)
_FORMATS = {"fp16": _TENSOR_CORES, "bf16": _AMPERE, "TF32": _AMPERE, "fp8": _ADA}

# Two cores give about 125 augmented patches of 96 x 96 x 96 a second (docs/log).
_PATCHES_PER_CORE = 62

_LITTLE_MEMORY_BYTES = 8 * _GIB
# A batch of two patches of 128 x 128 x 128, image in float32 and label in a byte. torch's loaders keep two batches
# ahead for each worker (prefetch_factor), and one is being made.
_BATCH_BYTES = 2 * 128**3 * 5
_BATCHES_PER_WORKER = 3
_SHM_ADVICE = "docker run --shm-size=8g (or --ipc=host); in Kubernetes an emptyDir with medium: Memory at /dev/shm"

_LITTLE_DISK_BYTES = 10 * _GIB
# A CT of 512 x 512 x 256 voxels in two bytes, with its label in one.
_CASE_BYTES = 512 * 512 * 256 * 3
_SLOW_BYTES_PER_S, _ROTATING_BYTES_PER_S = 100e6, 300e6
_ELSEWHERE = "keep the cache on a disk of this machine: --set data.cache.folder=/local/folder"

# Users with large loaders hit the usual soft limit of 1,024 files.
_FEW_FILES, _FEW_PROCESSES = 4096, 2048


def check_gpus(driver: Driver) -> Iterator[Check]:
    """Driver, then what each GPU can do and what is missing; `check_torch` judges whether torch can use it."""
    if driver.gpus:
        cuda = f", CUDA up to {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda else ""
        found = f"NVIDIA {driver.version or '(unknown version)'}{cuda}; {count_text(len(driver.gpus), 'GPU')}"
        yield Check("GPU", "driver", found)
    elif driver.num_cards:
        found = f"{count_text(driver.num_cards, 'NVIDIA card')} on the bus, but no driver for it: "
        yield Check("GPU", "driver", found + (driver.silence or "it responds, but shows no GPU")).problem(
            COSTS_OF_IDLE_GPU,
            "run `nvidia-smi`; start a container with --gpus all; after a driver update, restart the machine",
        )
    else:
        yield Check("GPU", "driver", f"no NVIDIA GPU ({driver.silence or 'the driver shows none'})").note(
            "training runs on the CPU, many times slower than on a GPU",
            "if there should be one: `nvidia-smi`; in a container, docker run --gpus all",
        )
    for gpu in driver.gpus:
        yield from _check_gpu(gpu, is_only_one=len(driver.gpus) == 1)


def _check_gpu(gpu: Gpu, *, is_only_one: bool) -> Iterator[Check]:
    found = partial(Check, "GPU", f"GPU {gpu.index}")
    yield found(_description(gpu))
    yield from _check_formats(gpu)
    yield from _check_modes(gpu, found, is_only_one=is_only_one)
    yield from _check_condition(gpu, found)
    if gpu.is_persistent is False:
        yield found("persistence mode is off").note(
            "if no other program uses the GPU, each program first waits 1 to 3 s for it",
            "as administrator: nvidia-smi -pm 1, or the service nvidia-persistenced",
            _PERSISTENCE,
        )


def _check_formats(gpu: Gpu) -> Iterator[Check]:
    found = partial(Check, "GPU", f"GPU {gpu.index} formats")
    if gpu.capability is not None and gpu.capability >= _TENSOR_CORES:
        has_all = gpu.capability >= _AMPERE
        taken = ", ".join(kind for kind, since in _FORMATS.items() if gpu.capability >= since)
        lacking = "" if has_all else ", and neither bf16 nor TF32"
        yield found(f"tensor cores take {taken}{lacking}").note(
            "mixed precision needs fp16 with a gradient scaler; in float32, its tensor cores are idle",
            "torch.autocast('cuda', torch.float16) with torch.amp.GradScaler()",
            when=not has_all,
        )
    elif gpu.capability is not None:
        yield found("no tensor cores").note("mixed precision saves memory here, but little time")


def _check_modes(gpu: Gpu, found: Callable[[str], Check], *, is_only_one: bool) -> Iterator[Check]:
    """Who may compute on it, and on which part."""
    if gpu.compute_mode == "prohibited":
        yield found("compute mode is 'prohibited': no program may compute on it").problem(
            "training on it fails at its first operation",
            f"as administrator: nvidia-smi -i {gpu.index} -c DEFAULT; until then: --device cpu",
            stops_training=is_only_one,
        )
    if gpu.compute_mode == "exclusive":
        yield found("compute mode is 'exclusive': one program at a time").note(
            "a second CUDA program on it fails, even a monitor",
            f"if you do not want that, as administrator: nvidia-smi -i {gpu.index} -c DEFAULT",
        )
    if gpu.has_mig and gpu.num_slices == 0:
        yield found("MIG is on, and no slice exists").problem(
            "CUDA sees no device, and training runs on the CPU",
            f"as administrator create slices (nvidia-smi mig -cgi ... -C) or turn MIG off: nvidia-smi -i {gpu.index} "
            "-mig 0",
        )
    elif gpu.has_mig:
        slices = "an unknown number of slices" if gpu.num_slices is None else count_text(gpu.num_slices, "slice")
        yield found(f"it is divided into {slices} (MIG)").note(
            "a process sees one slice, with its part of the cores and the memory",
            "choose one: CUDA_VISIBLE_DEVICES=MIG-... (nvidia-smi -L lists them)",
        )


def _check_condition(gpu: Gpu, found: Callable[[str], Check]) -> Iterator[Check]:
    """What is in use, its link and its memory."""
    used = gpu.memory_used_bytes
    if used is not None and gpu.memory_bytes and used > _USED_SHARE * gpu.memory_bytes:
        yield found(f"{bytes_text(used)} of {bytes_text(gpu.memory_bytes)} are used by other programs").warning(
            "batches must be smaller, and those programs compete for its time",
            "list them: nvidia-smi; if there is another GPU, select it with CUDA_VISIBLE_DEVICES",
        )
    # The generation is not judged: an idle link slows down, and speeds up with the first copy.
    width, most = gpu.pcie_width, gpu.pcie_width_max
    if width is not None and most is not None and width < most:
        yield Check("GPU", f"GPU {gpu.index} link", f"PCIe x{width} of x{most}").warning(
            f"batches reach the GPU at {width / most:.0%} of the possible speed",
            "reseat the card or use a slot with all lanes; a virtual machine may not offer more",
        )
    if gpu.num_uncorrected:
        errors = f"{count_text(gpu.num_uncorrected, 'error')} that ECC could not correct since the driver was loaded"
        yield Check("GPU", f"GPU {gpu.index} memory", errors).warning(
            "they may have ended programs, and may do so again",
            f"reset the GPU when it is idle (nvidia-smi -i {gpu.index} -r); if they come back, have it replaced",
        )


def _description(gpu: Gpu) -> str:
    has_link = gpu.pcie_width is not None and gpu.pcie_generation is not None
    parts = (
        gpu.name or "a GPU of unknown name",
        "" if gpu.memory_bytes is None else bytes_text(gpu.memory_bytes),
        "" if gpu.capability is None else f"compute capability {gpu.capability[0]}.{gpu.capability[1]}",
        f"PCIe {gpu.pcie_generation}.0 x{gpu.pcie_width}" if has_link else "",
        "" if gpu.has_ecc is None else f"ECC {'on' if gpu.has_ecc else 'off'}",
    )
    return joined(parts)


def check_processor(processor: Processor, *, num_gpus: int) -> Iterator[Check]:
    """Cores, instruction sets, NUMA, and the load of other programs."""
    cpu, budget, limit = partial(Check, "CPU"), processor.num_budget, ""
    if budget >= processor.num_cores:
        cure = "use a machine with more cores; if there is a GPU, let it augment: --set data.augment.engine=triton"
    elif processor.num_granted == budget:
        limit, cure = "SLURM's grant", "ask for more: #SBATCH --cpus-per-task=8"
    elif processor.num_affine == budget:
        limit, cure = "affinity", "see what the process is bound to: taskset -cp $$"
    else:
        limit, cure = "the quota of its control group", "give the container more: docker run --cpus=8"
    cores = f"{processor.name or 'a processor of unknown name'}; {count_text(budget, 'core')} available"
    yield cpu("cores", f"{cores} of {processor.num_cores}, limited by {limit}" if limit else cores).warning(
        f"they make the batches: about {_PATCHES_PER_CORE * budget} augmented patches of 96 x 96 x 96 a second, less "
        "than a fast GPU takes"
        if num_gpus
        else "batches and the network share one core",
        cure,
        when=budget < (4 if num_gpus else 2),
    )
    if processor.has_fast_bfloat16 is None:
        yield cpu("bfloat16", "unknown: the machine does not list its instruction sets")
    elif processor.has_fast_bfloat16:
        yield cpu("bfloat16", "faster than float32")
    else:
        slow = cpu("bfloat16", "not faster than float32: neither AMX nor AVX-512 BF16 of an AMD core")
        yield slow.note("networks compute in float32 on this CPU", when=not num_gpus)
    if processor.num_nodes == 1:
        yield cpu("NUMA", "the available cores are in one node")
    elif processor.num_nodes is not None:
        yield cpu("NUMA", f"the available cores are in {processor.num_nodes} nodes, each with its own memory").note(
            "access to the memory or a GPU of another node is slower",
            "run one process per GPU, bound to its node: numactl --cpunodebind=0 --membind=0 voxelocity train ... "
            "(nvidia-smi topo -m shows which)",
        )
    if processor.load is not None and processor.load > processor.num_cores:
        load = f"{processor.load:.1f} programs are ready to run, on {count_text(processor.num_cores, 'core')}"
        yield cpu("load", load).note("all timings, including the doctor's, are slower than normal", "list them: top")


def check_memory(memory: Memory, *, num_workers: int) -> Iterator[Check]:
    """Main memory, swap, /dev/shm (through which a loader's `num_workers` pass their batches), overcommit."""
    total = bytes_text(memory.total_bytes)
    found = f"{total}, {bytes_text(memory.available_bytes)} free"
    if memory.total_bytes < memory.machine_bytes:
        found += f"; the control group allows {total} of {bytes_text(memory.machine_bytes)}"
    is_limited = memory.total_bytes < min(memory.machine_bytes, _LITTLE_MEMORY_BYTES)
    yield Check("memory", "memory", found).warning(
        "few prepared cases fit; the others are read from disk for each patch",
        "allow the container more: docker run --memory=32g; SLURM: #SBATCH --mem=32G"
        if is_limited
        else "end programs that use it (top -o %MEM), or train on a machine with more",
        when=memory.available_bytes < _LITTLE_MEMORY_BYTES,
    )
    swap = f"{bytes_text(memory.swap_used_bytes)} of {bytes_text(memory.swap_bytes)} used"
    nothing = "none; a program that takes too much memory is killed"
    yield Check("memory", "swap", swap if memory.swap_bytes else nothing).warning(
        "swapped memory is read back from disk, far more slowly than from RAM",
        "end programs that use much memory (top -o %MEM)",
        when=memory.swap_used_bytes > 0.1 * memory.total_bytes,
    )
    needed = num_workers * _BATCHES_PER_WORKER * _BATCH_BYTES
    if memory.shm_bytes is None or memory.shm_free_bytes is None:
        yield Check("memory", "/dev/shm", "none, or not in memory").warning(
            "loaders with workers fail or are slow, and each training process keeps its own cache", _SHM_ADVICE
        )
    else:
        room = f"{bytes_text(memory.shm_free_bytes)} of {bytes_text(memory.shm_bytes)} free"
        # By default Linux gives it half of the memory; a control group counts its contents as used.
        yield Check("memory", "/dev/shm", room).warning(
            f"a torch loader with {count_text(num_workers, 'worker')} keeps about {bytes_text(needed)} of batches "
            "there (two patches of 128 x 128 x 128 each) and ends with a bus error when it is full; prepared cases "
            "do not fit there either",
            _SHM_ADVICE if memory.shm_bytes < needed else "list its contents: du -sh /dev/shm/*",
            when=memory.shm_free_bytes < needed,
        )
    if memory.left_behind:
        paths = ", ".join(str(folder.path) for folder in memory.left_behind)
        left_bytes = sum(folder.num_bytes for folder in memory.left_behind)
        left = f"{bytes_text(left_bytes)} of prepared cases in {paths}, not used by any process"
        yield Check("memory", "left behind", left).warning(
            "left by a killed run; they take main memory until your next run", "voxelocity cache clear --memory"
        )
    if memory.overcommit == 2:
        yield Check("memory", "overcommit", "vm.overcommit_memory is 2: reserved memory counts as used").warning(
            "CUDA reserves far more memory than it uses, and so does each loader worker; both fail although memory "
            "is still free",
            "as administrator: sysctl vm.overcommit_memory=0",
        )


def check_disk(disk: Disk) -> Iterator[Check]:
    """The disk that holds the cache: its free space, its kind, and what its speed means for a case."""
    num_cases = disk.free_bytes // _CASE_BYTES
    yield Check("disk", "room", f"{bytes_text(disk.free_bytes)} free below {disk.folder}").warning(
        f"{f'about {num_cases}' if num_cases else 'no'} prepared CTs of 512 x 512 x 256 voxels fit; the others are "
        "prepared again in each run, and checkpoints also need space",
        "voxelocity cache clear --older-than 30d, or another folder: --set data.cache.folder=...",
        when=disk.free_bytes < _LITTLE_DISK_BYTES,
    )
    kind, read, write = disk.file_system, disk.read_bytes_per_s, disk.write_bytes_per_s
    if is_on_network(kind):
        yield Check("disk", "kind", f"{kind}: on the network").warning(
            "each patch that is not in memory is read over a shared network; the LMDB cache, which maps its file, is "
            "not used there",
            _ELSEWHERE,
        )
    elif is_in_memory(kind):
        yield Check("disk", "kind", f"{kind}: it is memory, not a disk").note(
            "files there take main memory, and are lost after a restart", _ELSEWHERE
        )
    # Disks of virtual machines report themselves as rotating in any case; only their speed shows what they are.
    elif disk.is_rotating and read is not None and read < _ROTATING_BYTES_PER_S:
        yield Check("disk", "kind", f"{kind or 'a file system of unknown name'} on a rotating disk").note(
            "patches are scattered, and each takes about 10 ms to seek", f"{_ELSEWHERE} (an SSD)"
        )
    else:
        yield Check("disk", "kind", kind or "unknown")
    speeds = f"reads {bytes_text(read)}/s, writes {bytes_text(write)}/s"
    if read is None or write is None:
        yield Check("disk", "speed", f"not measured: {disk.not_measured}").note(
            "reading and writing times are unknown", "name a folder with free space: voxelocity doctor --folder FOLDER"
        )
    elif not disk.past_page_cache:
        yield Check("disk", "speed", f"{speeds}, through the page cache").note(
            "the disk itself is slower than that: this file system always uses the cache"
        )
    else:
        yield Check("disk", "speed", speeds).warning(
            f"a prepared CT of {bytes_text(_CASE_BYTES)} takes {duration_text(_CASE_BYTES / read)} to read and "
            f"{duration_text(_CASE_BYTES / write)} to write; if memory does not hold all cases, training waits for it",
            _ELSEWHERE,
            when=min(read, write) < _SLOW_BYTES_PER_S and not is_in_memory(kind),
        )


def check_limits(limits: ResourceLimits) -> Iterator[Check]:
    """Open files, processes, and locked memory if an adapter needs it."""
    soft, hard = limits.open_files, limits.open_files_hard
    yield Check("limits", "open files", "no limit" if soft is None else f"{soft:,} at a time").warning(
        "torch's loaders open a file for each tensor in transit; with many of them, a run ends with 'Too many open "
        "files'",
        f"ulimit -n {_FEW_FILES if hard is None else min(hard, 65_536)}"
        if soft is None or hard is None or hard > soft
        else "the hard limit is equally low: docker run --ulimit nofile=65536, or /etc/security/limits.conf",
        when=soft is not None and soft < _FEW_FILES,
    )
    counts = [count for count in (limits.processes, limits.group_processes) if count is not None]
    least = min(counts, default=None)
    yield Check("limits", "processes", "no limit" if least is None else f"{least:,} processes and threads").warning(
        "each worker of a loader and each thread of torch and of CUDA counts; a run ends with 'Resource temporarily "
        "unavailable' when they are used up",
        "docker run --pids-limit=-1"
        if limits.group_processes == least
        else f"ulimit -u {_FEW_PROCESSES * 4}, or /etc/security/limits.conf",
        when=least is not None and least < _FEW_PROCESSES,
    )
    locked = limits.locked_bytes
    # Memory that CUDA pins for its copies does not count; memory that an adapter accesses does.
    is_short = limits.has_rdma and locked is not None and locked < _GIB
    found = "no limit" if locked is None else bytes_text(locked)
    adapter = ", with an InfiniBand or RoCE adapter in the machine" if is_short else ""
    yield Check("limits", "locked memory", f"{found}{adapter}").warning(
        "NCCL cannot register its buffers with the adapter: training on several nodes fails, or uses TCP",
        "ulimit -l unlimited (in a container: docker run --ulimit memlock=-1)",
        when=is_short,
    )
