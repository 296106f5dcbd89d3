"""What every stage promises. A Protocol says the calls; the words below say the obligations.

Obligations of a deterministic stage: equal input and equal fingerprint give equal output, in any process on any day;
`describe` never reads voxels; `__call__` neither changes its argument nor keeps it. It takes no generator, so that
randomness cannot be cached by accident.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from voxelocity.core.volume import Volume, VolumeSpec


@dataclass(frozen=True, kw_only=True)
class StageEffect:
    """What a stage will do to a volume: the spec after it, its scratch memory, and whether it holds the GIL."""

    spec: VolumeSpec
    scratch_bytes: int
    holds_gil: bool


@runtime_checkable
class DeterministicStage(Protocol):
    """A step of the preparation, before the cache."""

    def describe(self, spec: VolumeSpec) -> StageEffect:
        """The effect on a volume of this spec, without any voxels."""
        ...

    def fingerprint(self) -> str:
        """A text that changes whenever the output for some input could change."""
        ...

    def __call__(self, volume: Volume) -> Volume:
        """The volume after this step."""
        ...


@runtime_checkable
class Tier(Protocol):
    """A place where prepared volumes are kept. Entries are immutable.

    Obligations: `get` returns exactly what was `put` under the key (a view of immutable memory is fine) or None;
    a reader never sees part of an entry, whatever kills the writer; two processes may use one tier at once.
    """

    def get(self, key: str) -> Volume | None:
        """The volume under this key, or None where there is none or it is damaged (a damaged one is dropped)."""
        ...

    def put(self, key: str, volume: Volume) -> None:
        """Keeps the volume.

        Raises:
            EntryTooLargeError: this volume can never be kept; others may.
            CacheFullError: there is no space for it; nothing is left behind.
            CacheError: it cannot be written; nothing is left behind.
        """
        ...

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Holds the right to make this entry, among all who share the tier, so that the work is done once."""
        ...

    def bytes_used(self) -> int:
        """Bytes that the entries take in this tier."""
        ...
