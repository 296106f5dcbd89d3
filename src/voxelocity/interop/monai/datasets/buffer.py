"""Items and batches made by one thread ahead of their use, under MONAI's names."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final

from monai.data import DataLoader as MonaiDataLoader
from monai.data import ThreadDataLoader as MonaiThreadDataLoader

from voxelocity.core.errors import ConfigError
from voxelocity.data.feed import OrderedPrefetch
from voxelocity.interop.monai.datasets.loader import batches_of

_END: Final = object()


class ThreadBuffer:
    """MONAI's `ThreadBuffer`: the items of `src`, taken by a thread ahead of their use. Each `for` loop is a pass.

    An error of the source is raised where its item would have come, with its traceback. Leaving a loop ends its thread.
    Two simultaneous passes take their items one at a time, so two threads never use a source whose transforms draw
    random numbers; if `src` is an iterator, the passes share its items.

    Args:
        src: any iterable.
        buffer_size: items taken ahead, besides the one in progress; 0 or less for no bound.
        timeout: seconds, not negative. Has no effect: nothing here polls.

    Attributes:
        src: as given.
        buffer_size: as given.
        timeout: as given.

    Raises:
        ConfigError: `timeout` is negative.
    """

    def __init__(self, src: Iterable[Any], buffer_size: int = 1, timeout: float = 0.01) -> None:
        if timeout < 0:
            raise ConfigError(f"monai.ThreadBuffer: timeout = {timeout} is not valid: use 0 or more seconds")
        self.src = src
        self.buffer_size = buffer_size
        self.timeout = timeout
        self._turn = threading.Lock()
        self._passes: set[OrderedPrefetch[Any]] = set()

    @property
    def is_running(self) -> bool:
        """Whether a pass is under way."""
        return bool(self._passes)

    def stop(self) -> None:
        """Ends every pass and its thread; returns when items in progress are finished."""
        for one in list(self._passes):
            one.close()

    def __iter__(self) -> Iterator[Any]:
        return _one_pass(self.src, self.buffer_size, self._turn, self._passes)


def _one_pass(
    source: Iterable[Any], buffer_size: int, turn: threading.Lock, passes: set[OrderedPrefetch[Any]]
) -> Generator[Any, None, None]:
    """The items of the source, each taken by a thread while it holds `turn`; listed in `passes` until it ends."""
    items: list[Iterator[Any]] = []

    def take(_index: int) -> Any:
        with turn:
            if not items:
                items.append(iter(source))
            return next(items[0], _END)

    num_ahead = buffer_size + 1 if buffer_size > 0 else sys.maxsize
    with OrderedPrefetch(take, num_threads=1, num_ahead=num_ahead) as taken:
        passes.add(taken)
        try:
            for item in taken:
                if item is _END:
                    return
                yield item
        finally:
            passes.discard(taken)


class ThreadDataLoader(MonaiThreadDataLoader):  # type: ignore[misc]
    """MONAI's `ThreadDataLoader`, with MONAI's arguments: a thread makes batches while the training runs.

    An error in a worker, a transform or the collation is raised in the loop, with its traceback, where MONAI ends the
    epoch early. `use_thread_workers` is as safe as the transforms: MONAI's random ones are not safe in several threads.

    Raises:
        ConfigError: `repeats` is less than 1 or `buffer_timeout` negative.
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 1,
        buffer_timeout: float = 0.01,
        repeats: int = 1,
        use_thread_workers: bool = False,
        **kwargs: Any,
    ) -> None:
        if repeats < 1:
            raise ConfigError(f"monai.ThreadDataLoader: repeats = {repeats} gives no batches; use 1 or more")
        if buffer_timeout < 0:
            raise ConfigError(
                f"monai.ThreadDataLoader: buffer_timeout = {buffer_timeout} is not valid: use 0 or more seconds"
            )
        super().__init__(dataset, buffer_size, buffer_timeout, repeats, use_thread_workers, **kwargs)
        self._turn = threading.Lock()

    def __iter__(self) -> Iterator[Any]:
        own = batches_of(self, num_ahead=1)
        batches = MonaiDataLoader.__iter__(self) if own is None else own
        with contextlib.ExitStack() as ends:
            if own is not None:
                ends.callback(own.close)
            for batch in ends.enter_context(contextlib.closing(self._pass_of(batches))):
                for _ in range(self.repeats):
                    yield batch

    def _pass_of(self, batches: Iterator[Any]) -> Generator[Any, None, None]:
        return _one_pass(batches, self.buffer_size, self._turn, set())
