"""torch.profiler around a few steps, and its trace in the folder of the recording.

The profiled steps are slowed down (by half to twice, on programs of many small operators) and count only in the
profile's own figures. Parts of a step and waits for the device are in the trace as ranges, with the user's line. Stacks
of Python functions are not recorded: they make a trace ten times as large.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable

from .hooks import AttributePatches, forget, listen
from .process import rank_and_world_size
from .syncs import Syncs

TRACE_NAME = "trace.json.gz"
# No further step is profiled after this time, so traces of slow steps stay small.
_LIMIT_S = 30.0
# What torch 2.13 prints on stderr about its own probes, and if a thread other than the first trains; also after an
# unfinished line of the program.
_PROBE_LINE = re.compile(
    rb"USDT:[-\d]+ [:\d]+ \d+:\d+ \w+\.cpp:\d+\] profiler_(?:start|stop)\n"
    rb"|ERROR: External init callback must run in same thread as registerClient \(-?\d+ != -?\d+\)\n"
)
_NATIVE_CALLS = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
_CHILD_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"})
_MAX_CHILD_WAIT_S = 1.0
# Ten times as fast as gzip's default, for a file that is a sixth larger.
_LEVEL = 1


class Profiler:
    """Profiles steps between `start` and `stop`, in the training thread.

    Cost: only in the profiled steps; `stop` takes about 1 s for 10 MB of trace.

    Args:
        folder: where the trace goes; it exists.
        syncs: puts its calls into the trace meanwhile.
    """

    def __init__(self, folder: str, *, syncs: Syncs | None = None) -> None:
        self._path = os.path.join(folder, TRACE_NAME)
        self._syncs = syncs
        self._profile: Any = None
        self._owner = 0, 0
        self._began = 0.0
        self._step = 0
        self._ranges: list[Any] = []

    def start(self) -> str:
        """Begins, at the end of a step. Returns "", or why it cannot start; then nothing has begun."""
        torch = sys.modules["torch"]
        if torch._C._autograd._profiler_enabled():
            return "the program runs torch.profiler itself"
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profile = torch.profiler.profile(activities=activities, record_shapes=True, acc_events=True)
        try:
            with _without_probe_lines():
                profile.start()
        except RuntimeError as error:
            # Drivers that forbid profiling and a second profiler both raise this; the program must continue.
            return f"torch.profiler did not start: {error}"
        self._profile, self._began, self._step = profile, time.perf_counter(), 0
        self._owner = os.getpid(), threading.get_ident()
        if self._syncs is not None:
            self._syncs.annotate = torch.profiler.record_function
        self._open(f"ProfilerStep#{self._step}")
        return ""

    def part(self, name: str) -> None:
        """Marks in the trace that another part of the step begins ("wait", "forward", ...); "" for no part."""
        if self._profile is None:
            return
        self._close(1)
        if name:
            self._open(f"part: {name}")

    def step(self) -> bool:
        """Begins the next step. Returns False if there was no time for another one: then call `stop`, as after the last
        step."""
        if self._profile is None or time.perf_counter() - self._began > _LIMIT_S:
            return False
        self._close(0)
        self._step += 1
        self._open(f"ProfilerStep#{self._step}")
        return True

    def stop(self, *, is_complete: bool = True) -> None:
        """Ends profiling and writes the trace, if it can be written.

        In a distributed training only the first rank's is written; the others have run at its pace. In another thread
        than that of `start`, or in a process forked since, this does nothing: torch would refuse it.

        Args:
            is_complete: whether the last step has ended; if not, no trace is written.
        """
        profile, self._profile = self._profile, None
        if profile is None or self._owner != (os.getpid(), threading.get_ident()):
            return
        self._close(0)
        if self._syncs is not None:
            self._syncs.annotate = None
        with _without_probe_lines():
            profile.stop()
        if not is_complete or rank_and_world_size()[0] > 0:
            return
        # Programs that share a recording must not write into each other's files.
        plain = f"{self._path}.{os.getpid()}.part.json"
        packed = f"{self._path}.{os.getpid()}.part"
        try:
            profile.export_chrome_trace(plain)
            with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=_LEVEL) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            os.replace(packed, self._path)
        except OSError:
            # On a full disk the recording has no trace.
            pass
        finally:
            # One of them is the native exporter's name for an unfinished file.
            for path in (plain, f"{plain}.tmp", packed):
                if os.path.exists(path):
                    os.unlink(path)

    def _open(self, name: str) -> None:
        found = sys.modules["torch"].profiler.record_function(name)
        found.__enter__()
        self._ranges.append(found)

    def _close(self, level: int) -> None:
        """Ends ranges, the innermost first, until `level` are open: the step's, and its part's."""
        while len(self._ranges) > level:
            self._ranges.pop().__exit__(None, None, None)


@contextlib.contextmanager
def _without_probe_lines() -> Iterator[None]:
    """Keeps off stderr only what torch prints about its own probes within the block.

    It filters only the native calls, which take milliseconds: around them torch imports for seconds.
    """
    module = sys.modules["torch"].autograd.profiler
    patches = AttributePatches()
    for name in _NATIVE_CALLS:
        if name in vars(module):
            patches.put(module, name, _filtered(getattr(module, name)))
    try:
        yield
    finally:
        patches.restore()


def _filtered(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call with descriptor 2 redirected while it runs.

    What other threads write meanwhile goes to a file without a name and follows at once. A child that they start waits,
    because it would keep that file as its stderr. Without a descriptor 2, or room for such a file, nothing is
    filtered.
    """

    def filtered(*args: Any, **kwargs: Any) -> Any:
        try:
            before = os.dup(2)
        except OSError:
            return call(*args, **kwargs)
        try:
            kept = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed below, where descriptor 2 is back
        except OSError:
            os.close(before)
            return call(*args, **kwargs)
        with kept, _children_wait():
            os.dup2(kept.fileno(), 2)
            try:
                return call(*args, **kwargs)
            finally:
                os.dup2(before, 2)
                os.close(before)
                _write_all(2, _programs_own(kept))

    return filtered


