"""`compile`: turns a chain of MONAI transforms into a faster one that you call the same way."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from monai.data.meta_obj import get_track_meta
from monai.transforms.compose import Compose

from voxelocity.monai.chain.chain import Chain, ChainError, ChainPlan, as_compose
from voxelocity.monai.content import digest
from voxelocity.monai.fingerprint import ChainFingerprint, fingerprint, item_identity
from voxelocity.monai.items.kept import deep_copy
from voxelocity.monai.items.store import FolderItems, ItemStore, MemoryItems
from voxelocity.monai.sources import FolderFacts
from voxelocity_observe import __version__
from voxelocity_observe.core.host import available_memory_bytes

_FORMAT = 1
"""Incremented when the meaning of kept entries changes; older entries are then ignored."""
_MEMORY_SHARE = 0.5
"""Default share of the memory free at compile time that the cache may take."""


def compile(
    chain: Compose | Sequence[Callable[..., Any]] | Callable[..., Any],
    *,
    cache: str | os.PathLike[str] = "memory",
    cache_max_bytes: int | None = None,
    lower: bool = True,
    exact_noise: bool = False,
) -> CompiledChain:
    """The chain, split at its first random transform: the part before it runs once per item and is then cached.

    The result replaces the chain: it is a `Compose`, you call it with an item, and it draws from the generators of the
    same transforms, so the same seeds give the same augmentations. Known random transforms draw as MONAI's do and are
    then made together, in few passes over the voxels; others run unchanged. Print it, or its `plan()`, to see which.

    Args:
        chain: a `monai.transforms.Compose`, a list of transforms or a single one; for a compiled chain, the chain that
            it was made from is used.
        cache: "memory" keeps prepared items in this process, "off" keeps none, anything else is a folder that keeps
            them for later runs and other processes. Each worker process of a loader has its own memory, so with
            workers a folder is the better place. Kept items are found by their files (path, size, times, inode) or
            values, and by the whole content of the deterministic transforms: class, arguments, versions and the code
            of functions.
        cache_max_bytes: limit for the items in memory; by default half of the memory that is free now.
        lower: False runs MONAI's own transforms: the off switch, and what `check` compares with.
        exact_noise: draw noise voxel by voxel from MONAI's generators, which takes longer than everything else.
            Otherwise noise is equal in distribution only.

    Returns:
        The compiled chain.

    Raises:
        ChainError: the chain is lazy or unpacks its items, or is not a chain.
        OutputError: `cache` is a folder that cannot be used.
    """
    compose = as_compose(chain.compose if isinstance(chain, CompiledChain) else chain)
    compiled = Chain(compose, lower=lower, exact_noise=exact_noise)
    content = fingerprint([stage.transform for stage in compiled.fixed.stages])
    max_bytes = int(_MEMORY_SHARE * available_memory_bytes()) if cache_max_bytes is None else cache_max_bytes
    return CompiledChain(compose, compiled, _open_store(os.fspath(cache), max_bytes, content), content)


class CompiledChain(Compose):  # type: ignore[misc]
    """What `compile` returns.

    It draws from its transforms' own generators, in the order of the calls: do not use it from several threads at once.

    Copies, including those sent to worker processes, start with an empty memory.

    Attributes:
        chain: its two parts.
        compose: the chain that it was made from; the same transforms.
    """

    def __init__(self, compose: Compose, chain: Chain, store: ItemStore | None, content: ChainFingerprint) -> None:
        # Not `Compose.__init__`, which reseeds every transform.
        self.__dict__ |= vars(compose)
        self.compose = compose
        self.chain = chain
        self._store = store
        self._content = content
        self._folders = FolderFacts()

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledChain, (self.compose, self.chain, self._store, self._content)

    def __call__(
        self, input_: Any, start: int = 0, end: int | None = None, threading: bool = False, lazy: bool | None = None
    ) -> Any:
        """What the chain makes of an item.

        Args:
            input_: the item. It is not changed.
            start: the first transform to run, as in `Compose`. Parts of a chain are not cached.
            end: the one after the last.
            threading: as in `Compose`; the deterministic part is always safe to use from several threads.
            lazy: anything but None or False is refused.

        Raises:
            ChainError: `lazy` is set.
            RuntimeError: a transform failed; it is named, and its own error is the cause.
        """
        if lazy:
            raise ChainError(
                "voxelocity.monai.compile: a compiled chain cannot run with lazy=True; call the original Compose"
            )
        if start == 0 and end is None:
            return self.chain.make(self.defer(input_))
        num = len(self.transforms)
        stop = num if end is None else end
        if not 0 <= start <= stop <= num:
            raise ValueError(f"'start' {start} and 'end' {end} do not name a part of a chain of {num} transforms")
        part = self.chain.part(start, stop)
        return part.make(part.defer(_apply_fixed(part, input_)))

    def prepare(self, item: Any) -> Any:
        """The item after the deterministic part, from the cache or made now. It belongs to the cache: only read it."""
        if not self.chain.fixed.stages or self._store is None:
            return _apply_fixed(self.chain, item)
        return self._store.get_or_make(self._key(item), lambda: _apply_fixed(self.chain, item))

    def _key(self, item: Any) -> str:
        """The name of the item's entry, made of everything that determines the prepared item."""
        options = [_FORMAT, __version__, self.chain.is_lowered, int(self.map_items), get_track_meta()]
        return digest(self._content.digest, item_identity(item, self._folders), repr(options)).hex()

    def defer(self, item: Any) -> Any:
        """What the chain makes of an item, drawn but with its voxels not yet made; batches are made from it."""
        return self.chain.defer(self.prepare(item))

    def make(self, pending: Any) -> Any:
        """What `defer` returned, with its voxels made."""
        return self.chain.make(pending)

    def plan(self) -> ChainPlan:
        """What happens to each transform, why, and what each has cost so far."""
        plan = self.chain.plan()
        doubts = [f"Never kept for later runs: {doubt}." for doubt in self._content.doubts]
        return ChainPlan(rows=plan.rows, notes=[*plan.notes, *doubts])

    def __str__(self) -> str:
        return str(self.plan())


def _apply_fixed(chain: Chain, item: Any) -> Any:
    """The item after the deterministic part, of a copy: a transform may write into what it is given."""
    return chain.fixed(deep_copy(item)) if chain.fixed.stages else item


def _open_store(cache: str, max_bytes: int, content: ChainFingerprint) -> ItemStore | None:
    if cache == "off":
        return None
    if cache != "memory" and not content.doubts:
        return FolderItems(Path(cache), warn=_warn)
    if cache != "memory":
        _warn(
            f"voxelocity.monai.compile: prepared items are kept in memory, for this run only, and not in {cache}, "
            f"because another run could not check whether they are still valid: {'; '.join(content.doubts)}. Use "
            "only functions and plain values in the chain"
        )
    return MemoryItems(max_bytes=max_bytes, warn=_warn)


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)
