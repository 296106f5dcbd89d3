"""Samples the stacks of threads many times a second while steps are counted: which of the user's lines runs, and why.

A separate thread takes the samples, and needs the interpreter lock for it. While C code holds the lock (most of NumPy
does not; a Numba function without `nogil` does), a sample comes late, at the end of that code, and finds the line that
called it. Each sample therefore counts for the time since the one before. On programs with known shares (alternating
Python, and C that holds the lock for 0.5 to 200 ms), the shares were right within 2 points where each lasted 0.2 s, and
within 5 where it lasted 0.03 s. With equal weights, the samples were wrong by up to 45. If several such calls follow
each other within one period, the line among them stays unknown.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from types import FrameType

from .interface import Moment, Writer
from .kinds import StackReader
from .lines import NOWHERE, OwnCode, Place, line_of, module_of

PERIOD_S = 0.02
# A sample later than this was not delayed by a lock: the machine slept or the program was stopped.
_LATEST_S = 2.0
_OWN_NAME = "voxelocity-stacks"
# Functions at the root of threads that make items: of MONAI's `ThreadDataLoader`, alone and with thread workers.
_LOADING = (("monai.data.thread_buffer", "enqueue_values"), ("torch.utils.data._utils.worker", "_worker_loop"))
_Key = tuple[str, str, str, str, str]


class Stacks:
    """Samples the training thread, and threads that make items.

    Cost: 12 microseconds per sample in an empty loop, 100 in a MONAI program, whose work evicts the sampler's own data
    from the processor's caches (measured): 0.5 % of a core at the default period.

    Args:
        moment: where the program is.
        own_code: decides which code is the user's.
        thread: identifier of the thread to watch; the calling one if not given.
        period_s: mean time between samples. Each wait varies by up to half, to avoid any rhythm of the program.
    """

    def __init__(
        self,
        moment: Moment,
        own_code: OwnCode,
        *,
        thread: int | None = None,
        period_s: float = PERIOD_S,
    ) -> None:
        self._moment = moment
        self._own_code = own_code
        self._reader = StackReader(own_code)
        self._places: dict[tuple[str, int], Place] = {}
        self.thread = threading.get_ident() if thread is None else thread
        self._period_s = period_s
        self._seconds: dict[_Key, float] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.own_s = 0.0
        """CPU seconds that sampling took so far."""
        self.failure = ""
        """Why sampling ended before `stop`, "" if it did not."""

    def start(self) -> None:
        """Begins to sample. The thread is a daemon: it never keeps the program from ending."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name=_OWN_NAME, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends sampling. What was seen stays, for `report`."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self._thread = None

    def forget(self) -> None:
        """Called in a forked process: the sampling thread is not here, and may have held a lock at the fork."""
        self._thread = None
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def report(self, writer: Writer) -> None:
        """Writes one event `stacks` for each place seen, the most seen first."""
        with self._lock:
            seen = sorted(self._seconds.items(), key=lambda item: -item[1])
        for (part, where, line, kind, function), seconds in seen:
            writer.write(
                "stacks",
                part=part,
                where=where,
                line=line,
                kind=kind,
                function=function,
                num_samples=max(1, round(seconds / self._period_s)),
                period_s=self._period_s,
            )

    def _run(self) -> None:
        # Its own generator: the program's draws must not change.
        draw = random.Random(0).uniform
        before = time.perf_counter()
        was_counting = False
        while not self._stop.wait(self._period_s * draw(0.5, 1.5)):
            now = time.perf_counter()
            is_counting = self._moment.is_counting() or self._is_predicting()
            if is_counting:
                began = time.thread_time()
                try:
                    self.look_once(min(now - before, _LATEST_S) if was_counting else self._period_s)
                except Exception as error:
                    # No failure may show in the program's output.
                    self.failure = f"sampling the stacks failed: {type(error).__name__}: {error}"
                    return
                self.own_s += time.thread_time() - began
            before, was_counting = now, is_counting

    def _is_predicting(self) -> bool:
        """Whether a network predicts before any step was counted: the program may never train."""
        return self._moment.current_part() == "validation" and not self._moment.counted_steps()

    def look_once(self, seconds: float) -> None:
        """Samples every thread of interest once; the sample counts for `seconds`."""
        part = self._moment.current_part()
        here = threading.get_ident()
        frames = sys._current_frames()
        try:
            for thread, frame in frames.items():
                if thread == self.thread:
                    self._count(frame, part, seconds)
                elif thread != here and _makes_items(frame):
                    self._count(frame, "worker", seconds)
        finally:
            # Keeping a frame would keep the arrays of its function alive.
            del frames

    def _count(self, frame: FrameType, part: str, seconds: float) -> None:
        found = self._reader.look(frame, part)
        place = NOWHERE if found.own is None else self._place(found.own)
        key = (part, place.where, place.line, found.kind, found.function)
        with self._lock:
            self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def _place(self, own: FrameType) -> Place:
        key = (own.f_code.co_filename, line_of(own))
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = self._own_code.place(own)
        return found


def _makes_items(frame: FrameType | None) -> bool:
    """Whether a loader started the thread."""
    while frame is not None:
        if any(frame.f_code.co_name == name and module_of(frame) == module for module, name in _LOADING):
            return True
        frame = frame.f_back
    return False
