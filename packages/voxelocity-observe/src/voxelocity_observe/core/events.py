"""Facts of a run as they happen: one JSON object per line in a file that is only appended to.

Each event is one `write` of one whole line, so whatever kills the process, at most the last line is torn. A written
event is in the hands of the operating system: it survives the death of the process at once, and a power cut after
`close`, which waits for the disk. Nothing is buffered in this process.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.errors import InputError, OutputError
from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.whole_file import check_is_file

# Thirty thousand years; NaN is not a time either.
_NO_TIME_S = 1e12


def events_path(folder: Path | str, *, rank: int = 0) -> Path:
    """The file of a rank's events in a run's folder: `events.jsonl` of rank 0, `events-rank<r>.jsonl` of others.

    One file per rank, because appending from several machines to one file of a shared disk mixes lines.
    """
    assert rank >= 0, f"rank {rank}"
    return Path(folder) / ("events.jsonl" if rank == 0 else f"events-rank{rank}.jsonl")


class EventLog:
    """Writes events to a new file. Usable as a context, and from several threads.

    Args:
        path: of the file; its folder exists.
        begin_s: what `clock` showed when the run began; now if not given.
        clock: returns seconds.

    Attributes:
        earlier_s: seconds of the run before this session.

    Raises:
        OutputError: the file already holds something, or cannot be written.
    """

    def __init__(self, path: Path | str, *, begin_s: float | None = None, clock: Clock = system_clock) -> None:
        self._open(Path(path), begin_s=begin_s, clock=clock)
        if os.fstat(self._descriptor).st_size:
            self.close()
            raise OutputError(
                f"observe.events: {path} already holds events; continue with EventLog.resume, or choose another file"
            )

    @classmethod
    def resume(cls, path: Path | str, *, begin_s: float | None = None, clock: Clock = system_clock) -> Self:
        """Continues an earlier session's file; starts a missing or empty one.

        What follows the last whole event (a torn line) is cut off. Time continues from that event, as if this session
        had begun at that moment; time between the sessions does not count.

        Raises:
            OutputError: the file cannot be written.
        """
        log = cls.__new__(cls)
        log._open(Path(path), begin_s=begin_s, clock=clock)
        with open(path, "rb") as file:
            whole_bytes, log.earlier_s = _last_whole_event(file.read())
        os.ftruncate(log._descriptor, whole_bytes)
        return log

    def _open(self, path: Path, *, begin_s: float | None, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._begin_s = clock() if begin_s is None else begin_s
        self.earlier_s = 0.0
        self._writing = threading.Lock()
        self._listeners: list[Callable[[Mapping[str, Any]], None]] = []
        try:
            self._descriptor = os.open(
                path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
            )
        except OSError as error:
            raise OutputError(
                f"observe.events: cannot write {path} ({error.strerror}); choose a folder you may write to"
            ) from None

    def elapsed_s(self) -> float:
        """Seconds of the run up to now, all sessions."""
        return self.earlier_s + self._clock() - self._begin_s

    def write(self, event: str, /, **fields: Any) -> None:
        """Adds one event with the time of the run.

        Args:
            event: what happened; the key "event" of the line.
            fields: plain data: text, numbers, None, and mappings and sequences of them; dataclasses and paths are
                made plain. NaN and infinities become null, which every JSON reader takes.

        Raises:
            OutputError: the line cannot be written (disk full, say); the file holds no part of it.
            TypeError: a field is not plain data, a tensor for example, or is called "event" or "time_s".
        """
        if fields.keys() & {"event", "time_s"}:
            raise TypeError(f"observe.events: event '{event}': the fields event and time_s are set by the log itself")
        plain = {
            name: plain_data(value, where=f"observe.events: event '{event}', field '{name}'")
            for name, value in fields.items()
        }
        with self._writing:
            record = {"event": event, "time_s": round(self.elapsed_s(), 6), **plain}
            self._append((json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n").encode())
        for listener in self._listeners:
            listener(record)

    def listen(self, listener: Callable[[Mapping[str, Any]], None]) -> None:
        """Calls `listener` with each event from now on, once its line is written, in the thread that wrote it.

        It must be quick, must not raise and must not change the event. It may write events itself.
        """
        self._listeners.append(listener)

    def _append(self, line: bytes) -> None:
        size_bytes = os.fstat(self._descriptor).st_size
        try:
            num_written = os.write(self._descriptor, line)
        except OSError as error:
            raise OutputError(
                f"observe.events: cannot write to {self.path} ({error.strerror}); free some space and resume the run"
            ) from None
        if num_written < len(line):
            # A full disk takes part of a line; leaving it would glue the next event to it.
            os.ftruncate(self._descriptor, size_bytes)
            raise OutputError(
                f"observe.events: {self.path} took {num_written} of {len(line)} bytes, the disk is full; "
                "free some space and resume the run"
            )

    def close(self) -> None:
        """Waits until all events are on the disk. A second call does nothing."""
        if self._descriptor >= 0:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_events(path: Path | str) -> list[dict[str, Any]]:
    """All events of a file, oldest first. A torn last line is left out; the file may still be written to.

    Raises:
        InputError: the file cannot be read, or a line before the last is not an event.
    """
    try:
        lines = check_is_file(Path(path)).read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"observe.events: cannot read {path} ({error.strerror}); name a run's events.jsonl") from None
    events = []
    for number, line in enumerate(lines, start=1):
        event = _parse(line)
        if event is not None:
            events.append(event)
        elif number < len(lines):
            raise InputError(
                f"observe.events: {path}, line {number} is not an event ({line[:40]!r}); "
                "the file was changed by something else; delete that line"
            )
    return events


def _last_whole_event(content: bytes) -> tuple[int, float]:
    """Bytes up to the end of the last whole event, and its time."""
    whole_bytes, time_s, position = 0, 0.0, 0
    for line in content.splitlines(keepends=True):
        position += len(line)
        event = _parse(line) if line.endswith(b"\n") else None
        if event is not None:
            whole_bytes, time_s = position, float(event["time_s"])
    return whole_bytes, time_s


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    # A line of brackets is nested deeper than Python goes.
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    time_s = event.get("time_s")
    is_time = isinstance(time_s, (int, float)) and not isinstance(time_s, bool) and abs(time_s) < _NO_TIME_S
    return event if is_time else None
