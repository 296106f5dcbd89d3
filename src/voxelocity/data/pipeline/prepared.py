"""Prepared cases by index, through the cache tier: the first half of the path, files to prepared volumes."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from voxelocity.core.contracts import Tier
from voxelocity.core.errors import CacheError
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.cache import CacheConfig, DiskTier, MemoryTier, entry_key, source_identity
from voxelocity.data.decode import read_case
from voxelocity.data.prepare import Preparation, PrepareConfig

Warn = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class CachingFacts:
    """What filling the cache did. `num_found` cases were there already, `num_prepared` were prepared now.

    Attributes:
        is_kept: False where the cache could not take an entry, so that the run goes on without it.
    """

    num_found: int
    num_prepared: int
    num_bytes: int
    seconds: float
    is_kept: bool


class PreparedCases:
    """Prepared volumes of some cases, kept in the tier that the configuration names.

    Safe to use from several threads. Volumes are read-only: they are the cache's own memory.

    Args:
        refs: which cases, in the order of their indices.
        label_values: file values in order of class index.
        prepare: how each case is prepared.
        cache: where the result is kept.
        warn: told once, in words, when the cache cannot take an entry and the run goes on without.
    """

    def __init__(
        self,
        refs: Sequence[VolumeRef],
        *,
        label_values: Sequence[int],
        prepare: PrepareConfig,
        cache: CacheConfig,
        warn: Warn,
    ) -> None:
        self.refs = tuple(refs)
        self._label_values = tuple(label_values)
        self._preparation = Preparation(prepare)
        self._warn = warn
        self._disk = DiskTier(Path(cache.folder)) if cache.tier == "disk" else None
        self._tier: Tier | None = MemoryTier(cache.max_bytes) if cache.tier == "memory" else self._disk
        self._giving_up = threading.Lock()
        self._keys = [self._key(ref) for ref in self.refs]

    def __len__(self) -> int:
        return len(self.refs)

    def __getitem__(self, index: int) -> Volume:
        """The prepared volume of case `index`: from the cache, or prepared now and then kept.

        Raises:
            ScanError: the case cannot be used; the text names the file and the cure.
        """
        return self._take(index)[0]

    def part(self, indices: Sequence[int]) -> PreparedCases:
        """Some of these cases, in the same cache."""
        part = copy.copy(self)
        part.refs = tuple(self.refs[i] for i in indices)
        part._keys = [self._keys[i] for i in indices]
        return part

    def fill(
        self, *, num_threads: int, on_case: Callable[[str, int], None], should_stop: Callable[[], bool]
    ) -> CachingFacts:
        """Prepares every case that the cache does not hold yet, `num_threads` at a time.

        Args:
            num_threads: cases in work at once.
            on_case: told each case id and its bytes when it is ready, in the calling thread.
            should_stop: asked between cases; once true, the cases in work are finished and the rest is left.

        Raises:
            ScanError: a case cannot be used. Cases already in the cache stay there.
        """
        start = time.perf_counter()
        found = prepared = num_bytes = 0
        with ThreadPoolExecutor(max_workers=num_threads) as pool:
            waiting: set[Future[tuple[Volume, bool]]] = set()
            todo = iter(range(len(self)))
            try:
                while True:
                    while len(waiting) < 2 * num_threads and not should_stop():
                        index = next(todo, None)
                        if index is None:
                            break
                        waiting.add(pool.submit(self._take, index))
                    if not waiting:
                        break
                    done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                    for future in done:
                        volume, was_found = future.result()
                        found, prepared = found + was_found, prepared + (not was_found)
                        num_bytes += volume.num_bytes
                        on_case(volume.case_id, volume.num_bytes)
            finally:
                for future in waiting:
                    future.cancel()
        return CachingFacts(
            num_found=found,
            num_prepared=prepared,
            num_bytes=num_bytes,
            seconds=time.perf_counter() - start,
            is_kept=self._tier is not None,
        )

    def _key(self, ref: VolumeRef) -> str:
        fingerprint = f"{self._preparation.fingerprint()} labels={self._label_values} labelled={ref.label is not None}"
        return entry_key(source_identity([*ref.images, *([] if ref.label is None else [ref.label])]), fingerprint)

    def _take(self, index: int) -> tuple[Volume, bool]:
        tier, key = self._tier, self._keys[index]
        if tier is None:
            return self._prepare(index), False
        volume = self._get(tier, index)
        if volume is not None:
            return volume, True
        with self._only_one_builder(key):
            volume = self._get(tier, index)
            if volume is not None:
                return volume, True
            volume = self._prepare(index)
            try:
                tier.put(key, volume)
            except CacheError as error:
                self._go_on_without(error)
                return volume, False
        # What is in use should be the cache's copy, so that the prepared one can be freed.
        return self._get(tier, index) or volume, False

    def _go_on_without(self, error: CacheError) -> None:
        with self._giving_up:
            if self._tier is None:
                return
            self._tier = None
        self._warn(f"{error}; going on without a cache: cases are prepared again each time they are used")

    def _get(self, tier: Tier, index: int) -> Volume | None:
        volume = tier.get(self._keys[index])
        # The same files may stand under another name in another data set.
        return None if volume is None else volume.with_(case_id=self.refs[index].case_id)

    def _prepare(self, index: int) -> Volume:
        return self._preparation(read_case(self.refs[index], label_values=self._label_values))

    def _only_one_builder(self, key: str) -> AbstractContextManager[object]:
        return nullcontext() if self._disk is None else self._disk.lock(key)
