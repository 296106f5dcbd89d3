"""Events out of a run and into its sinks: each sink has its own thread, so none can hold up the training."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

from voxelocity_observe.sinks.protocol import Event, RunStart, Sink
from voxelocity_observe.sinks.scalars import begun_after, kept_events

# About three hours of a run that writes once a second: a place that is out of reach for that long is given up.
_MAX_WAITING = 10_000
_END_S = 30.0


class Outlets:
    """The sinks of one run, from its first event to its last. Usable as a context; `write` is safe from any thread.

    A sink that fails, or that has not written everything half a minute after the end, is reported once through `warn`
    and then ignored. Nothing here raises because of a sink.

    Args:
        sinks: each receives every event, in its own thread.
        run: as known before the first event; `told`, `kept` and `first_step` are found from the events.
        earlier: events of earlier sessions, oldest first; empty for a new run.
        warn: called with the reason when a sink is given up, from any thread.
        end_s: how long to wait at the end.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        run: RunStart,
        *,
        earlier: Sequence[Event] = (),
        warn: Callable[[str], None],
        end_s: float = _END_S,
    ) -> None:
        self._outlets = [_Outlet(sink, run, earlier, warn) for sink in sinks]
        self._end_s = end_s

    def write(self, event: Event) -> None:
        """Passes an event on; do not change it afterwards. Waits for nothing."""
        for outlet in self._outlets:
            outlet.put(event)

    def close(self) -> None:
        """Waits until every sink has taken and written everything, but no longer than `end_s` for all of them."""
        until_s = time.monotonic() + self._end_s
        for outlet in self._outlets:
            outlet.put(None)
        for outlet in self._outlets:
            outlet.wait(max(0.0, until_s - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Outlet:
    """One sink, its thread, and the events that wait for it."""

    def __init__(self, sink: Sink, run: RunStart, earlier: Sequence[Event], warn: Callable[[str], None]) -> None:
        self._sink, self._run, self._earlier, self._warn = sink, run, earlier, warn
        self._waiting = queue.Queue[Event | None](maxsize=_MAX_WAITING)
        self._held: list[Event] = []
        self._has_begun = False
        self._given_up = threading.Event()
        self._giving_up = threading.Lock()
        # A daemon, because a library that hangs must not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name=f"voxelocity-sink-{sink.name}", daemon=True)
        self._thread.start()

    def put(self, event: Event | None) -> None:
        if self._given_up.is_set():
            return
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._give_up(f"it is {_MAX_WAITING:,} events behind")

    def wait(self, seconds: float) -> None:
        if self._given_up.is_set():
            return
        self._thread.join(timeout=seconds)
        if self._thread.is_alive():
            self._give_up(f"it was not done {seconds:.0f} s after the end of the run")

    def _work(self) -> None:
        try:
            while (event := self._waiting.get()) is not None and not self._given_up.is_set():
                self._take(event)
            if self._has_begun:
                self._sink.end()
        # Broad, because the libraries behind sinks raise anything, and none of it may end a training.
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")

    def _take(self, event: Event) -> None:
        if not self._has_begun:
            # The step that a resumed run continues from is certain only with its first event of a step: a damaged
            # checkpoint makes it earlier than the last one written.
            first_step = begun_after(event) if self._earlier else 0
            if first_step is None:
                self._held.append(event)
                return
            self._begin(first_step)
        self._sink.write(event)

    def _begin(self, first_step: int) -> None:
        kept = kept_events(self._earlier, first_step)
        self._sink.begin(replace(self._run, told=self._earlier, kept=kept, first_step=first_step))
        self._has_begun = True
        for event in self._held:
            self._sink.write(event)
        self._held.clear()

    def _give_up(self, reason: str) -> None:
        with self._giving_up:
            if self._given_up.is_set():
                return
            self._given_up.set()
        self._warn(f"sinks: {self._sink.name} is dropped ({reason}); the run continues, and its folder has all data")
