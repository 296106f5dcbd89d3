"""Runs one of our commands in a separate process and causes trouble: a kill inside a write, a full disk, no memory.

Bytes of a file and CPU seconds trigger the kills, so that a busy machine does not shift them.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import multiprocessing
import os
import re
import resource
import runpy
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

# Imports that would take most of the time of a short run.
_PRELOADED = (
    "voxelocity_observe.cli.main", "voxelocity.training", "voxelocity.infer", "voxelocity.data.source",
    "voxelocity.data.augment.native_engine", "voxelocity.monai.steps",
    "monai.networks.nets", "torch._dynamo", "matplotlib.figure", "matplotlib.backends.backend_agg", "lmdb", "jinja2",
)  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR
_MAX_WAIT_S = 120.0
# What a command may print before it blocks until we read; the kernel's default is 64 KiB.
_PIPE_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What happens to a command.

    Attributes:
        file: a regular expression; trouble with files starts when a file whose path matches is opened for writing. ""
            starts at once.
        number: which of these openings, from 1.
        max_bytes: from then on no file grows beyond this size: a longer write stops there.
        is_kill: whether a write beyond it kills the process or fails.
        at_move: the process is killed when such a file is about to be moved to its place; `max_bytes` is ignored.
        cpu_s: after this many CPU seconds of the process, `signal_number` arrives.
        signal_number: SIGKILL or one that programs may handle.
        spare_bytes: how much memory the process may still ask for.
    """

    file: str = ""
    number: int = 1
    max_bytes: int | None = None
    is_kill: bool = True
    at_move: bool = False
    cpu_s: float = 0.0
    signal_number: int = signal.SIGKILL
    spare_bytes: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: of the process; negative if a signal ended it.
        out: what it wrote to the standard output.
        err: what it wrote to the standard error.
    """

    status: int
    out: str
    err: str

    @property
    def was_killed(self) -> bool:
        """Whether it ended by a signal that it could not handle."""
        return self.status < 0

    def in_words(self) -> Ended:
        """Returns this object if the command reported what happened in words rather than by a traceback.

        Raises:
            AssertionError: there is a traceback, or an error without a message.
        """
        assert "Traceback (most recent call last)" not in self.err, self.err[-2000:]
        assert self.status <= 0 or "voxelocity:" in self.err or "Usage:" in self.err, (
            f"status {self.status}: {self.err}"
        )
        return self


class Started:
    """A command that is running. If `ended` is not called, it is killed when this process ends, at the latest."""

    def __init__(self, process: BaseProcess, streams: tuple[int, int]) -> None:
        self.process = process
        self._streams = streams

    def ended(self, *, within_s: float = _MAX_WAIT_S) -> Ended:
        """Waits for the end.

        Raises:
            AssertionError: it did not end in time; the process is killed.
        """
        self.process.join(within_s)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"not ended after {within_s:.0f} s: {self._hear()[1][-1000:]}")
        return Ended(self.process.exitcode, *self._hear())

    def _hear(self) -> tuple[str, str]:
        out, err = (_read_all(stream) for stream in self._streams)
        return out, err


def _read_all(stream: int) -> str:
    # A process that the command left running may still hold the other end.
    os.set_blocking(stream, False)
    with os.fdopen(stream, "rb") as file:
        return (file.read() or b"").decode(errors="replace")


def start(arguments: Sequence[object], *, place: Path, trouble: Trouble | None = None, script: str = "") -> Started:
    """Starts `voxelocity ARGUMENTS` with one thread, forked from a process that has already imported everything.

    Args:
        arguments: of the command line.
        place: the folder that the commands' memory tiers share.
        trouble: what happens to the command.
        script: Python that runs before the command, to replace parts of it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    # Pipes, because a limit on file sizes would also apply to streams in files.
    ends = [os.pipe() for _ in range(2)]
    for _, into in ends:
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    texts = [os.fspath(part) if isinstance(part, Path) else str(part) for part in arguments]
    process = context.Process(
        target=_run,
        args=(_Streams(*(into for _, into in ends)), texts, place, trouble or Trouble(), script),
        daemon=True,
    )
    process.start()
    for _, into in ends:
        os.close(into)
    return Started(process, (ends[0][0], ends[1][0]))


class _Streams:
    """Standard output and error of a process that is being started."""

    def __init__(self, out: int, err: int) -> None:
        self._numbers = (out, err)

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(map(DupFd, self._numbers))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._numbers = tuple(tensor.detach() for tensor in state)

    def take(self) -> None:
        for number, stream in zip((1, 2), self._numbers, strict=True):
            os.dup2(stream, number)
            os.close(stream)


def _run(streams: _Streams, arguments: list[str], place: Path, trouble: Trouble, script: str) -> None:
    streams.take()
    sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
    # A daemon of `multiprocessing` may not start processes, but a command may.
    multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    import torch

    from voxelocity.data.cache import choose
    from voxelocity.planning import make

    torch.set_num_threads(1)
    vars(choose)["memory_folder"] = lambda **_: (place, "")
    vars(make)["_MEASURE"] = "never"
    sys.argv = ["voxelocity", *arguments]
    exec(script, {})
    _prepare(trouble)
    try:
        runpy.run_module("voxelocity", run_name="__main__")
    finally:
        # Children of `multiprocessing` skip these; a program does not.
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def _prepare(trouble: Trouble) -> None:
    if trouble.max_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if trouble.is_kill else signal.SIG_IGN)
    if trouble.cpu_s:
        kill = trouble.signal_number == signal.SIGKILL
        answer: Any = signal.SIG_DFL if kill else lambda *_: os.kill(os.getpid(), trouble.signal_number)
        signal.signal(signal.SIGPROF, answer)
        signal.setitimer(signal.ITIMER_PROF, trouble.cpu_s)
    if trouble.spare_bytes is not None:
        used_bytes = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        _limit(resource.RLIMIT_AS, used_bytes + trouble.spare_bytes)
    if trouble.file:
        _wait_for_file(trouble)
    elif trouble.max_bytes is not None:
        _limit(resource.RLIMIT_FSIZE, trouble.max_bytes)


def _wait_for_file(trouble: Trouble) -> None:
    pattern, num_left = re.compile(trouble.file), trouble.number

    def hear(event: str, values: tuple[Any, ...]) -> None:
        nonlocal num_left
        if event == "os.rename" and trouble.at_move:
            matches = _matches(pattern, values[1])
        elif event == "open" and not trouble.at_move:
            matches = bool((values[2] or 0) & _WRITES) and _matches(pattern, values[0])
        else:
            return
        num_left -= matches
        if not matches or num_left != 0:
            return
        if trouble.at_move:
            os.kill(os.getpid(), signal.SIGKILL)
        assert trouble.max_bytes is not None
        _limit(resource.RLIMIT_FSIZE, trouble.max_bytes)

    sys.addaudithook(hear)


def _matches(pattern: re.Pattern[str], path: Any) -> bool:
    return not isinstance(path, int) and pattern.search(os.fsdecode(path)) is not None


def _limit(kind: int, num_bytes: int) -> None:
    # The hard limit stays, so that the soft limit can be raised again.
    resource.setrlimit(kind, (num_bytes, resource.getrlimit(kind)[1]))
