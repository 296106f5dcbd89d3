"""The disk that holds the cache: its free space, its kind, and what its speed means for a case."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from voxelocity.core.quantities import bytes_text, duration_text
from voxelocity.diagnosis.doctor.check import Check
from voxelocity.diagnosis.doctor.seen import Disk
from voxelocity.observe.file_systems import is_in_memory, is_on_network

_check = partial(Check, section="disk")

_GIB = 2**30
_LITTLE_BYTES = 10 * _GIB
# A CT of 512 x 512 x 256 voxels in two bytes, with its label in one.
_CASE_BYTES = 512 * 512 * 256 * 3
_SLOW_BYTES_PER_S = 100e6
_ROTATING_BYTES_PER_S = 300e6
_ELSEWHERE = "keep the cache on a disk of this machine: --set data.cache.folder=/local/folder"


def judge_disk(disk: Disk) -> Iterator[Check]:
    """Free space, kind and speed."""
    yield _judge_room(disk)
    yield _judge_kind(disk)
    if disk.read_bytes_per_s is None or disk.write_bytes_per_s is None:
        yield _check(
            name="speed",
            level="note",
            found=f"not measured: {disk.not_measured}",
            costs="how long cases would take is not known",
            cure="name a folder with room: voxelocity doctor --folder FOLDER",
        )
        return
    yield _judge_speed(disk, disk.read_bytes_per_s, disk.write_bytes_per_s)


def _judge_room(disk: Disk) -> Check:
    found = f"{bytes_text(disk.free_bytes)} free below {disk.folder}"
    if disk.free_bytes >= _LITTLE_BYTES:
        return _check(name="room", level="ok", found=found)
    num_cases = disk.free_bytes // _CASE_BYTES
    fitting = f"about {num_cases}" if num_cases else "no"
    return _check(
        name="room",
        level="warning",
        found=found,
        costs=f"{fitting} prepared CTs of 512 x 512 x 256 voxels fit; the others are prepared again in each run, and "
        "checkpoints need room too",
        cure="voxelocity cache clear --older-than 30d, or another folder: --set data.cache.folder=...",
    )


def _judge_kind(disk: Disk) -> Check:
    if is_on_network(disk.file_system):
        return _check(
            name="kind",
            level="warning",
            found=f"{disk.file_system}: on the network",
            costs="each patch that memory does not hold comes over the network, at the speed that other users leave; "
            "the LMDB cache, which maps its file, is not used there",
            cure=_ELSEWHERE,
        )
    if is_in_memory(disk.file_system):
        return _check(
            name="kind",
            level="note",
            found=f"{disk.file_system}: it is memory, not a disk",
            costs="files there take memory from programs, and are gone after a restart",
            cure=_ELSEWHERE,
        )
    # Disks of virtual machines report themselves as rotating in any case; only their speed shows what they are.
    is_slow = disk.read_bytes_per_s is not None and disk.read_bytes_per_s < _ROTATING_BYTES_PER_S
    if disk.device == "rotating" and is_slow:
        return _check(
            name="kind",
            level="note",
            found=f"{disk.file_system or 'a file system of unknown name'} on a rotating disk",
            costs="patches are scattered, and each waits about 10 ms for the disk to turn",
            cure=_ELSEWHERE + " (an SSD)",
        )
    return _check(name="kind", level="ok", found=disk.file_system or "unknown")


def _judge_speed(disk: Disk, read: float, write: float) -> Check:
    found = f"reads {bytes_text(read)}/s, writes {bytes_text(write)}/s"
    if not disk.past_page_cache:
        return _check(
            name="speed",
            level="note",
            found=f"{found}, through the page cache",
            costs="the disk itself is slower than that: this file system always uses the cache",
        )
    if is_in_memory(disk.file_system) or (read >= _SLOW_BYTES_PER_S and write >= _SLOW_BYTES_PER_S):
        return _check(name="speed", level="ok", found=found)
    return _check(
        name="speed",
        level="warning",
        found=found,
        costs=f"a prepared CT of {bytes_text(_CASE_BYTES)} takes {duration_text(_CASE_BYTES / read)} to read and "
        f"{duration_text(_CASE_BYTES / write)} to write; if memory does not hold all cases, training waits for it",
        cure=_ELSEWHERE,
    )
