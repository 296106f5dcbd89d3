"""Stamps on a device's own timeline, taken without ever waiting for it."""

from __future__ import annotations

from typing import Any, Protocol

_POOL_SIZE = 4096


class Device(Protocol):
    """A queue of work that runs in order, in parallel with the host.

    A stamp is a mark put into the queue. None is a stamp that could not be taken.
    """

    def stamp(self) -> Any:
        """Marks the current end of the queue. Costs microseconds and never waits."""
        ...

    def is_done(self, stamp: Any) -> bool:
        """Whether the device has passed it."""
        ...

    def seconds(self, earlier: Any, later: Any) -> float:
        """Between two stamps that are done, on the device's clock."""
        ...

    def release(self, stamps: list[Any]) -> None:
        """Takes back stamps that are no longer needed."""
        ...


class CudaDevice:
    """CUDA events on the stream that is current when they are taken, from a pool."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._pool: list[Any] = []

    def stamp(self) -> Any:
        # An event recorded while a graph is captured becomes part of the graph.
        if self._cuda.is_current_stream_capturing():
            return None
        event = self._pool.pop() if self._pool else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def is_done(self, stamp: Any) -> bool:
        return bool(stamp.query())

    def seconds(self, earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later)) / 1e3

    def release(self, stamps: list[Any]) -> None:
        room = _POOL_SIZE - len(self._pool)
        self._pool.extend(stamp for stamp in stamps[: max(room, 0)] if stamp is not None)
