"""A kept volume that outlives its entry: if it can no longer be read, it is prepared again. Keeps nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from voxelocity.core.contracts import StoredVolume
from voxelocity.core.errors import CacheError
from voxelocity.core.region import Region
from voxelocity.core.volume import Array, Grid, Scaling, Volume, VolumeSpec


@dataclass(frozen=True, kw_only=True)
class RecoverableVolume:
    """A `StoredVolume` whose entry may be damaged, or removed by another process, while it is in use.

    Safe to use from several threads if both of its parts are.

    Attributes:
        kept: the volume as the cache gave it.
        renew: gives the same volume in memory, from the error that reading `kept` raised.
    """

    kept: StoredVolume
    renew: Callable[[CacheError], Volume]

    @property
    def case_id(self) -> str:
        return self.kept.case_id

    @property
    def grid(self) -> Grid:
        return self.kept.grid

    @property
    def spec(self) -> VolumeSpec:
        return self.kept.spec

    @property
    def scaling(self) -> tuple[Scaling, ...]:
        return self.kept.scaling

    @property
    def foreground(self) -> Mapping[int, Array]:
        return self.kept.foreground

    @property
    def num_bytes(self) -> int:
        return self.kept.num_bytes

    def renamed(self, case_id: str) -> RecoverableVolume:
        """The same voxels under another case id."""
        return replace(self, kept=self.kept.renamed(case_id), renew=lambda error: self.renew(error).renamed(case_id))

    def read(self, region: Region) -> tuple[Array, Array | None]:
        """The stored voxels of a box inside the volume: image (c, *shape) and label (*shape) uint8, if it has one."""
        try:
            return self.kept.read(region)
        except CacheError as error:
            return self.renew(error).read(region)

    def load(self) -> Volume:
        """The whole volume in memory."""
        try:
            return self.kept.load()
        except CacheError as error:
            return self.renew(error)
