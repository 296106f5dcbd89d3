"""Concurrency of the pipeline: threads make items ahead of their use, and buffers are used again."""

from __future__ import annotations

import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

import numpy as np

from voxelocity.core.volume import Array

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_EXIT_WAIT_S = 5.0
"""How long an unclosed iterator waits for unfinished items when it is collected or the interpreter exits."""


class OrderedPrefetch(Generic[T]):
    """An iterator over `make(start)`, `make(start + 1)`, ... that makes items ahead in threads.

    Items come in order, whichever thread finishes first. An error raised by `make(i)` is raised, with its traceback,
    when item `i` is requested; the iteration may continue after it. The threads start at once and end when the last
    item is made, at `close`, at the end of a `with` block, or when the iterator is collected. For one consumer.

    Args:
        make: item by index; called from several threads at once. What it references lives as long as the threads, so an
            iterator that `make` itself references is never collected and must be closed.
        start: the first index.
        stop: the index after the last, or None for an endless stream.
        num_threads: threads to make items in; 0 makes each item in the caller's thread on request.
        num_ahead: items made or being made beyond those given, at least 1.
        clock: seconds, for `wait_s`.

    Attributes:
        wait_s: seconds the consumer has waited for items.
    """

    def __init__(
        self,
        make: Callable[[int], T],
        *,
        start: int = 0,
        stop: int | None = None,
        num_threads: int,
        num_ahead: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        assert num_threads >= 0, f"num_threads {num_threads}"
        assert num_ahead >= 1, f"num_ahead {num_ahead}"
        self._make = make
        self._next = start
        self._stop = stop
        self._clock = clock
        self.wait_s = 0.0
        self._crew: _WorkerPool[T] | None = None
        if num_threads > 0:
            num_items = num_ahead if stop is None else min(num_ahead, stop - start)
            self._crew = _WorkerPool(make, start, stop, num_ahead)
            # Threads reference the crew but not this object, so that it can be collected while they run.
            self._end_crew = weakref.finalize(self, self._crew.end, _EXIT_WAIT_S)
            self._crew.begin(min(num_threads, num_items))

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._stop is not None and self._next >= self._stop:
            self.close()
            raise StopIteration
        index = self._next
        started = self._clock()
        try:
            made = _Result(self._make, index) if self._crew is None else self._crew.take(index)
        finally:
            self.wait_s += self._clock() - started
        if made is None:
            raise StopIteration
        # Only now: a Ctrl-C while waiting, or while making the item here, does not consume it.
        if not isinstance(made.error, KeyboardInterrupt):
            self._next = index + 1
        try:
            return made.get()
        except StopIteration as error:
            # It would end the consumer's loop as if all items had been given.
            raise RuntimeError(f"feed: making item {index} raised StopIteration") from error
        finally:
            # An error's traceback holds this frame, and the frame would hold the error.
            del made

    def close(self) -> None:
        """Ends the iteration and its threads; returns when unfinished items are done. They are dropped.

        A consumer that waits for an item in another thread gets the end of the iteration.
        """
        self._stop = self._next
        if self._crew is not None:
            self._crew.end(None)
            self._end_crew.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class ThreadBuffer(Generic[T]):
    """The items of any iterable, taken ahead of their use by one thread. Each `for` loop is a fresh pass.

    Leaving a loop ends its thread. Simultaneous passes take their items one at a time, so two threads never use the
    source at once; over an iterator, they share its items.

    Args:
        source: one thread, not the consumer's, uses its iterator.
        num_ahead: items taken beyond those given, at least 1.
        turn: held while an item is taken, for buffers that share a source; a lock of its own if not given.
    """

    def __init__(self, source: Iterable[T], *, num_ahead: int = 1, turn: threading.Lock | None = None) -> None:
        self._source, self._num_ahead = source, num_ahead
        self._turn = turn or threading.Lock()
        self._passes: set[OrderedPrefetch[T | _End]] = set()

    @property
    def is_running(self) -> bool:
        """Whether a pass is under way."""
        return bool(self._passes)

    def stop(self) -> None:
        """Ends every pass and its thread; returns when items in progress are finished."""
        for items in list(self._passes):
            items.close()

    def __iter__(self) -> Generator[T, None, None]:
        # The thread references neither this object nor the passes, so a pass that nobody uses is collected.
        source, turn, items = self._source, self._turn, list[Iterator[T]]()

        def take(_index: int) -> T | _End:
            with turn:
                if not items:
                    items.append(iter(source))
                return next(items[0], _END)

        with OrderedPrefetch(take, num_threads=1, num_ahead=self._num_ahead) as taken:
            self._passes.add(taken)
            try:
                for item in taken:
                    if isinstance(item, _End):
                        return
                    yield item
            finally:
                self._passes.discard(taken)


class _End:
    """Marks the end of a source, whose items may have any other value."""


_END: Final = _End()


class _Result(Generic[T]):
    """The result of making one item: a value, or the error that was raised."""

    def __init__(self, make: Callable[[int], T], index: int) -> None:
        self.error: BaseException | None = None
        try:
            self._value = make(index)
        except BaseException as error:  # handed to the consumer, whatever it is
            self.error = error
            # The traceback holds this frame: without this, the two would keep each other alive.
            del self

    def get(self) -> T:
        if self.error is None:
            return self._value
        try:
            raise self.error
        finally:
            del self


class _WorkerPool(Generic[T]):
    """Threads that make items up to a bound ahead of the consumer. All fields are guarded by one lock.

    Each event wakes only the thread that it concerns, as a thread that wakes in vain still takes the GIL from the
    consumer: an item that is made wakes the consumer if it waits for that one, and an item that is taken, one maker.
    """

    def __init__(self, make: Callable[[int], T], start: int, stop: int | None, num_ahead: int) -> None:
        self._make = make
        self._to_make = start
        self._to_take = start
        self._stop = stop
        self._num_ahead = num_ahead
        self._made: dict[int, _Result[T]] = {}
        self._is_ended = False
        self._threads: list[threading.Thread] = []
        # Reentrant, as garbage collection may run `end` anywhere.
        self._lock = threading.RLock()
        self._is_made, self._may_make = threading.Condition(self._lock), threading.Condition(self._lock)

    def begin(self, num_threads: int) -> None:
        for number in range(num_threads):
            thread = threading.Thread(target=self._work, name=f"voxelocity-feed-{number}", daemon=True)
            # This raises if there is no memory for it, and a thread that never started cannot be joined.
            thread.start()
            self._threads.append(thread)

    def take(self, index: int) -> _Result[T] | None:
        """The result for this index, or None once the crew has ended. Indices are taken in order."""
        with self._lock:
            self._is_made.wait_for(lambda: index in self._made or self._is_ended)
            if self._is_ended:
                return None
            self._to_take = index + 1
            # The bound rises by one item. If all threads are at work, the next to finish finds that out by itself.
            self._may_make.notify()
            return self._made.pop(index)

    def end(self, timeout_s: float | None) -> None:
        """Tells the threads to end and waits for them, each at most `timeout_s`."""
        with self._lock:
            self._is_ended = True
            self._made.clear()
            self._is_made.notify_all()
            self._may_make.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)

    def _work(self) -> None:
        while (index := self._claim()) is not None:
            made = _Result(self._make, index)
            with self._lock:
                if not self._is_ended:
                    self._made[index] = made
                    if index == self._to_take:
                        self._is_made.notify()
            del made

    def _claim(self) -> int | None:
        """The index to make next, once the bound allows it, or None when there is nothing left to do."""
        with self._lock:
            self._may_make.wait_for(lambda: self._has_no_more() or self._to_make < self._to_take + self._num_ahead)
            if self._has_no_more():
                return None
            self._to_make += 1
            if self._has_no_more():
                # Those that still wait have nothing left to do.
                self._may_make.notify_all()
            return self._to_make - 1

    def _has_no_more(self) -> bool:
        return self._is_ended or (self._stop is not None and self._to_make >= self._stop)


