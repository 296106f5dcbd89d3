"""The file of one process: one JSON object per line, written by a separate thread about twice a second. A process that
is killed loses no more than that, and the training thread only appends to a list."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import threading
import time
from collections import deque
from typing import Any, Callable

PERIOD_S = 0.5
"""Time between two writes: a process that is killed loses this much."""

_MAX_ERRORS = 20


class Writer:
    """Appends events to the file of this process, which is made when the first one is written.

    `write` may be called from any thread and costs about a microsecond; do not change its arguments afterwards. Nothing
    here raises: a full disk or a value that is not plain data leads to a note, never to an error in the program.

    Args:
        folder: of the recording.
        name: of the file, without its suffix.
        age_s: seconds since the process began.
    """

    def __init__(self, folder: str, name: str, age_s: Callable[[], float]) -> None:
        self.folder = folder
        self.path = os.path.join(folder, f"{name}.jsonl")
        self.cpu_s = 0.0
        self._age_s = age_s
        # Other threads add events while this is emptied: taking each from the left loses none.
        self._pending: deque[tuple[str, float, dict[str, Any]]] = deque()
        self._before_flush: list[Callable[[], None]] = []
        self._flushing = threading.RLock()
        self._descriptor = -1
        self._is_broken = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def write(self, event: str, **fields: Any) -> None:
        """Adds one event: text, numbers, None, and mappings and sequences of them."""
        self._pending.append((event, self._age_s(), fields))

    def before_flush(self, callback: Callable[[], None]) -> None:
        """Calls `callback` in the writing thread before each write to the file, to add sums that have changed."""
        self._before_flush.append(callback)

    def start(self) -> None:
        """Starts the thread that writes; without it, only `flush` and `close` do."""
        if self._thread is None:
            self._wake.clear()
            self._thread = threading.Thread(target=self._run, name="voxelocity-recorder", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Writes what is pending, whole lines at once."""
        with self._flushing:
            started_s = time.thread_time()
            for callback in self._before_flush:
                try:
                    callback()
                except Exception:
                    note_failure(self.folder, "a sum could not be written")
                    self._before_flush.remove(callback)
                    break
            pending = [self._pending.popleft() for _ in range(len(self._pending))]
            self._append("".join(self._line(*event) for event in pending).encode())
            self.cpu_s += time.thread_time() - started_s

    def close(self) -> None:
        """Writes what is pending and ends the thread. A second call does nothing; `write` opens the file again."""
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self._wake.set()
            thread.join(timeout=5.0)
        self.flush()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def forget(self) -> None:
        """Drops what is pending and the file: for the parent's writer in a forked child."""
        self._pending, self._before_flush, self._thread = deque(), [], None
        self._flushing = threading.RLock()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _run(self) -> None:
        while not self._wake.wait(PERIOD_S):
            self.flush()

    def _line(self, event: str, time_s: float, fields: dict[str, Any]) -> str:
        try:
            line = {"event": event, "time_s": round(time_s, 6), **fields}
            return json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n"
        except (TypeError, ValueError):
            note_failure(self.folder, f"event '{event}' holds a value that is not plain data")
            return ""

    def _append(self, content: bytes) -> None:
        if self._is_broken or not content:
            return
        try:
            if self._descriptor < 0:
                os.makedirs(self.folder, exist_ok=True)
                self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            size_bytes = os.fstat(self._descriptor).st_size
            if os.write(self._descriptor, content) < len(content):
                os.ftruncate(self._descriptor, size_bytes)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            # A full disk or a missing folder: the program continues, and what was written before stays.
            self._is_broken = True
            note_failure(self.folder, "nothing more could be written")


_num_failures = 0


def note_failure(folder: str, what: str) -> None:
    """Adds the exception in hand to `errors.txt` of the folder, at most 20 per process. Never raises."""
    global _num_failures
    _num_failures += 1
    if _num_failures > _MAX_ERRORS:
        return
    import traceback

    try:
        os.makedirs(folder, exist_ok=True)
        # A file's name, and so an error, may hold bytes that are not UTF-8.
        with open(os.path.join(folder, "errors.txt"), "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{what} (process {os.getpid()})\n{traceback.format_exc()}\n")
    except OSError:
        pass


def tell_user(text: str) -> None:
    """Prints it on stderr. Never raises, for example where stderr is closed or nobody reads it."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(f"voxelocity: {text}", file=sys.stderr, flush=True)
