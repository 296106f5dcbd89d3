"""What every stage guarantees. A Protocol defines the calls; its docstring and the text below define the obligations.

Obligations of a stage: equal input always gives equal output, in any process, for one that has a fingerprint as long as
this is equal; `describe` never reads voxels; `__call__` neither changes its argument nor keeps it. It takes no
generator, so that randomness cannot be cached by accident.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Array, Grid, Scaling, Volume, VolumeSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class StageEffect:
    """What a stage will do to a volume: the spec after it, and its scratch memory."""

    spec: VolumeSpec
    scratch_bytes: int


class VolumeStage(Protocol):
    """A step of the preparation, before the cache."""

    def describe(self, spec: VolumeSpec) -> StageEffect:
        """The effect on a volume of this spec, without any voxels."""
        ...

    def __call__(self, volume: Volume) -> Volume:
        """The volume after this step."""
        ...


class DeterministicStage(VolumeStage, Protocol):
    """A whole preparation, or a step that several of them share."""

    def fingerprint(self) -> str:
        """A string that changes whenever the output for some input could change."""
        ...


@runtime_checkable
class StoredVolume(Protocol):
    """A prepared volume where its tier keeps it. A `Volume` is one; others decode what is read from them.

    Obligations: immutable; `read` may be called from several threads at once; what it returns may be read-only and
    stays valid as long as it is referenced, even if the entry is dropped.
    """

    @property
    def case_id(self) -> str: ...

    @property
    def grid(self) -> Grid: ...

    @property
    def spec(self) -> VolumeSpec:
        """Channels, grid and stored dtype of the image."""
        ...

    @property
    def scaling(self) -> tuple[Scaling, ...]:
        """Stored number to intensity, one for each channel; empty if they are the same."""
        ...

    @property
    def foreground(self) -> Mapping[int, Array]:
        """Per class index, int32 flat (C-order) indices of some of its voxels."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes that the entry takes in its tier."""
        ...

    def renamed(self, case_id: str) -> StoredVolume:
        """The same voxels under another case id: the same files may have another name in another data set."""
        ...

    def read(self, region: Region) -> tuple[Array, Array | None]:
        """The stored voxels of a box inside the volume: image (c, *shape) and label (*shape), if it has one."""
        ...

    def load(self) -> Volume:
        """All of it in memory."""
        ...


@runtime_checkable
class Tier(Protocol):
    """A place where prepared volumes are kept. Entries are immutable.

    Obligations: `get` returns what was `put` under the key, voxel for voxel, or None; a reader never sees part of an
    entry, even if its writer is killed; two processes may use one tier at once.
    """

    def get(self, key: str) -> StoredVolume | None:
        """The volume under this key, or None if there is none or it is damaged (a damaged one is dropped)."""
        ...

    def put(self, key: str, volume: Volume) -> None:
        """Keeps the volume.

        Raises:
            EntryTooLargeError: this volume can never be kept; others may.
            CacheFullError: no space is left for it; nothing is left behind.
            CacheError: it cannot be written; nothing is left behind.
        """
        ...

    def drop(self, key: str) -> None:
        """Removes this entry if there is one. Volumes already handed out stay valid."""
        ...

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Holds the right to make this entry, among all processes that share the tier, so that it is made once."""
        ...


@dataclass(frozen=True, kw_only=True)
class ResidentBox:
    """The stored voxels of a box of a volume, as part of one flat block of device memory.

    Offsets and steps count elements: those of the image in `dtype`, those of the label in bytes.

    Attributes:
        memory: (n,) uint8 on the device, n a multiple of 16. It is not written while a reference to this box exists.
        dtype: NumPy's name for the dtype of the image.
        shape: of the box.
        image_offset: of voxel (0, 0, 0) of channel 0.
        image_steps: between neighbors along (c, x, y, z).
        label_offset: of voxel (0, 0, 0).
        label_steps: along (x, y, z).
    """

    memory: torch.Tensor
    dtype: str
    shape: Index3
    image_offset: int
    image_steps: tuple[int, int, int, int]
    label_offset: int
    label_steps: Index3


@runtime_checkable
class ResidentVolume(Protocol):
    """A stored volume in a device's memory."""

    def locate(self, region: Region) -> ResidentBox:
        """Where the stored voxels of a box inside the volume are."""
        ...
