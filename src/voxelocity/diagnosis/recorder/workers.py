"""Worker processes of torch's loaders: each learns, when it starts, which loader it makes batches for.

It learns this through the loader's `worker_init_fn`, which is replaced while the workers start: it reaches processes
that are forked, spawned or come from a fork server alike.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable

from .fetches import making_for
from .settings import VARIABLE, Settings


class WorkerStart:
    """Makes the functions that workers call when they start.

    Args:
        settings: of the recording.

    Attributes:
        is_starting: whether workers are being started: a process forked meanwhile is one of them.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.is_starting = False

    def for_loader(self, key: int, before: Callable[[int], Any] | None) -> Callable[[int], Any] | None:
        """The function to call instead of `before`, which it then calls."""
        # A process that is not forked must be able to import this module; otherwise its worker is not recorded.
        is_importable = __name__.startswith("voxelocity.") or VARIABLE in os.environ
        return WorkerInit(self._settings.to_json(), key, before) if is_importable else before


class WorkerInit:
    """The function that a worker calls when it starts; it is pickled for a process that is not forked."""

    def __init__(self, settings: str, key: int, before: Callable[[int], Any] | None) -> None:
        self._settings = settings
        self._key = key
        self._before = before
        self._pid = os.getpid()
        self._asked_s = time.monotonic()

    def __call__(self, worker_id: int) -> Any:
        if os.getpid() != self._pid:
            from .start import begin_worker

            begin_worker(Settings.from_json(self._settings), self._key, worker_id, asked_s=self._asked_s)
        making_for(self._key)
        return None if self._before is None else self._before(worker_id)
