"""Prepared cases by index, through the cache tier: the first half of the pipeline, files to prepared volumes."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from voxelocity.core.batch import Draw
from voxelocity.core.cases import LabelValues, index_dtype
from voxelocity.core.contracts import DeterministicStage, StageEffect, StoredVolume
from voxelocity.core.region import Index3
from voxelocity.core.staging import StagingAhead, is_elsewhere
from voxelocity.core.volume import Volume, VolumeRef, VolumeSpec
from voxelocity.data.cache import (
    FOLDER_TIERS,
    CacheConfig,
    EntryVolume,
    entry_key,
    is_shared,
    open_cache,
    source_identity,
)
from voxelocity.data.decode import read_case, read_header, source_files, spec_of
from voxelocity.data.prepare import Preparation, PrepareConfig
from voxelocity_observe.core.errors import CacheError, ScanError
from voxelocity_observe.core.host import available_memory_bytes
from voxelocity_observe.core.warn_once import Warn
from voxelocity_observe.spans import span

_OTHERS_READ = stat.S_IRGRP | stat.S_IROTH
_WORK_SHARE = 0.4
"""Share of the memory that is free at the start that cases being prepared may take at once, besides the cache."""
_Origin = Literal["found", "kept", "prepared"]


@dataclass(frozen=True, kw_only=True)
class CachingFacts:
    """The result of filling the cache. `num_found` cases were already there, `num_prepared` were prepared now.

    Attributes:
        num_kept: cases that the cache holds; fewer than all if it could not take them.
        num_with_foreground: cases whose label holds more than background.
        classes: indices of the classes that each case has, without the background, by case id.
    """

    num_found: int
    num_prepared: int
    num_bytes: int
    seconds: float
    num_kept: int
    num_with_foreground: int
    classes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class PreparedCases:
    """Prepared volumes of some cases, kept in the tier that the configuration names.

    Safe to use from several threads. Volumes are read-only: they are the cache's own memory.

    Args:
        refs: which cases, in the order of their indices.
        label_values: the file values of each class index.
        ignored: the index of voxels without a known class, around which no patch is cut; None if there are none.
        prepare: how each case is prepared.
        cache: where the result is kept.
        warn: called with a text, once for each cause, when the cache cannot be read or written and the run continues.
    """

    def __init__(
        self,
        refs: Sequence[VolumeRef],
        *,
        label_values: LabelValues,
        class_names: Sequence[str] = (),
        ignored: int | None = None,
        prepare: PrepareConfig,
        cache: CacheConfig,
        warn: Warn,
    ) -> None:
        self.refs = tuple(refs)
        self.class_names = tuple(class_names)
        self.warn = warn
        self._label_values, self._ignored = tuple(label_values), ignored
        self._preparation = Preparation(prepare)
        self._memory_budget = MemoryBudget(int(_WORK_SHARE * available_memory_bytes()))
        self._cache = open_cache(cache, warn)
        self._shared_folder = cache.folder if cache.tier in FOLDER_TIERS and is_shared(Path(cache.folder)) else ""
        self._keys = [self._key(ref) for ref in self.refs]

    def __len__(self) -> int:
        return len(self.refs)

    def __getitem__(self, index: int) -> StoredVolume:
        """The prepared volume of case `index`: from the cache, or prepared now and then kept.

        If a read finds the entry damaged or gone, the volume is taken again, with one warning.

        Raises:
            ScanError: the case cannot be used; the text names the file and the fix.
        """
        volume = self._take(index)[0]
        if isinstance(volume, EntryVolume):
            volume.renew = functools.partial(self._read_again, index)
        return volume

    def take(self, step: int, draws: Sequence[Draw]) -> list[StoredVolume]:
        """The volumes of these draws, in their order, whatever the step.

        Raises:
            ScanError: a case cannot be used; the text or a note on it names the case.
        """
        return [self[draw.case] for draw in draws]

    def missing(self) -> list[str]:
        """The ids of the cases that the cache does not hold."""
        return [ref.case_id for ref, key in zip(self.refs, self._keys, strict=True) if self._cache.get(key) is None]

    @property
    def num_indices(self) -> int:
        """Class indices that a label may hold, that of ignored voxels included."""
        return len(self._label_values)

    def drop(self, index: int) -> None:
        """Removes the case from the cache. Volumes already handed out stay valid."""
        self._cache.drop(self._keys[index])

    def most_bytes(self, index: int) -> int:
        """Upper bound in bytes of a prepared case, image and label, from its headers alone.

        An image with far outliers may take twice that: see `Cast`.

        Raises:
            ScanError: a header cannot be read.
        """
        spec = self._prepared_spec(index)
        return spec.image_bytes + spec.grid.num_voxels * np.dtype(index_dtype(self.num_indices)).itemsize

    def shape(self, index: int) -> Index3:
        """Upper bound of a prepared case's voxels along each axis, from its headers alone.

        Raises:
            ScanError: a header cannot be read.
        """
        return self._prepared_spec(index).grid.shape

    def _prepared_spec(self, index: int) -> VolumeSpec:
        ref = self.refs[index]
        return effect_on(ref, read_spec(ref), self._preparation).spec

    def part(self, indices: Sequence[int]) -> PreparedCases:
        """Some of these cases, in the same cache."""
        part = copy.copy(self)
        part.refs = tuple(self.refs[i] for i in indices)
        part._keys = [self._keys[i] for i in indices]
        return part

    def fill(
        self,
        *,
        num_threads: int,
        on_case: Callable[[str, int], None],
        should_stop: Callable[[], bool],
        on_broken: Callable[[str, ScanError], None] | None = None,
        on_spec: Callable[[VolumeSpec], None] = lambda spec: None,
        first: int = 0,
    ) -> CachingFacts:
        """Prepares every case that the cache does not hold yet, `num_threads` at a time.

        Args:
            num_threads: cases prepared at once.
            on_case: called with each case id and its bytes when it is ready, in the calling thread.
            should_stop: called between cases; once it is true, started cases are finished and the rest is skipped.
            on_broken: called with each case that cannot be used and its error, in the calling thread; the others are
                prepared.
            on_spec: called with what is known of each case that is ready, in the calling thread, before `on_case`.
            first: the case to begin with; processes that fill one cache together begin at different ones.

        Raises:
            ScanError: a case cannot be used and `on_broken` is not given. Cases already in the cache stay there.
        """
        start = time.perf_counter()
        num_bytes = 0
        classes: dict[str, tuple[int, ...]] = {}
        count: Counter[_Origin] = Counter()
        todo = iter(order := [*range(first, len(self)), *range(first)])
        with StagingAhead(map(self._files_missing, order)) as staging, ThreadPoolExecutor(num_threads) as pool:
            waiting: dict[Future[tuple[StoredVolume, _Origin]], str] = {}
            try:
                while True:
                    while len(waiting) < 2 * num_threads and not should_stop():
                        if (index := next(todo, None)) is None:
                            break
                        waiting[pool.submit(self._take, index)] = self.refs[index].case_id
                        staging.advance()
                    if not waiting:
                        break
                    for future in wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED).done:
                        case_id = waiting.pop(future)
                        try:
                            volume, origin = future.result()
                        except ScanError as error:
                            if on_broken is None:
                                raise
                            on_broken(case_id, error)
                            continue
                        count[origin] += 1
                        num_bytes += volume.num_bytes
                        classes[volume.case_id] = tuple(index for index in volume.foreground if index != 0)
                        on_spec(volume.spec)
                        on_case(volume.case_id, volume.num_bytes)
            finally:
                for future in waiting:
                    future.cancel()
        return CachingFacts(
            num_found=count["found"],
            num_prepared=count["prepared"] + count["kept"],
            num_bytes=num_bytes,
            seconds=time.perf_counter() - start,
            num_kept=count["found"] + count["kept"],
            num_with_foreground=sum(map(bool, classes.values())),
            classes=classes,
        )

    def _files_missing(self, index: int) -> Sequence[Path]:
        """The files elsewhere that preparing a case needs; none if the cache holds it."""
        files = [path for path in self.refs[index].files if is_elsewhere(path)]
        return [] if not files or self._cache.get(self._keys[index]) is not None else files

    def _key(self, ref: VolumeRef) -> str:
        fingerprint = f"{self._preparation.fingerprint()} labels={self._label_values} labeled={ref.label is not None}"
        if self._ignored is not None:
            fingerprint += f" ignored={self._ignored}"
        if ref.structures:
            fingerprint += f" structures={ref.structures}"
        if ref.volume is not None:
            fingerprint += f" volume={ref.volume}"
        found = [(path, source_files(path)) for path in ref.files]
        # Of several series, or structures, in one folder, all have the same files.
        if chosen := [os.path.abspath(path) for path, files in found if files != (path,)]:
            fingerprint += f" chosen={chosen}"
        return entry_key(source_identity(file for _, files in found for file in files), fingerprint)

    def _take(self, index: int) -> tuple[StoredVolume, _Origin]:
        key = self._keys[index]
        volume = self._cache.get(key)
        if volume is not None:
            return self._named(volume, index), "found"
        with self._cache.lock(key):
            volume = self._cache.get(key)
            if volume is not None:
                return self._named(volume, index), "found"
            prepared = self._prepare(index)
            if self._shared_folder:
                self._warn_if_private(self.refs[index])
            # A file that changed since the key was made belongs to another key.
            if self._key(self.refs[index]) != key or not self._cache.put(key, prepared):
                return prepared, "prepared"
        # Use the cache's copy, so that the prepared one can be freed.
        kept = self._cache.get(key)
        return (prepared if kept is None else self._named(kept, index)), "kept"

    def _warn_if_private(self, ref: VolumeRef) -> None:
        """Warns if a case's files are for this user alone while the cache's folder is for a group."""
        with contextlib.suppress(OSError):
            if any(not os.stat(path).st_mode & _OTHERS_READ for path in ref.images):
                self._cache.warn(
                    "private",
                    f"cache: only their owner may read the files of case '{ref.case_id}', but the group that may write "
                    f"to {self._shared_folder} can read the prepared copy; set data.cache.folder to a folder of your "
                    "own if that is not intended",
                )

    def _read_again(self, index: int, error: CacheError) -> Volume:
        """The volume in memory, after an error in reading the cache's entry."""
        self._cache.warn("lost", str(error))
        try:
            return self._take(index)[0].load()
        except CacheError:
            return self._prepare(index)

    def _named(self, volume: StoredVolume, index: int) -> StoredVolume:
        # The same files may stand under another name in another data set.
        return volume.renamed(self.refs[index].case_id)

    def _prepare(self, index: int) -> Volume:
        ref = self.refs[index]
        try:
            with self._memory_budget.taking(self._work_bytes(ref)):
                with span("decode", color="brown"):
                    decoded = [read_case(ref, label_values=self._label_values)]
                with span("prepare", color="olive"):
                    # Popped, as nothing here may keep the decoded volume alive while it is being prepared.
                    volume = self._preparation(decoded.pop())
                    known = {index: voxels for index, voxels in volume.foreground.items() if index != self._ignored}
                    return volume if self._ignored is None else volume.with_(foreground=known)
        except ScanError:
            raise  # its text names the case
        except Exception as error:  # whatever it is, it is raised again
            error.add_note(f"raised while case '{ref.case_id}' was prepared")
            raise

    def _work_bytes(self, ref: VolumeRef) -> int:
        """An upper bound of the memory that preparing a case takes temporarily."""
        try:
            spec = read_spec(ref)
            # Of several volumes in a file, some formats read all, and one is kept.
            whole = spec if ref.volume is None else read_spec(replace(ref, volume=None))
        except ScanError:
            return 0  # reading the case reports what is wrong, and where
        label_bytes = spec.grid.num_voxels * np.dtype(index_dtype(self.num_indices)).itemsize
        scratch_bytes = effect_on(ref, spec, self._preparation).scratch_bytes
        return whole.image_bytes + spec.image_bytes + label_bytes + scratch_bytes


