"""What a process may take: open files, processes, locked memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from voxelocity.core.quantities import bytes_text
from voxelocity.diagnosis.doctor.check import Check
from voxelocity.diagnosis.doctor.seen import Limits

_check = partial(Check, section="limits")

# Users with large loaders hit the usual soft limit of 1,024.
_FEW_FILES = 4096
_FEW_PROCESSES = 2048
_GIB = 2**30


def judge_limits(limits: Limits) -> Iterator[Check]:
    """Open files, processes, and locked memory if an adapter needs it."""
    yield _judge_files(limits)
    yield _judge_processes(limits)
    yield _judge_locked(limits)


def _judge_locked(limits: Limits) -> Check:
    found = "no limit" if limits.locked_bytes is None else bytes_text(limits.locked_bytes)
    # Memory that CUDA pins for its copies does not count; memory that an adapter accesses does.
    if not limits.has_rdma or limits.locked_bytes is None or limits.locked_bytes >= _GIB:
        return _check(name="locked memory", level="ok", found=found)
    return _check(
        name="locked memory",
        level="warning",
        found=f"{found}, with an InfiniBand or RoCE adapter in the machine",
        costs="NCCL cannot register its buffers with the adapter: training on several nodes fails, or uses TCP",
        cure="ulimit -l unlimited (in a container: docker run --ulimit memlock=-1)",
    )


def _judge_files(limits: Limits) -> Check:
    if limits.open_files is None:
        return _check(name="open files", level="ok", found="no limit")
    found = f"{limits.open_files:,} at a time"
    if limits.open_files >= _FEW_FILES:
        return _check(name="open files", level="ok", found=found)
    hard = limits.open_files_hard
    can_raise = hard is None or hard > limits.open_files
    return _check(
        name="open files",
        level="warning",
        found=found,
        costs="torch's loaders hold a file for each tensor in transit, and with many of them a run ends with 'Too many "
        "open files'",
        cure=f"ulimit -n {_FEW_FILES if hard is None else min(hard, 65_536)}"
        if can_raise
        else "the hard limit is as low: docker run --ulimit nofile=65536, or /etc/security/limits.conf",
    )


def _judge_processes(limits: Limits) -> Check:
    counts = [count for count in (limits.processes, limits.group_processes) if count is not None]
    if not counts:
        return _check(name="processes", level="ok", found="no limit")
    found = f"{min(counts):,} processes and threads"
    if min(counts) >= _FEW_PROCESSES:
        return _check(name="processes", level="ok", found=found)
    return _check(
        name="processes",
        level="warning",
        found=found,
        costs="each worker of a loader and each thread of torch and of CUDA counts; a run ends with 'Resource "
        "temporarily unavailable' when they are used up",
        cure="docker run --pids-limit=-1"
        if limits.group_processes == min(counts)
        else f"ulimit -u {_FEW_PROCESSES * 4}, or /etc/security/limits.conf",
    )
