"""The end of a program: by the clock where it makes no steps, such as one that only predicts, and of one that was asked
to end and does not. Nothing that it writes is torn.

A program without steps is ended where it calls its network or asks a loader for a batch. If it no longer does either, a
thread of the recorder ends it as soon as it holds no file open for writing.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import stat
import sys
import threading
import time
from typing import Any, Callable

from .writer import tell_user

_WITH_OPTIMIZER = 3.0
"""Factor on the limit for a program with an optimizer: for a long validation, or what comes before training."""

_LEAST_WITH_OPTIMIZER_S = 300.0
"""A step that compiles takes long, however short the limit is."""

_GRACE_S = 15.0
_LOOK_EVERY_S = 1.0

_PATIENCE_S = 60.0
"""For a program that was asked to end, to clean up."""

_MOST_PATIENCE_S = 600.0
"""For one that still computes after that: it may be sending its results somewhere."""

_IDLE_S = 5.0
_IDLE_SHARE = 0.02


class Enough(SystemExit):
    """Ends the watched program: enough was seen."""

    def __init__(self) -> None:
        super().__init__(0)


class Deadline:
    """Knows when a program has made no step for too long.

    Args:
        seconds: without a step, counted from the first call of a network.
        clock: returns seconds.
        has_optimizer: whether the program could train; asked once, when `seconds` are over.
    """

    def __init__(self, seconds: float, clock: Callable[[], float], has_optimizer: Callable[[], bool]) -> None:
        self.allowed_s = seconds
        self._with_optimizer_s = max(_WITH_OPTIMIZER * seconds, _LEAST_WITH_OPTIMIZER_S)
        self._clock = clock
        self._has_optimizer: Callable[[], bool] | None = has_optimizer
        self._since_s: float | None = None
        self._is_off = False

    @property
    def is_running(self) -> bool:
        return self._since_s is not None

    def begin(self) -> None:
        """A network is called; only the first call counts."""
        if self._since_s is None:
            self._since_s = self._clock()

    def step_ended(self) -> None:
        """The program trains."""
        self._since_s = self._clock()
        self.allowed_s = self._with_optimizer_s
        self._has_optimizer = None

    def turn_off(self) -> None:
        """It no longer ends the program."""
        self._is_off = True

    def is_over(self, *, grace_s: float = 0.0) -> bool:
        """Whether it has passed. Costs about 0.1 microseconds until then."""
        if self._since_s is None or self._is_off or self._clock() - self._since_s < self.allowed_s + grace_s:
            return False
        if self._has_optimizer is not None:
            has_optimizer, self._has_optimizer = self._has_optimizer, None
            if has_optimizer():
                self.allowed_s = self._with_optimizer_s
                return self.is_over(grace_s=grace_s)
        return True

    def watch(self, folder: str, end: Callable[[], None]) -> None:
        """Calls `end` in a separate thread if the program does not reach a place where it can be ended.

        Args:
            folder: of the recording, whose files may be open.
            end: called once, and not while the program holds a file open for writing.
        """
        threading.Thread(target=self._watch, args=(folder, end), name="voxelocity-deadline", daemon=True).start()

    def _watch(self, folder: str, end: Callable[[], None]) -> None:
        while not self._is_off:
            time.sleep(_LOOK_EVERY_S)
            if self.is_over(grace_s=_GRACE_S) and not files_open_for_writing(folder):
                if not self._is_off:
                    end()
                return


def has_any(cls: type) -> bool:
    """Whether an object of the class is alive. Looks through the whole heap."""
    return any(issubclass(type(value), cls) for value in gc.get_objects())


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
            tell_user(f"the program was asked to end and has not; {why}, so it is left alone; Ctrl-C ends it")
    for stream in (sys.stdout, sys.stderr):
        # The program may have closed it.
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
    end(0)


def files_open_for_writing(folder: str) -> list[str]:
    """Regular files that this process holds open for writing, except its standard streams, files without a name,
    shared memory and those in `folder`. Empty if the system does not list them."""
    passed_over = {None, *map(_identity, (0, 1, 2))}
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
        if flags & os.O_ACCMODE == os.O_RDONLY or _identity(number) in passed_over:
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


def keep_quiet_about_the_end() -> None:
    """Python itself prints what is raised while it shuts down, as in `atexit`; this hides our own `Enough`."""
    before = sys.unraisablehook

    def tell(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, Enough):
            before(unraisable)

    sys.unraisablehook = tell
