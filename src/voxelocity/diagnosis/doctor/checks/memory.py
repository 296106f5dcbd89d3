"""Main memory, swap, and /dev/shm, through which loaders pass their batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from voxelocity.core.quantities import bytes_text, count_text
from voxelocity.diagnosis.doctor.check import Check
from voxelocity.diagnosis.doctor.seen import Memory

_check = partial(Check, section="memory")

_GIB = 2**30
_LITTLE_BYTES = 8 * _GIB
# A batch of two patches of 128 x 128 x 128, image in float32 and label in a byte. torch's loaders keep two batches
# ahead for each worker (prefetch_factor), and one is being made.
_BATCH_BYTES = 2 * 128**3 * 5
_BATCHES_PER_WORKER = 3
_SHM_ADVICE = "docker run --shm-size=8g (or --ipc=host); in Kubernetes an emptyDir with medium: Memory at /dev/shm"


def judge_memory(memory: Memory, *, num_workers: int) -> Iterator[Check]:
    """Main memory, swap, /dev/shm, overcommit.

    Args:
        memory: what the probe saw.
        num_workers: workers that a loader would run here.
    """
    yield _judge_size(memory)
    yield _judge_swap(memory)
    yield _judge_shm(memory, num_workers)
    if memory.left_folders:
        yield _check(
            name="left behind",
            level="warning",
            found=f"{bytes_text(memory.left_bytes)} of prepared cases in {', '.join(memory.left_folders)}, which no "
            "process uses",
            costs="a killed run left them, and they take main memory until your next run",
            cure="voxelocity cache clear --memory",
        )
    if memory.overcommit == 2:
        yield _check(
            name="overcommit",
            level="warning",
            found="vm.overcommit_memory is 2: reserved memory counts as used",
            costs="CUDA reserves far more addresses than it uses, and each loader worker repeats what its parent has "
            "reserved; both requests fail while memory is still free",
            cure="as administrator: sysctl vm.overcommit_memory=0",
        )


def _judge_size(memory: Memory) -> Check:
    found = f"{bytes_text(memory.total_bytes)}, {bytes_text(memory.available_bytes)} free"
    if memory.total_bytes < memory.machine_bytes:
        found += f"; the control group allows {bytes_text(memory.total_bytes)} of {bytes_text(memory.machine_bytes)}"
    if memory.available_bytes >= _LITTLE_BYTES:
        return _check(name="memory", level="ok", found=found)
    is_limited = memory.total_bytes < min(memory.machine_bytes, _LITTLE_BYTES)
    return _check(
        name="memory",
        level="warning",
        found=found,
        costs="few prepared cases fit: the others are read from disk again for each patch",
        cure="allow the container more: docker run --memory=32g; SLURM: #SBATCH --mem=32G"
        if is_limited
        else "end programs that use it (top -o %MEM), or train on a machine with more",
    )


def _judge_swap(memory: Memory) -> Check:
    if not memory.swap_bytes:
        return _check(name="swap", level="ok", found="none; a program that takes too much memory is killed")
    found = f"{bytes_text(memory.swap_used_bytes)} of {bytes_text(memory.swap_bytes)} used"
    if memory.swap_used_bytes <= 0.1 * memory.total_bytes:
        return _check(name="swap", level="ok", found=found)
    return _check(
        name="swap",
        level="warning",
        found=found,
        costs="swapped memory comes back from disk, far more slowly than from RAM",
        cure="end programs that use much memory (top -o %MEM)",
    )


def _judge_shm(memory: Memory, num_workers: int) -> Check:
    needed = num_workers * _BATCHES_PER_WORKER * _BATCH_BYTES
    if memory.shm_bytes is None or memory.shm_free_bytes is None:
        return _check(
            name="/dev/shm",
            level="warning",
            found="none, or it is not in memory",
            costs="loaders with workers fail or are slow, and each training process keeps its own cache",
            cure=_SHM_ADVICE,
        )
    found = f"{bytes_text(memory.shm_free_bytes)} of {bytes_text(memory.shm_bytes)} free"
    if memory.shm_free_bytes < needed:
        return _check(
            name="/dev/shm",
            level="warning",
            found=found,
            costs=f"a torch loader with {count_text(num_workers, 'worker')} keeps about {bytes_text(needed)} of "
            "batches there (two patches of 128 x 128 x 128 each) and ends with a bus error when it is full; prepared "
            "cases have no room there either",
            cure=_SHM_ADVICE if memory.shm_bytes < needed else "see what is there: du -sh /dev/shm/*",
        )
    # By default Linux gives it half of the memory; a control group counts its contents as used.
    return _check(name="/dev/shm", level="ok", found=found)
