"""Runs a command as a child in this terminal, as if it had been started without us.

It has our standard streams, our other open descriptors and our process group. Ctrl-C, Ctrl-\\ and the closing of a
terminal reach it from the terminal, once; we wait, so that the command ends in its own way. A signal sent only to us is
passed on: SIGTERM, SIGUSR1 and SIGUSR2 (schedulers send these before a time limit). SIGINT, SIGQUIT and SIGHUP are not
passed on, because we cannot know whether the command has already received them.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType, MappingProxyType
from typing import Any

import psutil

from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.errors import CommandError

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_WAITED_OUT = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# Between two checks if the kernel cannot report a child's end (before Linux 5.3, and macOS).
_LOOK_EVERY_S = 0.05


def run_command(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
    on_start: Callable[[int], None] | None = None,
    tick: Callable[[], None] | None = None,
    tick_s: float = 1.0,
) -> int:
    """The command's exit status as a shell reports it: its own, or 128 + n if signal n ended it.

    See `watch_command` for everything else.
    """
    return shell_status(watch_command(command, environment=environment, on_start=on_start, tick=tick, tick_s=tick_s))


def shell_status(status: int) -> int:
    """A status from `watch_command`, as a shell reports it: -n becomes 128 + n."""
    return 128 - status if status < 0 else status


def signal_name(number: int) -> str:
    """The name of a signal, "SIGTERM"; "signal 99" if the system knows no such number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_number(status: int) -> int:
    """The signal that ended a program, from its status as a parent or a shell reports it; 0 if none did."""
    if status < 0:
        return -status
    return status - 128 if status - 128 in signal.valid_signals() else 0


def watch_command(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
    on_start: Callable[[int], None] | None = None,
    tick: Callable[[], None] | None = None,
    tick_s: float = 1.0,
    on_end: Callable[[], object] | None = None,
    clock: Clock = system_clock,
) -> int:
    """The exit status of the command, -n where signal n ended it.

    Signals are handled only in the main thread; called in another, this only starts the command and waits. An
    exception in one of the functions is raised once the command has ended.

    Args:
        command: its name or path, and its arguments; no shell reads them.
        environment: variables besides those of this process.
        on_start: is called with the process id, at once.
        tick: is called every `tick_s` while the command runs.
        tick_s: seconds between two calls of `tick`.
        on_end: is called when the command has ended, while the kernel still has its figures.
        clock: returns seconds.

    Raises:
        CommandError: there is no such command (status 127), or it cannot be executed (status 126).
    """
    with _signals() as passing:
        child = _start(command, environment)
        passing.begin(child)
        try:
            if on_start is not None:
                on_start(child.pid)
            _wait(child.pid, tick, tick_s, clock)
            if on_end is not None:
                on_end()
        finally:
            # Whatever went wrong here, the command is not left alone.
            status = child.wait()
    return status


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    assert command, "no command"
    try:
        # Our own descriptors close by themselves; those that a shell opened for the command must stay: <(...).
        return subprocess.Popen(command, env={**os.environ, **environment}, close_fds=False)
    except OSError as error:
        raise _start_error(command[0], error) from None


def _start_error(name: str, error: OSError) -> CommandError:
    # Without a slash, a name is looked for on PATH alone, as in a shell.
    status, found = _NOT_EXECUTABLE, shutil.which(name) or (name if os.sep in name and os.path.exists(name) else None)
    if os.path.isdir(name):
        what = "is a folder; name a program in it"
    elif error.errno in (errno.ENOENT, errno.ENOTDIR) and found is None:
        status, what = _NOT_FOUND, "not found; give its path, or check its name and PATH"
        if name.endswith(".py"):
            what = f"not found; a Python program is watched with its interpreter before it: python {name}"
        elif os.path.exists(name):
            what = f"not found on PATH; for the file in this folder, write ./{name}"
    elif error.errno == errno.ENOENT:
        first_line = f"'{found}' names an interpreter in its first line that does not exist"
        what = f"cannot be started: {first_line}; correct that line"
    elif error.errno == errno.EACCES:
        what = "not executable; chmod +x it, or name its interpreter, such as 'python', before it"
    elif error.errno == errno.ENOEXEC:
        what = "is not a program for this machine and has no '#!' line; name its interpreter, such as 'sh', before it"
    else:
        what = f"cannot be started ({error.strerror}); try it without watching it"
    return CommandError(f"command '{name}': {what}", status=status)


def _wait(pid: int, tick: Callable[[], None] | None, tick_s: float, clock: Clock) -> None:
    """Returns when the process has ended; it is not reaped yet."""
    with _end_of(pid) as has_ended:
        due_s = clock() + tick_s
        while not has_ended(None if tick is None else max(0.0, due_s - clock())):
            if tick is not None and clock() >= due_s:
                tick()
                due_s = max(due_s + tick_s, clock())


@contextmanager
def _end_of(pid: int) -> Iterator[Callable[[float | None], bool]]:
    """A function that waits for the end of a child for some seconds (None: forever) and says whether it came."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield lambda seconds: _looks_ended(pid, seconds)
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        yield lambda seconds: bool(poll.poll(None if seconds is None else seconds * 1000))
    finally:
        os.close(descriptor)


def _looks_ended(pid: int, seconds: float | None) -> bool:
    threading.Event().wait(_LOOK_EVERY_S if seconds is None else min(seconds, _LOOK_EVERY_S))
    # Python has `os.waitid` on macOS only since 3.13.
    return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


class _Passing:
    """Passes signals on to the child, including those that came before it started."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def begin(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        while self._early:
            self._send(self._early.pop(0))

    def handle(self, number: int, frame: FrameType | None) -> None:
        if number in _WAITED_OUT:
            return
        if self._child is None:
            self._early.append(number)
        else:
            self._send(number)

    def _send(self, number: int) -> None:
        # Not with Popen's own method, which would reap a child that has ended, and with it its figures.
        if self._child is not None and self._child.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._child.pid, number)


@contextmanager
def _signals() -> Iterator[_Passing]:
    """Handlers while the command runs. The child gets the default for handled signals; ignored ones stay ignored."""
    passing = _Passing()
    if threading.current_thread() is not threading.main_thread():
        yield passing
        return
    # What was ignored stays ignored, as with nohup, or for a job in the background of a script.
    numbers = [n for n in (*_WAITED_OUT, *_PASSED_ON) if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    before: dict[int, Any] = {number: signal.signal(number, passing.handle) for number in numbers}
    # If the program that started us ignores the ends of children, the kernel would forget the status.
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield passing
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
