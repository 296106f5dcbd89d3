"""Marking: `span` and `phase` around a block or a function, `start_range` and `end_range` across threads; who listens.

Listeners are recorders and monitors that were started, an attached profiler, and the monitor that started us. The last
two are looked up when the first span begins, not at import, and again in a forked child: its parent's files and threads
are not its own.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, ParamSpec, Protocol, Self, TypeVar

from voxelocity_observe.core.errors import InputError
from voxelocity_observe.spans.nvtx import open_nvtx
from voxelocity_observe.spans.phases import open_phase_file

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Listener(Protocol):
    """Called when spans begin and end, in the thread that they belong to. It must be quick, and must not raise."""

    def begin(self, name: str, color: str, is_phase: bool, /) -> Any:
        """A span of this thread begins, inside those that it has open. Returns what `end` is given."""

    def end(self, token: Any, /) -> None:
        """It ends, also where its block raised."""

    def begin_range(self, name: str, color: str, /) -> Any:
        """A range begins that may end in another thread and nests with nothing. Returns what `end_range` is given."""

    def end_range(self, token: Any, /) -> None:
        """It ends."""

    def add(self, name: str, color: str, start_s: float, seconds: float, /) -> None:
        """A phase has ended whose beginning was not reported."""


class _Listeners:
    """The current listeners; None until they were looked up. `now` is replaced and never changed."""

    def __init__(self) -> None:
        self.now: tuple[Listener, ...] | None = None
        self._changing = threading.Lock()
        self._is_registered_for_forks = False

    def find(self) -> tuple[Listener, ...]:
        """The listeners, looked up if that has not happened yet."""
        with self._changing:
            return self._find()

    def add(self, listener: Listener) -> None:
        with self._changing:
            self.now = (*self._find(), listener)

    def remove(self, listener: Listener) -> None:
        with self._changing:
            self.now = tuple(other for other in self._find() if other is not listener)

    def forget(self) -> None:
        """Drops all listeners until they are looked up again."""
        self._changing = threading.Lock()
        self.now = None

    def _find(self) -> tuple[Listener, ...]:
        if self.now is None:
            if not self._is_registered_for_forks:
                os.register_at_fork(after_in_child=self.forget)
                self._is_registered_for_forks = True
            self.now = tuple(listener for listener in (open_nvtx(), open_phase_file()) if listener is not None)
        return self.now


LISTENERS = _Listeners()


class span:  # noqa: N801 - used as `with span(...)` and `@span(...)`, never as a class
    """A named stretch: `with span("decode"): ...`, or `@span("decode")` above a function.

    Spans nest; each belongs to its thread. Entering and leaving takes under 1 microsecond while nothing listens, and
    under 5 with a recorder that reads the host's clock (`benchmarks/own_cost.py`). Nothing is waited for, neither the
    device nor a disk. Make a new one for each use: one object marks one stretch at a time, and a decorated function
    makes its own.

    Args:
        name: what the stretch does, in a word or two; the same text each time, because figures are summed by it.
        color: for time lines, as "green" or "#2ca02c"; "" leaves it to the tool.
    """

    __slots__ = ("_opened", "color", "name")
    _is_phase: ClassVar[bool] = False

    def __init__(self, name: str, *, color: str = "") -> None:
        self.name = name
        self.color = color

    def __enter__(self) -> Self:
        listeners = LISTENERS.now
        if listeners is None:
            listeners = LISTENERS.find()
        # The listeners may have changed at the end: each gets the end of a beginning that it got.
        self._opened: Any = (
            [(listener.end, listener.begin(self.name, self.color, self._is_phase)) for listener in listeners]
            if listeners
            else ()
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        opened = self._opened
        if opened:
            for end, token in reversed(opened):
                end(token)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """The function, each call of it in a span.

        Raises:
            InputError: it is a generator or a coroutine, whose call returns before its work begins.
        """
        kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        if any(is_kind(function) for is_kind in kinds):
            raise InputError(
                f"span: {function.__qualname__} is a generator or a coroutine, whose call ends before its work begins; "
                f"put `with span({self.name!r}):` around the work inside it"
            )
        make, name, color = type(self), self.name, self.color

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with make(name, color=color):
                return function(*args, **kwargs)

        return call


class phase(span):  # noqa: N801 - as `span`
    """A span that always stands on the time line of `voxelocity monitor`, however short or deeply nested it is.

    For the few stretches that users know by name: an epoch, a validation. Of the other spans only the outermost are
    shown.
    """

    __slots__ = ()
    _is_phase = True


@dataclass(frozen=True)
class OpenRange:
    """A range that has begun; give it to `end_range`, in any thread, once."""

    name: str
    _opened: tuple[tuple[Listener, Any], ...]


def start_range(name: str = "", *, color: str = "", message: str = "") -> OpenRange:
    """A range that begins here and ends where `end_range` is given it, in this thread or another.

    Such ranges nest with nothing: use `span` for what begins and ends in one block.

    Args:
        name: what the stretch does.
        color: for time lines, as for `span`.
        message: the name, as the nvtx package calls it.

    Raises:
        InputError: there is no name, or two.
    """
    if bool(name) == bool(message):
        raise InputError(f"start_range: name={name!r}, message={message!r}; give one of them, start_range('dataload')")
    name = name or message
    return OpenRange(name, tuple((listener, listener.begin_range(name, color)) for listener in LISTENERS.find()))


def end_range(opened: OpenRange) -> None:
    """Ends a range. Safe to call from any thread."""
    for listener, token in reversed(opened._opened):
        listener.end_range(token)


def report_ended_span(name: str, *, start_s: float, seconds: float, color: str = "") -> None:
    """Reports a phase that is known only after it has ended, such as the time before the first import.

    Args:
        name: what it was.
        start_s: when it began, as `time.perf_counter` counts.
        seconds: how long it took.
        color: for time lines, as for `span`.
    """
    for listener in LISTENERS.find():
        listener.add(name, color, start_s, seconds)
