"""A cache that holds some of the cases and moves on from epoch to epoch, preparing new cases while others are in use.

For data sets that no tier holds and that take long to prepare. Knows nothing about patches or batches: the schedule is
a pure function of the epoch, and the code that draws cases asks it which ones are in use.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import weakref
from collections.abc import Callable, Collection

from voxelocity.core.contracts import StoredVolume
from voxelocity.core.rng import generator

Prepare = Callable[[int], StoredVolume]


class RotatingSchedule:
    """Which cases are in use in each epoch: a window of fixed width that moves cyclically over the cases.

    Same schedule as MONAI 1.6.1's `SmartCacheDataset`: `replace_num` is the smaller of `ceil(cache_num *
    replace_rate)` and the number of cases outside the window; four of five cases at rate 0.25 give 1234, 2345, 3451,
    4512, 5123. If the window holds all cases, nothing moves.

    Args:
        num_cases: of the data set.
        num_cached: cases in the window, capped at `num_cases`.
        replace_rate: share of the window that is replaced after each epoch, above 0.
        seed: shuffles the cases once to separate neighbors in a list sorted by scanner or site; None keeps their
            order.
    """

    def __init__(self, num_cases: int, *, num_cached: int, replace_rate: float, seed: int | None = None) -> None:
        assert num_cases >= 1, f"num_cases {num_cases}"
        assert num_cached >= 1, f"num_cached {num_cached}"
        assert replace_rate > 0, f"replace_rate {replace_rate}"
        self._order: list[int] = list(range(num_cases))
        if seed is not None:
            self._order = generator(seed, stage="rotating").permutation(num_cases).tolist()
        self.num_cached = min(num_cached, num_cases)
        self.num_replaced = min(math.ceil(self.num_cached * replace_rate), num_cases - self.num_cached)

    def window(self, epoch: int) -> tuple[int, ...]:
        """The indices of the cases in use in this epoch, counted from 0; those that leave first come first."""
        assert epoch >= 0, f"epoch {epoch}"
        first = epoch * self.num_replaced
        return tuple(self._order[(first + place) % len(self._order)] for place in range(self.num_cached))


class RotatingCache:
    """The cases of an epoch; threads prepare those of the next while it is in use.

    If a case is taken before a thread has begun it, the caller prepares it, so nothing waits for work that has not
    begun; a case outside the windows is served too. An error while a thread prepares a case ahead is discarded: `take`
    tries again and raises that attempt's error, with a note that names the case. The threads end at `close` or when
    this object is collected.

    This object holds no volumes: `prepare` keeps them, and a case that was evicted, for example when memory runs low,
    is prepared again when it is taken.

    Safe to use from several threads.

    Args:
        window: the cases of an epoch.
        prepare: the volume of a case, from where it is kept, else prepared now; called from several threads, ahead
            and each time the case is taken.
        drop: called with each case that leaves; must not take cases. For a case that leaves while it is prepared, it
            is called again at the end.
        name: of a case, for the note on an error.
        num_threads: number of threads that prepare ahead, at least 1.
    """

    def __init__(
        self,
        window: Callable[[int], Collection[int]],
        prepare: Prepare,
        *,
        drop: Callable[[int], None],
        name: Callable[[int], str],
        num_threads: int = 1,
    ) -> None:
        assert num_threads >= 1, f"num_threads {num_threads}"
        self._window = window
        self._prepare = prepare
        self._drop = drop
        self._name = name
        self._epoch = -1
        self._works: dict[int, _Work] = {}
        self._lock = threading.Lock()
        self._todo: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._todo,), name=f"voxelocity-rotating-{number}", daemon=True)
            for number in range(num_threads)
        ]
        # Threads reference the queue but not this object, so that it can be collected while they run.
        self._end = weakref.finalize(self, _end, self._todo, num_threads)
        for thread in self._threads:
            thread.start()

    def begin(self, epoch: int) -> None:
        """Starts this epoch: cases that only earlier epochs use leave, and those of the next one are begun."""
        with self._lock:
            if epoch <= self._epoch:
                return
            self._epoch = epoch
            wanted = dict.fromkeys([*self._window(epoch), *self._window(epoch + 1)])
            for case in [case for case in self._works if case not in wanted]:
                self._works.pop(case).withdraw()
                # Under the lock, so that a case that comes back cannot be begun before it has left.
                self._drop(case)
            for case in wanted:
                if case not in self._works:
                    self._todo.put(self._add_work(case))

    def take(self, case: int) -> StoredVolume:
        """The volume of this case, prepared now if it was not prepared yet.

        Raises:
            Exception: any error from preparing it, with a note that names the case.
        """
        with self._lock:
            work = self._works.get(case) or self._add_work(case)
        return work.result()

    def close(self) -> None:
        """Ends the threads, each after the case that it prepares now."""
        with self._lock:
            for work in self._works.values():
                work.withdraw()
        self._end()
        for thread in self._threads:
            thread.join()

    def _add_work(self, case: int) -> _Work:
        # Weak, as the threads hold works and must not keep this object alive.
        left = weakref.WeakMethod(self._drop_if_left)
        work = self._works[case] = _Work(self._prepare, case, self._name(case), left)
        return work

    def _drop_if_left(self, case: int) -> None:
        """Drops a case whose preparation ended after it had left, unless it came back."""
        with self._lock:
            if case not in self._works:
                self._drop(case)


class _Work:
    """The first preparation of one case: done once, by the first thread to claim it."""

    def __init__(
        self, prepare: Prepare, case: int, name: str, left: Callable[[], Callable[[int], None] | None]
    ) -> None:
        self._prepare = prepare
        self._case = case
        self._name = name
        self._left = left
        self._preparing = threading.Lock()
        self._is_made = False
        self._is_withdrawn = False

    def withdraw(self) -> None:
        """Marks it as no longer needed ahead: threads skip it."""
        self._is_withdrawn = True

    def run_ahead(self) -> None:
        """Does the work in a thread of the cache, unless it was begun or withdrawn."""
        if self._is_withdrawn or not self._preparing.acquire(blocking=False):
            return
        try:
            if not self._is_made:
                # If the error persists, `take` raises it. A disk or a network may be back by then.
                with contextlib.suppress(Exception):
                    self._make()
        finally:
            self._preparing.release()

    def result(self) -> StoredVolume:
        """The volume, made now if no thread has begun it, or if that failed."""
        with self._preparing:
            if not self._is_made:
                return self._make()
        return self._prepare_named()

    def _make(self) -> StoredVolume:
        try:
            volume = self._prepare_named()
            self._is_made = True
            return volume
        finally:
            # It may have been dropped before the volume was kept.
            if self._is_withdrawn and (left := self._left()) is not None:
                left(self._case)

    def _prepare_named(self) -> StoredVolume:
        try:
            return self._prepare(self._case)
        except Exception as error:
            error.add_note(f"raised while case '{self._name}' was prepared for the rotating cache")
            raise


def _work(todo: queue.SimpleQueue[_Work | None]) -> None:
    while (work := todo.get()) is not None:
        work.run_ahead()
        del work


def _end(todo: queue.SimpleQueue[_Work | None], num_threads: int) -> None:
    while not todo.empty():
        try:
            todo.get_nowait()
        except queue.Empty:
            break
    for _ in range(num_threads):
        todo.put(None)
