"""The volumes of a step's draws: straight from the cases' cache, or through one that rotates with the epochs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from voxelocity.core.batch import Draw
from voxelocity.core.contracts import StoredVolume
from voxelocity.data.cache import RotatingCache
from voxelocity.data.pipeline.prepared import PreparedCases


class Supply(Protocol):
    """Source of volumes for the feed's threads. Every step is taken once, roughly in order."""

    def take(self, step: int, draws: Sequence[Draw]) -> list[StoredVolume]:
        """The volumes of these draws, in their order."""
        ...

    def close(self) -> None:
        """Ends threads that work ahead."""
        ...


class WholeSupply:
    """All cases, at any time.

    Args:
        prepared: the cases.
    """

    def __init__(self, prepared: PreparedCases) -> None:
        self._prepared = prepared

    def take(self, step: int, draws: Sequence[Draw]) -> list[StoredVolume]:
        """The volumes of these draws, in their order."""
        return [self._prepared[draw.case] for draw in draws]

    def close(self) -> None:
        """Nothing to end."""


class RotatingSupply:
    """The cases of an epoch's window; those of the next are prepared meanwhile.

    The window moves on when every step that begins in an epoch was served or has failed; which step that is does not
    depend on the number of threads that take steps.

    Args:
        prepared: the cases.
        window: the indices of an epoch's cases.
        epoch_of: the epoch in which a step begins.
        start_step: the first step that will be taken.
        num_threads: number of threads that prepare cases ahead.
    """

    def __init__(
        self,
        prepared: PreparedCases,
        window: Callable[[int], Sequence[int]],
        *,
        epoch_of: Callable[[int], int],
        start_step: int,
        num_threads: int,
    ) -> None:
        self._epoch_of = epoch_of
        self._first_open = start_step
        self._served: set[int] = set()
        self._lock = threading.Lock()
        self._cache = RotatingCache(
            window,
            prepared.__getitem__,
            drop=prepared.drop,
            name=lambda case: prepared.refs[case].case_id,
            num_threads=num_threads,
        )
        self._cache.begin(epoch_of(start_step))

    def take(self, step: int, draws: Sequence[Draw]) -> list[StoredVolume]:
        """The volumes of these draws, in their order.

        Raises:
            ScanError: a case cannot be used; the text or a note on it names the case.
        """
        try:
            return [self._cache.take(draw.case) for draw in draws]
        finally:
            with self._lock:
                self._served.add(step)
                while self._first_open in self._served:
                    self._served.remove(self._first_open)
                    self._first_open += 1
            self._cache.begin(self._epoch_of(self._first_open))

    def close(self) -> None:
        """Ends the threads that prepare ahead, each after the case that it prepares now."""
        self._cache.close()