@contextlib.contextmanager
def _children_wait() -> Iterator[None]:
    """Within the block, other threads that are about to start a child process wait for its end, at most a second."""
    is_over, thread = threading.Event(), threading.get_ident()

    def wait(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHILD_EVENTS and threading.get_ident() != thread:
            is_over.wait(_MAX_CHILD_WAIT_S)

    listen(wait)
    try:
        yield
    finally:
        forget(wait)
        is_over.set()


def _programs_own(kept: Any) -> bytes:
    """What was written to the file, without the lines of the profiler."""
    kept.seek(0)
    return _PROBE_LINE.sub(b"", kept.read())


def _write_all(descriptor: int, content: bytes) -> None:
    """Writes it as the program would have: what cannot be written, as to a closed pipe, is lost as before."""
    while content:
        try:
            content = content[os.write(descriptor, content) :]
        except BlockingIOError:
            time.sleep(0.001)
        except OSError:
            return


class CaptureRange:
    """Marks the steps that Nsight Systems captures, instead of `Profiler`: only one of them can watch the device."""

    def start(self) -> str:
        """Begins the capture. Returns "", or why it cannot start."""
        torch = sys.modules["torch"]
        if not torch.cuda.is_available():
            return "the program sees no CUDA device"
        torch.cuda.profiler.start()
        return ""

    def part(self, name: str) -> None:
        """Does nothing: torch's own ranges are enough for Nsight."""

    def step(self) -> bool:
        """Begins the next step, which Nsight captures too."""
        return True

    def stop(self, *, is_complete: bool = True) -> None:
        """Ends the capture; Nsight writes the report."""
        sys.modules["torch"].cuda.profiler.stop()
