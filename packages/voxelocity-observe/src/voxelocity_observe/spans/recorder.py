"""Spans kept with their times, for a program that wants to know where its own time goes."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.host import process_rank
from voxelocity_observe.spans.meters import CudaClock, PeakMeter
from voxelocity_observe.spans.scope import LISTENERS


class SpanRecord(NamedTuple):
    """A span that has ended.

    A named tuple, because thousands are made per second.

    Attributes:
        name: as given to `span`.
        start_s: when it began, on the recorder's clock.
        seconds: of the host.
        device_s: of the device, between the moments when it reached the begin and the end of the span in its queue;
            None without a device clock, and for spans of other threads than the recorder's.
        color: as given.
        thread: name of the thread that it began in.
        rank: of this process.
        number: counts the spans of a recorder in the order in which they began.
        parent: number of the span that it lies in, in the same thread; None for an outermost one.
        depth: how many spans it lies in.
        is_phase: whether it was marked as a phase.
        peak_bytes: by the recorder's meters: the most since the outermost span around it began. Exact for the
            outermost; for a span inside it what came before counts as well.
    """

    name: str
    start_s: float
    seconds: float
    device_s: float | None
    color: str
    thread: str
    rank: int
    number: int
    parent: int | None
    depth: int
    is_phase: bool
    peak_bytes: Mapping[str, int | None]


class SpanRecorder:
    """Keeps the spans that end between `start` and `stop`, or within a `with` block; `take` returns them.

    Spans of all threads are kept. The device's clock and the memory meters are read only in the thread that started the
    recorder: marks of other threads would land on streams that say nothing about their work.

    Args:
        device: marks begin and end on the device as well; see `device_clock`.
        meters: memory peaks to note with each span, by name; reset where an outermost span of the recorder's thread
            begins, and nowhere else.
        rank: of this process; by default as its launcher sets it.
        max_spans: kept at most; beyond them the oldest are dropped and counted.
        clock: returns the host's seconds.

    Attributes:
        num_dropped: spans that were not taken in time.

    Raises:
        ConfigError: `max_spans` is below 1.
    """

    def __init__(
        self,
        *,
        device: CudaClock | None = None,
        meters: Mapping[str, PeakMeter] | None = None,
        rank: int | None = None,
        max_spans: int = 65_536,
        clock: Clock = system_clock,
    ) -> None:
        if max_spans < 1:
            raise ConfigError(f"observe.spans: max_spans={max_spans}; keep at least 1 span")
        self._device = device
        self._meters = dict(meters or {})
        self._rank = process_rank() if rank is None else rank
        self._max_spans = max_spans
        self._clock = clock
        self.num_dropped = 0
        self._numbers = itertools.count()
        self._ended: deque[_Open] = deque()
        self._ending = threading.Lock()
        self._own = threading.local()
        self._thread_id = -1

    def start(self) -> Self:
        """Starts listening; this thread is the one whose device and memory are read."""
        self._thread_id = threading.get_ident()
        self._own = threading.local()
        LISTENERS.add(self)
        return self

    def stop(self) -> None:
        """Stops listening. Open spans that end later are kept as well."""
        LISTENERS.remove(self)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def take(self) -> list[SpanRecord]:
        """The spans that have ended since the last call, in the order in which they ended.

        Never waits: spans whose end the device has not reached yet come with a later call.
        """
        with self._ending:
            ended, self._ended = self._ended, deque()
        taken, waiting = list[SpanRecord](), deque[_Open]()
        for opened in ended:
            device_s = None
            if self._device is not None and opened.end_mark is not None:
                device_s = self._device.seconds(opened.begin_mark, opened.end_mark)
                if device_s is None:
                    waiting.append(opened)
                    continue
            self._release(opened)
            taken.append(self._record(opened, device_s))
        if waiting:
            with self._ending:
                self._ended.extendleft(reversed(waiting))
                self._drop_oldest()
        return taken

    def begin(self, name: str, color: str, is_phase: bool, /) -> _Open:
        try:
            thread: _Thread = self._own.thread
        except AttributeError:
            thread = self._own.thread = _Thread(is_own=threading.get_ident() == self._thread_id)
        stack = thread.stack
        if thread.is_own and self._meters and not stack:
            for meter in self._meters.values():
                meter.reset()
        parent_number, depth = (stack[-1].number, stack[-1].depth + 1) if stack else (None, 0)
        opened = _Open(next(self._numbers), name, color, is_phase, thread, parent_number, depth)
        stack.append(opened)
        if thread.is_own and self._device is not None:
            opened.begin_mark = self._device.mark()
        opened.start_s = self._clock()
        return opened

    def end(self, token: _Open, /) -> None:
        token.end_s = self._clock()
        stack = token.thread.stack
        if stack[-1] is token:
            stack.pop()
        else:
            # A generator that was closed late ends its span after those that began meanwhile.
            stack.remove(token)
        self._keep(token, is_own=token.thread.is_own)

    def begin_range(self, name: str, color: str, /) -> _Open:
        opened = self.begin(name, color, False)
        opened.thread.stack.remove(opened)
        return opened

    def end_range(self, token: _Open, /) -> None:
        token.end_s = self._clock()
        self._keep(token, is_own=token.thread.is_own and threading.get_ident() == self._thread_id)

    def add(self, name: str, color: str, start_s: float, seconds: float, /) -> None:
        thread = _Thread(is_own=False)
        self._keep(
            _Open(next(self._numbers), name, color, True, thread, None, 0, start_s, start_s + seconds), is_own=False
        )

    def _keep(self, ended: _Open, *, is_own: bool) -> None:
        if is_own:
            if ended.begin_mark is not None and self._device is not None:
                ended.end_mark = self._device.mark()
            if self._meters:
                ended.peak_bytes = {name: meter.peak_bytes() for name, meter in self._meters.items()}
        with self._ending:
            self._ended.append(ended)
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        while len(self._ended) > self._max_spans:
            self._release(self._ended.popleft())
            self.num_dropped += 1

    def _release(self, ended: _Open) -> None:
        if self._device is not None:
            for mark in (ended.begin_mark, ended.end_mark):
                if mark is not None:
                    self._device.release(mark)

    def _record(self, ended: _Open, device_s: float | None) -> SpanRecord:
        return SpanRecord(
            ended.name,
            ended.start_s,
            ended.end_s - ended.start_s,
            device_s,
            ended.color,
            ended.thread.name,
            self._rank,
            ended.number,
            ended.parent_number,
            ended.depth,
            ended.is_phase,
            _NO_PEAKS if ended.peak_bytes is None else ended.peak_bytes,
        )


class _Thread:
    """A thread's open spans, innermost last."""

    __slots__ = ("is_own", "name", "stack")

    def __init__(self, *, is_own: bool) -> None:
        self.is_own = is_own
        self.name = threading.current_thread().name
        self.stack: list[_Open] = []


_NO_PEAKS: Mapping[str, int | None] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class _Open:
    """A span from its beginning until it is taken."""

    number: int
    name: str
    color: str
    is_phase: bool
    thread: _Thread
    # Not the parent itself: a chain of ended spans would keep each other alive.
    parent_number: int | None
    depth: int
    start_s: float = 0.0
    end_s: float = 0.0
    begin_mark: Any = None
    end_mark: Any = None
    peak_bytes: Mapping[str, int | None] | None = None
