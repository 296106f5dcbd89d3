"""torch.profiler around a few steps, and its trace in the folder of the recording.

The profiled steps are slowed down (by half to twice, on programs of many small operators) and belong in no figure of
time but the profile's own. Parts of a step and waits for the device stand in the trace as ranges, with the person's
line; so stacks of Python functions are recorded only where asked for, as they make a trace ten times as large.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import time
from typing import Any

from .syncs import Syncs

TRACE_NAME = "trace.json.gz"
NUM_STEPS = 3
_LIMIT_S = 30.0
# Ten times as quick as gzip's own choice for a file that is a sixth larger.
_LEVEL = 1


class Profiler:
    """Profiles steps between `start` and `stop`, in the training thread.

    Cost: of the profiled steps alone; `stop` takes about 1 s for 10 MB of trace.

    Args:
        folder: where the trace goes; it exists.
        num_steps: to profile.
        limit_s: after which no further step is profiled, so that traces of slow steps stay small.
        with_stacks: whether to record Python functions as well.
        syncs: told to put its calls into the trace meanwhile.
    """

    def __init__(
        self,
        folder: str,
        *,
        num_steps: int = NUM_STEPS,
        limit_s: float = _LIMIT_S,
        with_stacks: bool = False,
        syncs: Syncs | None = None,
    ) -> None:
        self._path = os.path.join(folder, TRACE_NAME)
        self._num_steps = num_steps
        self._limit_s = limit_s
        self._with_stacks = with_stacks
        self._syncs = syncs
        self._profile: Any = None
        self._began = 0.0
        self._step = 0
        self._ranges: list[Any] = []

    def start(self) -> str:
        """Begins; at the end of a step. Returns "", or why it cannot be done: then nothing has begun."""
        torch = sys.modules["torch"]
        if torch._C._autograd._profiler_enabled():
            return "the program runs torch.profiler itself"
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profile = torch.profiler.profile(activities=activities, record_shapes=True, with_stack=self._with_stacks)
        try:
            profile.start()
        except RuntimeError as error:
            # Drivers that grant no profiling and a second profiler both come as this; the program must go on.
            return f"torch.profiler did not start: {error}"
        self._profile, self._began, self._step = profile, time.perf_counter(), 0
        if self._syncs is not None:
            self._syncs.annotate = torch.profiler.record_function
        self._open(f"ProfilerStep#{self._step}")
        return ""

    def part(self, name: str) -> None:
        """Marks in the trace that another part of the step begins ("wait", "forward", ...); "" for none."""
        if self._profile is None:
            return
        self._close(1)
        if name:
            self._open(f"part: {name}")

    def step(self) -> bool:
        """Marks the end of a step. Returns whether another one shall be profiled; if not, call `stop`."""
        if self._profile is None:
            return False
        self._close(0)
        self._step += 1
        if self._step >= self._num_steps or time.perf_counter() - self._began > self._limit_s:
            return False
        self._open(f"ProfilerStep#{self._step}")
        return True

    def stop(self) -> str:
        """Ends profiling. Returns the path of the trace, "" where nothing was profiled or it cannot be written."""
        profile, self._profile = self._profile, None
        if profile is None:
            return ""
        self._close(0)
        if self._syncs is not None:
            self._syncs.annotate = None
        profile.stop()
        plain = self._path + ".part.json"
        packed = self._path + ".part"
        try:
            profile.export_chrome_trace(plain)
            with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=_LEVEL) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            os.replace(packed, self._path)
        except OSError:
            return ""
        finally:
            for path in (plain, packed):
                if os.path.exists(path):
                    os.unlink(path)
        return self._path

    def _open(self, name: str) -> None:
        found = sys.modules["torch"].profiler.record_function(name)
        found.__enter__()
        self._ranges.append(found)

    def _close(self, level: int) -> None:
        """Ends ranges, the innermost first, until so many are open: the step's, and its part's."""
        while len(self._ranges) > level:
            self._ranges.pop().__exit__(None, None, None)


class CaptureRange:
    """Marks the steps that Nsight Systems captures, in place of `Profiler`: only one of both can watch the device.

    Args:
        num_steps: to capture.
    """

    def __init__(self, *, num_steps: int = NUM_STEPS) -> None:
        self._num_steps = num_steps
        self._step = -1

    def start(self) -> str:
        """Begins the capture. Returns "", or why it cannot be done."""
        torch = sys.modules["torch"]
        if not torch.cuda.is_available():
            return "the program sees no CUDA device"
        torch.cuda.profiler.start()
        self._step = 0
        return ""

    def part(self, name: str) -> None:
        """Nothing: torch's own ranges are enough for Nsight."""

    def step(self) -> bool:
        """Marks the end of a step. Returns whether another one shall be captured."""
        if self._step >= 0:
            self._step += 1
        return 0 < self._step < self._num_steps

    def stop(self) -> str:
        """Ends the capture. Returns "", as the report is written by Nsight."""
        if self._step >= 0:
            sys.modules["torch"].cuda.profiler.stop()
        self._step = -1
        return ""
