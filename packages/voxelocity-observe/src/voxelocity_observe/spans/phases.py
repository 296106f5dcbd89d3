"""Phases of a program for the monitor that started it: lines of a file in a folder that the monitor names.

`VOXELOCITY_SPANS` names the folder; `voxelocity monitor` sets it for its command. This is how the two processes agree,
not a setting: without a monitor nothing is written.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.host import process_rank

FOLDER_VARIABLE = "VOXELOCITY_SPANS"
_WRITE_EVERY_S = 1.0
_SHORTEST_S = 0.1
"""Shortest span that is written without a mark: the monitor's finest period; its time line shows nothing shorter."""
_MOST_LINES = 20_000


def open_phase_file(*, environ: Mapping[str, str] = os.environ) -> PhaseFile | None:
    """A listener that writes phases for the monitor; None if none is listening."""
    folder = environ.get(FOLDER_VARIABLE)
    return PhaseFile(Path(folder)) if folder else None


class PhaseFile:
    """Writes phases to `spans-<pid>.jsonl`: marked ones, and outermost spans of the main thread of 0.1 s and more.

    One line each: name, start_s (`time.perf_counter`, which all processes of a machine share on Linux), seconds, color,
    rank, pid. A separate thread writes them about once a second, and at exit. Processes that Python's `multiprocessing`
    started, such as workers of a loader, write only marked phases. A failed write is reported once, and the program
    continues.

    Args:
        folder: where the file goes; it exists.
        clock: returns seconds.
        wait: for the time between two writes, or until the event is set; for tests.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock = system_clock,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self.path = folder / f"spans-{os.getpid()}.jsonl"
        self._clock = clock
        self._wait = wait
        self._pid = os.getpid()
        self._rank = process_rank()
        self._is_main = multiprocessing.parent_process() is None
        self._own = threading.local()
        self._lines: list[str] = []
        self._num_lines = 0
        self._changing = threading.Lock()
        self._is_closed = threading.Event()
        self._has_begun = self._is_broken = False

    def begin(self, name: str, color: str, is_phase: bool, /) -> tuple[str, str, bool, bool, float]:
        own = self._own
        depth: int = getattr(own, "depth", 0)
        own.depth = depth + 1
        return name, color, is_phase, depth == 0, self._clock()

    def end(self, token: tuple[str, str, bool, bool, float], /) -> None:
        self._own.depth -= 1
        name, color, is_phase, is_outermost, start_s = token
        if is_phase or (is_outermost and self._is_main):
            seconds = self._clock() - start_s
            if is_phase or (seconds >= _SHORTEST_S and threading.current_thread() is threading.main_thread()):
                self.add(name, color, start_s, seconds)

    def begin_range(self, name: str, color: str, /) -> tuple[str, str, float]:
        return name, color, self._clock()

    def end_range(self, token: tuple[str, str, float], /) -> None:
        """A range that crosses threads lies in no other span."""
        name, color, start_s = token
        seconds = self._clock() - start_s
        if self._is_main and seconds >= _SHORTEST_S:
            self.add(name, color, start_s, seconds)

    def add(self, name: str, color: str, start_s: float, seconds: float, /) -> None:
        """After 20,000 phases no more are written: no time line could show them."""
        values = {"name": name, "start_s": start_s, "seconds": seconds, "color": color}
        line = json.dumps({**values, "rank": self._rank, "pid": self._pid}, separators=(",", ":"))
        if os.getpid() != self._pid:
            return
        with self._changing:
            if self._is_broken or self._num_lines >= _MOST_LINES:
                return
            self._num_lines += 1
            self._lines.append(line)
            if not self._has_begun:
                self._has_begun = True
                threading.Thread(target=self._write_now_and_then, name="voxelocity-phases", daemon=True).start()
                atexit.register(self.close)

    def close(self) -> None:
        """Writes what is left and ends the thread. Does nothing in a forked child: the lines are its parent's."""
        self._is_closed.set()
        atexit.unregister(self.close)
        self.flush()

    def flush(self) -> None:
        # A fork may have copied the lock while another thread held it.
        if os.getpid() != self._pid:
            return
        with self._changing:
            lines, self._lines = self._lines, []
            if not lines or self._is_broken:
                return
            try:
                with self.path.open("ab", buffering=0) as file:
                    file.write(("\n".join(lines) + "\n").encode())
            except OSError as error:
                self._is_broken = True
                reason = error.strerror
            else:
                return
        warnings.warn(
            f"spans: cannot write {self.path} ({reason}), so the monitor will not show this program's phases; "
            "free some space, or give the monitor another folder with -o",
            stacklevel=2,
        )

    def _write_now_and_then(self) -> None:
        while not self._wait(self._is_closed, _WRITE_EVERY_S):
            self.flush()
