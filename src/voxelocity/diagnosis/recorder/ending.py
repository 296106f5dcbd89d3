"""The end of a program that was asked to end: waits for it, and tears nothing that it writes."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import threading
import time
from typing import Callable

_PATIENCE_S = 60.0
"""For a program that was asked to end, to clean up."""

_MOST_PATIENCE_S = 600.0
"""For one that still computes after that: it may be sending its results somewhere."""

_IDLE_S = 5.0
_IDLE_SHARE = 0.02


def end_process_later(folder: str) -> None:
    """Ends this process after a minute if it has not ended by then, at once and without writing files.

    Some programs survive `SystemExit`: they catch it, or train in a thread while another one waits. One that still
    computes gets ten minutes; one that holds a file open for writing is never ended.

    Args:
        folder: of the recording, whose files do not count.
    """
    threading.Thread(target=_wait_and_end, args=(folder,), name="voxelocity-end", daemon=True).start()


def _wait_and_end(
    folder: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    cpu_s: Callable[[], float] = time.process_time,
    end: Callable[[int], object] = os._exit,
) -> None:
    since_s = clock()
    sleep(_PATIENCE_S)
    is_told = False
    while True:
        used_s = cpu_s()
        sleep(_IDLE_S)
        is_idle = cpu_s() - used_s < _IDLE_SHARE * _IDLE_S
        files = files_open_for_writing(folder)
        if not files and (is_idle or clock() - since_s >= _MOST_PATIENCE_S):
            break
        if not is_told:
            is_told = True
            why = f"it holds {', '.join(files[:3])} open for writing" if files else "it still computes"
            print(
                f"voxelocity: the program was asked to end and has not; {why}, so it is left alone; Ctrl-C ends it",
                file=sys.stderr,
                flush=True,
            )
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    end(0)


def files_open_for_writing(folder: str) -> list[str]:
    """Regular files that this process holds open for writing, except its standard streams, files without a name,
    shared memory and those in `folder`. Empty if the system does not list them."""
    standard = {_identity(number) for number in (0, 1, 2)}
    ours = os.path.join(os.path.abspath(folder), "")
    found: list[str] = []
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return found
    for number in numbers:
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
            with open(f"/proc/self/fdinfo/{number}", encoding="ascii") as file:
                flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
        except (OSError, ValueError, StopIteration):
            continue
        if flags & os.O_ACCMODE == os.O_RDONLY or _identity(number) in standard or _identity(number) is None:
            continue
        if not path.endswith(" (deleted)") and not path.startswith(("/dev/", "/memfd:", ours)):
            found.append(path)
    return sorted(found)


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Device and inode of the regular file behind a descriptor, None if there is none."""
    try:
        known = os.fstat(descriptor)
    except OSError:
        return None
    return (known.st_dev, known.st_ino) if stat.S_ISREG(known.st_mode) else None


def raise_in(thread: int, exception: type[BaseException]) -> None:
    """Makes another thread raise the exception at its next step in Python; a call that waits is not interrupted."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))
