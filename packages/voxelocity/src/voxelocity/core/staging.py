"""Files whose content is somewhere else until it is read: which local file has it. Knows no network.

A folder of such files is registered with a function that brings the content of one of them here
(`data.source.remote`). Whatever opens scans asks `stage` for the file to open.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

from voxelocity.core.scan_formats import voxels_next_to
from voxelocity_observe.core.errors import ScanError

Stage = Callable[[Path, bool], Path]
"""Brings the content of a file here, or of all files in a folder; where it is. Safe from several threads.

If its second argument is false, the beginning of a file is enough: what follows may read as zeros.
"""

# Requests to a server mostly wait for its answer.
_NUM_AT_ONCE = 8

_stages: dict[str, Stage] = {}


def register(root: Path, fetch: Stage) -> None:
    """From now on, files below `root` are read where `fetch` puts them."""
    _stages[os.path.join(os.fspath(root), "")] = fetch


def is_registered(root: Path) -> bool:
    """Whether files below `root` are read somewhere else."""
    return os.path.join(os.fspath(root), "") in _stages


def stage(path: Path, *, is_whole: bool = True) -> Path:
    """The file or folder to read: `path` itself unless it lies below a registered folder.

    The voxels of a header come along if they have its name.

    Args:
        path: of the file or folder.
        is_whole: otherwise its first 64 KiB are enough, and the rest may read as zeros.

    Raises:
        ScanError: its content cannot be brought here.
    """
    for root, fetch in _stages.items():
        if os.fspath(path).startswith(root):
            for voxels in voxels_next_to(path) if is_whole else ():
                fetch(voxels, True)
            return fetch(path, is_whole)
    return path


def is_elsewhere(path: Path) -> bool:
    """Whether the content of a file lies somewhere else until it is read."""
    return any(os.fspath(path).startswith(root) for root in _stages)


class StagingAhead:
    """Brings the next files here while earlier ones are read, within a `with` block.

    Args:
        groups: what is read together, in the order in which it is read. Files that are on this machine cost nothing.
        is_whole: as for `stage`.
    """

    def __init__(self, groups: Iterable[Sequence[Path]], *, is_whole: bool = True) -> None:
        self._groups, self._is_whole = iter(groups), is_whole
        self._waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._has_ended, self._lock = threading.Event(), threading.Lock()
        self._num_threads = 0

    def __enter__(self) -> Self:
        for _ in range(_NUM_AT_ONCE):
            self.advance()
        return self

    def advance(self) -> None:
        """One more group may be brought here: call it when the next one is read."""
        with self._lock:
            for path in filter(is_elsewhere, next(self._groups, ())):
                self._waiting.put(path)
                if self._num_threads < _NUM_AT_ONCE:
                    self._num_threads += 1
                    # The end of a process does not wait for it.
                    threading.Thread(target=self._bring, name="staging ahead", daemon=True).start()

    def __exit__(self, *details: object) -> None:
        self._has_ended.set()
        for _ in range(self._num_threads):
            self._waiting.put(None)

    def _bring(self) -> None:
        while (path := self._waiting.get()) is not None and not self._has_ended.is_set():
            # The reader of the file raises it again.
            with contextlib.suppress(ScanError):
                stage(path, is_whole=self._is_whole)
