"""Half-open boxes of voxels, which every stage of the path uses to address what it reads or writes."""

from __future__ import annotations

from dataclasses import dataclass

Index3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Region:
    """A box of voxels, `start` included and `stop` excluded, on the axes (x, y, z).

    A region may reach beyond the volume it addresses; `clip` and `padding` say by how much.

    Raises:
        ValueError: a `stop` lies before its `start`.
    """

    start: Index3
    stop: Index3

    def __post_init__(self) -> None:
        (x0, y0, z0), (x1, y1, z1) = self.start, self.stop
        if x1 < x0 or y1 < y0 or z1 < z0:
            raise ValueError(f"region: stop {self.stop} lies before start {self.start}")

    @classmethod
    def whole(cls, shape: Index3) -> Region:
        """The region that covers a volume of this shape."""
        return cls((0, 0, 0), shape)

    @property
    def shape(self) -> Index3:
        """Voxels along (x, y, z)."""
        (x0, y0, z0), (x1, y1, z1) = self.start, self.stop
        return (x1 - x0, y1 - y0, z1 - z0)

    @property
    def num_voxels(self) -> int:
        x, y, z = self.shape
        return x * y * z

    @property
    def slices(self) -> tuple[slice, slice, slice]:
        """Slices for the last three axes of an array. Only valid for a region inside the array."""
        x, y, z = (slice(start, stop) for start, stop in zip(self.start, self.stop, strict=True))
        return (x, y, z)

    def clip(self, shape: Index3) -> Region:
        """The part of this region inside a volume of this shape (empty if they do not overlap)."""
        (x0, y0, z0), (x1, y1, z1), (nx, ny, nz) = self.start, self.stop, shape
        return Region(
            (min(max(x0, 0), nx), min(max(y0, 0), ny), min(max(z0, 0), nz)),
            (min(max(x1, 0), nx), min(max(y1, 0), ny), min(max(z1, 0), nz)),
        )

    def padding(self, shape: Index3) -> tuple[Index3, Index3]:
        """Voxels of this region before and after a volume of this shape, per axis."""
        inside = self.clip(shape)
        before = tuple(min(max(-a, 0), n) for a, n in zip(self.start, self.shape, strict=True))
        after = tuple(n - m - p for n, m, p in zip(self.shape, inside.shape, before, strict=True))
        return _index3(before), _index3(after)

    def shifted(self, offset: Index3) -> Region:
        """This region moved by `offset` voxels."""
        (x0, y0, z0), (x1, y1, z1), (dx, dy, dz) = self.start, self.stop, offset
        return Region((x0 + dx, y0 + dy, z0 + dz), (x1 + dx, y1 + dy, z1 + dz))


def _index3(values: tuple[int, ...]) -> Index3:
    x, y, z = values
    return (int(x), int(y), int(z))
