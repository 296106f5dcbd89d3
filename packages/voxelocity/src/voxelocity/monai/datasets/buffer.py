"""Items and batches made by one thread ahead of their use, under MONAI's names."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from monai.data import DataLoader as MonaiDataLoader
from monai.data import ThreadDataLoader as MonaiThreadDataLoader

from voxelocity.data import feed
from voxelocity.monai.datasets.loader import batches_of
from voxelocity_observe.core.errors import ConfigError


class ThreadBuffer(feed.ThreadBuffer[Any]):
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
        super().__init__(src, num_ahead=_num_ahead(buffer_size))
        self.src = src
        self.buffer_size = buffer_size
        self.timeout = timeout


class ThreadDataLoader(MonaiThreadDataLoader):  # type: ignore[misc]
    """MONAI's `ThreadDataLoader`, with MONAI's arguments: a thread makes batches while the training runs.

    Batches on a GPU are made on the stream that is current where the loop begins, so they need no synchronization.

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
            buffer = feed.ThreadBuffer(batches, num_ahead=_num_ahead(self.buffer_size), turn=self._turn)
            for batch in ends.enter_context(contextlib.closing(iter(buffer))):
                for _ in range(self.repeats):
                    yield batch if own is None else own.hand_over(batch)


def _num_ahead(buffer_size: int) -> int:
    return buffer_size + 1 if buffer_size > 0 else sys.maxsize