def read_spec(ref: VolumeRef) -> VolumeSpec:
    """What the headers of a case say of its volume.

    Raises:
        ScanError: a header cannot be read.
    """
    return spec_of(ref, [read_header(path) for path in ref.images])


def effect_on(ref: VolumeRef, spec: VolumeSpec, preparation: DeterministicStage) -> StageEffect:
    """What a preparation will do to a case with these headers.

    Raises:
        ScanError: the case cannot be prepared so; its text names the case, which stages do not know.
    """
    try:
        return preparation.describe(spec)
    except ScanError as error:
        raise ScanError(f"prepare: case '{ref.case_id}': {str(error).partition(': ')[2]}") from None


class MemoryBudget:
    """A budget of bytes for work in several threads, so that many cores and large scans do not exhaust memory.

    Work larger than the whole budget is done alone.

    Attributes:
        num_bytes: of the whole budget.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.num_bytes = budget_bytes
        self._used_bytes = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taking(self, num_bytes: int) -> Iterator[None]:
        """Waits until `num_bytes` more fit, and holds them for the duration of the block."""
        with self._changed:
            self._changed.wait_for(lambda: self._used_bytes == 0 or self._used_bytes + num_bytes <= self.num_bytes)
            self._used_bytes += num_bytes
        try:
            yield
        finally:
            with self._changed:
                self._used_bytes -= num_bytes
                self._changed.notify_all()
