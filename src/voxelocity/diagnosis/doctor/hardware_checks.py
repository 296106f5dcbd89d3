"""GPUs, cores, memory, disk and the limits of a process, judged from what the probes found. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from voxelocity.core.quantities import bytes_text, count_text, duration_text
from voxelocity.diagnosis.doctor.records import Check, Disk, Driver, Gpu, Limits, Memory, Processor, item
from voxelocity.observe.host import is_in_memory, is_on_network

_GIB = 2**30

_PERSISTENCE = "https://docs.nvidia.com/deploy/driver-persistence/overview.html"
# Other programs' share of a GPU's memory from which it is worth reporting.
_USED_SHARE = 0.1
# By compute capability, NVIDIA's tables of what its units compute.
_TENSOR_CORES, _AMPERE, _ADA = (7, 0), (8, 0), (8, 9)

# Two cores give about 125 augmented patches of 96 x 96 x 96 a second (docs/log.md).
_PATCHES_PER_CORE = 62
_CURE_OF_LIMIT = {
    "SLURM's grant": "ask for more: #SBATCH --cpus-per-task=8",
    "affinity": "see what the process is bound to: taskset -cp $$",
    "the quota of its control group": "give the container more: docker run --cpus=8",
    "": "use a machine with more cores; if there is a GPU, let it augment: --set data.augment.engine=triton",
}

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
    yield _check_driver(driver)
    for gpu in driver.gpus:
        yield from _check_gpu(gpu, is_only_one=len(driver.gpus) == 1)


def _check_driver(driver: Driver) -> Check:
    driver_item = partial(item, "GPU", "driver")
    if driver.gpus:
        cuda = f", CUDA up to {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda else ""
        return driver_item(
            f"NVIDIA {driver.version or '(unknown version)'}{cuda}; {count_text(len(driver.gpus), 'GPU')}"
        )
    if driver.num_cards:
        why = driver.silence or "it answers, and shows no GPU"
        return driver_item(
            f"{count_text(driver.num_cards, 'NVIDIA card')} on the bus, but no driver for it: {why}"
        ).problem(
            "training runs on the CPU, many times slower than on the GPU that is there",
            "see what `nvidia-smi` says; start a container with --gpus all; after a driver update restart the machine",
        )
    return driver_item(f"no NVIDIA GPU ({driver.silence or 'the driver shows none'})").note(
        "training runs on the CPU, many times slower than on a GPU",
        "if there should be one: `nvidia-smi`; in a container, docker run --gpus all",
    )


def _check_gpu(gpu: Gpu, *, is_only_one: bool) -> Iterator[Check]:
    name = f"GPU {gpu.index}"
    gpu_item = partial(item, "GPU", name)
    yield gpu_item(_description(gpu))
    if gpu.capability is not None:
        yield _check_formats(name, gpu.capability)
    if gpu.compute_mode == "prohibited":
        yield gpu_item("compute mode is 'prohibited': no program may compute on it").problem(
            "training on it fails at its first operation",
            f"as administrator: nvidia-smi -i {gpu.index} -c DEFAULT; until then: --device cpu",
            stops_training=is_only_one,
        )
    if gpu.compute_mode == "exclusive":
        yield gpu_item("compute mode is 'exclusive': one program at a time").note(
            "a second CUDA program on it fails, even a monitor",
            f"if you do not want that, as administrator: nvidia-smi -i {gpu.index} -c DEFAULT",
        )
    if gpu.has_mig:
        yield _check_slices(gpu_item, gpu)
    used = gpu.memory_used_bytes
    if used is not None and gpu.memory_bytes and used > _USED_SHARE * gpu.memory_bytes:
        yield gpu_item(f"{bytes_text(used)} of {bytes_text(gpu.memory_bytes)} are used by other programs").warning(
            "batches must be smaller, and those programs share its time",
            "list them: nvidia-smi; if there is another GPU, select it with CUDA_VISIBLE_DEVICES",
        )
    # The generation is not judged: an idle link slows down, and speeds up with the first copy.
    width, most = gpu.pcie_width, gpu.pcie_width_max
    if width is not None and most is not None and width < most:
        yield item("GPU", f"{name} link", f"PCIe x{width} of x{most}").warning(
            f"batches reach the GPU at {width / most:.0%} of the possible speed",
            "reseat the card or use a slot with all lanes; a virtual machine may not offer more",
        )
    if gpu.num_uncorrected:
        errors = f"{count_text(gpu.num_uncorrected, 'error')} that ECC could not correct since the driver was loaded"
        yield item("GPU", f"{name} memory", errors).warning(
            "they ended programs, and may do so again",
            f"reset the GPU when it is idle (nvidia-smi -i {gpu.index} -r); if they come back, have it replaced",
        )
    if gpu.is_persistent is False:
        yield gpu_item("persistence mode is off").note(
            "if nothing else keeps the GPU awake, each program first waits 1 to 3 s for it",
            "as administrator: nvidia-smi -pm 1, or the service nvidia-persistenced",
            _PERSISTENCE,
        )


def _description(gpu: Gpu) -> str:
    parts = [gpu.name or "a GPU of unknown name"]
    if gpu.memory_bytes is not None:
        parts.append(bytes_text(gpu.memory_bytes))
    if gpu.capability is not None:
        parts.append(f"compute capability {gpu.capability[0]}.{gpu.capability[1]}")
    if gpu.pcie_width is not None and gpu.pcie_generation is not None:
        parts.append(f"PCIe {gpu.pcie_generation}.0 x{gpu.pcie_width}")
    if gpu.has_ecc is not None:
        parts.append(f"ECC {'on' if gpu.has_ecc else 'off'}")
    return ", ".join(parts)


def _check_formats(name: str, capability: tuple[int, int]) -> Check:
    formats = partial(item, "GPU", f"{name} formats")
    can = {"fp16": _TENSOR_CORES, "bf16": _AMPERE, "TF32": _AMPERE, "fp8": _ADA}
    has = [kind for kind, since in can.items() if capability >= since]
    if capability >= _AMPERE:
        return formats(f"tensor cores take {', '.join(has)}")
    if has:
        return formats("tensor cores take fp16, and neither bf16 nor TF32").note(
            "mixed precision needs fp16 with a gradient scaler; in float32 its tensor cores are idle",
            "torch.autocast('cuda', torch.float16) with torch.amp.GradScaler()",
        )
    return formats("no tensor cores").note("mixed precision saves memory here, but little time")


def _check_slices(gpu_item: partial[Check], gpu: Gpu) -> Check:
    if gpu.num_slices == 0:
        return gpu_item("MIG is on, and no slice exists").problem(
            "CUDA sees no device, and training runs on the CPU",
            f"as administrator create slices (nvidia-smi mig -cgi ... -C) or turn MIG off: nvidia-smi -i {gpu.index} "
            "-mig 0",
        )
    slices = "an unknown number of slices" if gpu.num_slices is None else count_text(gpu.num_slices, "slice")
    return gpu_item(f"it is divided into {slices} (MIG)").note(
        "a process sees one slice, with its part of the cores and the memory",
        "choose one: CUDA_VISIBLE_DEVICES=MIG-... (nvidia-smi -L lists them)",
    )


def check_processor(processor: Processor, *, num_gpus: int) -> Iterator[Check]:
    """Cores, instruction sets, NUMA, and the load of other programs."""
    cpu = partial(item, "CPU")
    yield _check_cores(processor, num_gpus)
    if processor.has_fast_bfloat16 is None:
        yield cpu("bfloat16", "not known: the machine does not list its instruction sets")
    elif processor.has_fast_bfloat16:
        yield cpu("bfloat16", "faster than float32")
    else:
        slow = cpu("bfloat16", "not faster than float32: neither AMX nor AVX-512 BF16 of an AMD core")
        yield slow if num_gpus else slow.note("networks compute in float32 on this CPU")
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
        yield cpu("load", load).note(
            "anything timed now, even by the doctor, looks slower than it is", "list them: top"
        )


def _check_cores(processor: Processor, num_gpus: int) -> Check:
    budget, limit = processor.num_budget, ""
    found = f"{processor.name or 'a processor of unknown name'}; {count_text(budget, 'core')} available"
    if budget < processor.num_cores:
        by_affinity = "affinity" if processor.num_affine == budget else "the quota of its control group"
        limit = "SLURM's grant" if processor.num_granted == budget else by_affinity
        found += f" of {processor.num_cores}, limited by {limit}"
    cores = item("CPU", "cores", found)
    if budget >= 4 or (num_gpus == 0 and budget >= 2):
        return cores
    return cores.warning(
        f"they make the batches: about {_PATCHES_PER_CORE * budget} augmented patches of 96 x 96 x 96 a second, less "
        "than a fast GPU takes"
        if num_gpus
        else "batches and the network share one core",
        _CURE_OF_LIMIT[limit],
    )


def check_memory(memory: Memory, *, num_workers: int) -> Iterator[Check]:
    """Main memory, swap, /dev/shm (through which a loader's `num_workers` pass their batches), overcommit."""
    yield _check_size(memory)
    yield _check_swap(memory)
    yield _check_shm(memory, num_workers)
    if memory.left_folders:
        left = f"{bytes_text(memory.left_bytes)} of prepared cases in {', '.join(memory.left_folders)}"
        yield item("memory", "left behind", f"{left}, which no process uses").warning(
            "a killed run left them, and they take main memory until your next run",
            "voxelocity cache clear --memory",
        )
    if memory.overcommit == 2:
        yield item("memory", "overcommit", "vm.overcommit_memory is 2: reserved memory counts as used").warning(
            "CUDA reserves far more addresses than it uses, and each loader worker repeats what its parent has "
            "reserved; both requests fail while memory is still free",
            "as administrator: sysctl vm.overcommit_memory=0",
        )


def _check_size(memory: Memory) -> Check:
    found = f"{bytes_text(memory.total_bytes)}, {bytes_text(memory.available_bytes)} free"
    if memory.total_bytes < memory.machine_bytes:
        found += f"; the control group allows {bytes_text(memory.total_bytes)} of {bytes_text(memory.machine_bytes)}"
    size = item("memory", "memory", found)
    if memory.available_bytes >= _LITTLE_MEMORY_BYTES:
        return size
    is_limited = memory.total_bytes < min(memory.machine_bytes, _LITTLE_MEMORY_BYTES)
    return size.warning(
        "few prepared cases fit: the others are read from disk again for each patch",
        "allow the container more: docker run --memory=32g; SLURM: #SBATCH --mem=32G"
        if is_limited
        else "end programs that use it (top -o %MEM), or train on a machine with more",
    )


def _check_swap(memory: Memory) -> Check:
    if not memory.swap_bytes:
        return item("memory", "swap", "none; a program that takes too much memory is killed")
    swap = item("memory", "swap", f"{bytes_text(memory.swap_used_bytes)} of {bytes_text(memory.swap_bytes)} used")
    if memory.swap_used_bytes <= 0.1 * memory.total_bytes:
        return swap
    return swap.warning(
        "swapped memory comes back from disk, far more slowly than from RAM",
        "end programs that use much memory (top -o %MEM)",
    )


def _check_shm(memory: Memory, num_workers: int) -> Check:
    shm = partial(item, "memory", "/dev/shm")
    if memory.shm_bytes is None or memory.shm_free_bytes is None:
        return shm("none, or it is not in memory").warning(
            "loaders with workers fail or are slow, and each training process keeps its own cache", _SHM_ADVICE
        )
    needed = num_workers * _BATCHES_PER_WORKER * _BATCH_BYTES
    found = shm(f"{bytes_text(memory.shm_free_bytes)} of {bytes_text(memory.shm_bytes)} free")
    # By default Linux gives it half of the memory; a control group counts its contents as used.
    if memory.shm_free_bytes >= needed:
        return found
    return found.warning(
        f"a torch loader with {count_text(num_workers, 'worker')} keeps about {bytes_text(needed)} of batches there "
        "(two patches of 128 x 128 x 128 each) and ends with a bus error when it is full; prepared cases have no room "
        "there either",
        _SHM_ADVICE if memory.shm_bytes < needed else "see what is there: du -sh /dev/shm/*",
    )


def check_disk(disk: Disk) -> Iterator[Check]:
    """The disk that holds the cache: its free space, its kind, and what its speed means for a case."""
    room = item("disk", "room", f"{bytes_text(disk.free_bytes)} free below {disk.folder}")
    num_cases = disk.free_bytes // _CASE_BYTES
    yield (
        room
        if disk.free_bytes >= _LITTLE_DISK_BYTES
        else room.warning(
            f"{f'about {num_cases}' if num_cases else 'no'} prepared CTs of 512 x 512 x 256 voxels fit; the others are "
            "prepared again in each run, and checkpoints need room too",
            "voxelocity cache clear --older-than 30d, or another folder: --set data.cache.folder=...",
        )
    )
    yield _check_kind(disk)
    if disk.read_bytes_per_s is None or disk.write_bytes_per_s is None:
        yield item("disk", "speed", f"not measured: {disk.not_measured}").note(
            "how long cases would take is not known", "name a folder with room: voxelocity doctor --folder FOLDER"
        )
    else:
        yield _check_speed(disk, disk.read_bytes_per_s, disk.write_bytes_per_s)


def _check_kind(disk: Disk) -> Check:
    kind = partial(item, "disk", "kind")
    if is_on_network(disk.file_system):
        return kind(f"{disk.file_system}: on the network").warning(
            "each patch that memory does not hold comes over the network, at the speed that other users leave; "
            "the LMDB cache, which maps its file, is not used there",
            _ELSEWHERE,
        )
    if is_in_memory(disk.file_system):
        return kind(f"{disk.file_system}: it is memory, not a disk").note(
            "files there take memory from programs, and are gone after a restart", _ELSEWHERE
        )
    # Disks of virtual machines report themselves as rotating in any case; only their speed shows what they are.
    is_slow = disk.read_bytes_per_s is not None and disk.read_bytes_per_s < _ROTATING_BYTES_PER_S
    if disk.device == "rotating" and is_slow:
        return kind(f"{disk.file_system or 'a file system of unknown name'} on a rotating disk").note(
            "patches are scattered, and each waits about 10 ms for the disk to turn", f"{_ELSEWHERE} (an SSD)"
        )
    return kind(disk.file_system or "unknown")


def _check_speed(disk: Disk, read: float, write: float) -> Check:
    found = f"reads {bytes_text(read)}/s, writes {bytes_text(write)}/s"
    if not disk.past_page_cache:
        return item("disk", "speed", f"{found}, through the page cache").note(
            "the disk itself is slower than that: this file system always uses the cache"
        )
    speed = item("disk", "speed", found)
    if is_in_memory(disk.file_system) or (read >= _SLOW_BYTES_PER_S and write >= _SLOW_BYTES_PER_S):
        return speed
    return speed.warning(
        f"a prepared CT of {bytes_text(_CASE_BYTES)} takes {duration_text(_CASE_BYTES / read)} to read and "
        f"{duration_text(_CASE_BYTES / write)} to write; if memory does not hold all cases, training waits for it",
        _ELSEWHERE,
    )


def check_limits(limits: Limits) -> Iterator[Check]:
    """Open files, processes, and locked memory if an adapter needs it."""
    yield _check_files(limits)
    counts = [count for count in (limits.processes, limits.group_processes) if count is not None]
    least = min(counts, default=None)
    processes = item("limits", "processes", "no limit" if least is None else f"{least:,} processes and threads")
    yield (
        processes
        if least is None or least >= _FEW_PROCESSES
        else processes.warning(
            "each worker of a loader and each thread of torch and of CUDA counts; a run ends with 'Resource "
            "temporarily unavailable' when they are used up",
            "docker run --pids-limit=-1"
            if limits.group_processes == least
            else f"ulimit -u {_FEW_PROCESSES * 4}, or /etc/security/limits.conf",
        )
    )
    locked = limits.locked_bytes
    found = "no limit" if locked is None else bytes_text(locked)
    # Memory that CUDA pins for its copies does not count; memory that an adapter accesses does.
    if not limits.has_rdma or locked is None or locked >= _GIB:
        yield item("limits", "locked memory", found)
    else:
        yield item("limits", "locked memory", f"{found}, with an InfiniBand or RoCE adapter in the machine").warning(
            "NCCL cannot register its buffers with the adapter: training on several nodes fails, or uses TCP",
            "ulimit -l unlimited (in a container: docker run --ulimit memlock=-1)",
        )


def _check_files(limits: Limits) -> Check:
    soft, hard = limits.open_files, limits.open_files_hard
    files = item("limits", "open files", "no limit" if soft is None else f"{soft:,} at a time")
    if soft is None or soft >= _FEW_FILES:
        return files
    return files.warning(
        "torch's loaders hold a file for each tensor in transit, and with many of them a run ends with 'Too many open "
        "files'",
        f"ulimit -n {_FEW_FILES if hard is None else min(hard, 65_536)}"
        if hard is None or hard > soft
        else "the hard limit is as low: docker run --ulimit nofile=65536, or /etc/security/limits.conf",
    )