class BufferRing:
    """Tensors whose memory returns here automatically when nothing holds them or a view of them any more.

    A fresh array of a batch's size costs more in page faults than filling it. Safe to use from several threads.

    Args:
        max_free: free buffers of each shape and dtype to keep; more are released to the system.
        pinned: page-locked, for copies to a CUDA device.
    """

    def __init__(self, *, max_free: int, pinned: bool = False) -> None:
        self._max_free = max_free
        self._pinned = pinned
        self._free: dict[tuple[tuple[int, ...], torch.dtype], list[Array]] = defaultdict(list)
        # Reentrant: garbage collection may return a buffer while this thread holds the lock.
        self._lock = threading.RLock()

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of any content, in C order, on the CPU."""
        # Predictions in another runtime need only the threads of this module.
        import torch

        kind = (shape, dtype)
        with self._lock:
            free = self._free[kind]
            memory = free.pop() if free else None
        if memory is None:
            memory = torch.empty(shape, dtype=dtype, pin_memory=self._pinned).numpy()
        # The tensor's storage holds this view until its last user releases it; only then is the memory free.
        lease = memory.view(np.ndarray)
        weakref.finalize(lease, self._give_back, kind, memory).atexit = False
        return torch.from_numpy(lease)

    def _give_back(self, kind: tuple[tuple[int, ...], torch.dtype], memory: Array) -> None:
        with self._lock:
            if len(self._free[kind]) < self._max_free:
                self._free[kind].append(memory)
