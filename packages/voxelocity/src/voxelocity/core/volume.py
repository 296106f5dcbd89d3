"""What travels along the path: which files a case has, the grid it lies on, and its voxels.

Arrays have the logical axes (c, x, y, z), whatever their order in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.region import Index3, Region

Array = npt.NDArray[Any]
ClassIndices = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
"""(x, y, z); `index_dtype` says which type."""
Affine = tuple[tuple[float, float, float, float], ...]
Spacing = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class VolumeRef:
    """One case of a data set: names of files, no voxels.

    Attributes:
        case_id: unique within the data set.
        images: one file per channel, or one file that holds all of them on its fourth axis. A DICOM series is the
            folder that holds it alone, or one of its files.
        label: the label file, absent for cases to predict.
        fold: the fold in which this case is held out, if the data set says so.
        more_folds: further ones, where splits are repeated.
        patient: whose scan it is, from the data set or from its names; cases of one patient stay in one fold.
        structures: names and values of the classes, for a label file that has names in place of values.
        volume: of images that hold several volumes, the one that is taken, counted from 1; None for all, as channels.
    """

    case_id: str
    images: tuple[Path, ...]
    label: Path | None = None
    fold: int | None = None
    more_folds: tuple[int, ...] = ()
    patient: str | None = None
    structures: tuple[tuple[str, int], ...] = ()
    volume: int | None = None

    @property
    def folds(self) -> tuple[int, ...]:
        """The folds in which this case is held out."""
        return self.more_folds if self.fold is None else (self.fold, *self.more_folds)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of its channels, and that of its label."""
        return self.images if self.label is None else (*self.images, self.label)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A regular grid in space: voxels along (x, y, z), and the affine that takes a voxel index to RAS+ millimeters."""

    shape: Index3
    affine: Affine

    @classmethod
    def of(cls, shape: tuple[int, ...], affine: Array) -> Grid:
        """The grid of an array's last three axes and a 4x4 affine."""
        x, y, z = (int(n) for n in shape[-3:])
        rows = tuple((float(r[0]), float(r[1]), float(r[2]), float(r[3])) for r in np.asarray(affine, dtype=np.float64))
        return cls(shape=(x, y, z), affine=rows)

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        """The affine as a fresh (4, 4) float64 array."""
        return np.array(self.affine, dtype=np.float64)

    @property
    def spacing_mm(self) -> Spacing:
        """Length of one voxel step along (x, y, z)."""
        x, y, z = np.linalg.norm(self.steps_mm, axis=0)
        return (float(x), float(y), float(z))

    @property
    def steps_mm(self) -> npt.NDArray[np.float64]:
        """One voxel step along (x, y, z) as the columns of (3, 3); not at right angles after a tilted gantry."""
        return self.matrix[:3, :3]

    @property
    def voxel_ml(self) -> float:
        """Volume of one voxel."""
        return abs(float(np.linalg.det(self.steps_mm))) / 1e3

    @property
    def num_voxels(self) -> int:
        x, y, z = self.shape
        return x * y * z

    def is_close(self, other: Grid, *, atol_mm: float = 1e-3) -> bool:
        """Whether both grids have the same shape and put each voxel at the same place, within `atol_mm`."""
        return self.shape == other.shape and self.largest_difference_mm(other) <= atol_mm

    def is_shared_with(self, other: Grid) -> bool:
        """Whether scans on both grids count as scans on one: same shape, each voxel within a quarter of a voxel."""
        # Not tighter: storing a rotation as a float32 quaternion alone moves the far corner of a large scan by 0.15 mm.
        return self.is_close(other, atol_mm=0.25 * min(self.spacing_mm))

    def largest_difference_mm(self, other: Grid) -> float:
        """Largest distance between the places that both affines give to one of this grid's eight corner voxels."""
        # All eight: the first and the last corner cannot distinguish a cube from itself with two axes exchanged.
        corners = np.array([(*index, 1) for index in np.ndindex(2, 2, 2)]) * [*(n - 1 for n in self.shape), 1]
        return float(np.linalg.norm(corners @ (self.matrix - other.matrix).T, axis=1).max())


@dataclass(frozen=True, kw_only=True)
class VolumeSpec:
    """What a stage may know about a volume before its voxels exist: channels, grid, dtype of the image."""

    num_channels: int
    grid: Grid
    dtype: str

    @property
    def image_bytes(self) -> int:
        return self.num_channels * self.grid.num_voxels * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a stored number becomes an intensity: `stored * slope + inter`, NIfTI's scl_slope and scl_inter."""

    slope: float = 1.0
    inter: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Volume:
    """One case in memory. It is a `core.contracts.StoredVolume` whose `read` costs nothing.

    Attributes:
        case_id: the case these voxels belong to.
        image: (c, x, y, z), as stored: intensities once `scaling` is applied.
        label: (x, y, z) class indices (not file values), of the type `core.cases.index_dtype`, or None without a label.
        grid: where the voxels are now.
        trace: the spatial steps that led here from the scan's own grid, oldest first, as plain records;
            `data.prepare` reverses them to put a prediction on the scan's own grid.
        foreground: per class index, int32 flat (C-order) indices into (x, y, z) of some of its voxels.
        scaling: one for each channel; empty if the stored numbers are the intensities themselves.
    """

    case_id: str
    image: Array
    label: Array | None
    grid: Grid
    scaling: tuple[Scaling, ...] = ()
    trace: tuple[Mapping[str, Any], ...] = ()
    foreground: Mapping[int, Array] = field(default_factory=dict)

    @property
    def spec(self) -> VolumeSpec:
        return VolumeSpec(num_channels=int(self.image.shape[0]), grid=self.grid, dtype=str(self.image.dtype))

    @property
    def num_bytes(self) -> int:
        """Bytes of the voxels and the foreground indices."""
        label_bytes = 0 if self.label is None else int(self.label.nbytes)
        return int(self.image.nbytes) + label_bytes + sum(int(index.nbytes) for index in self.foreground.values())

    def read(self, region: Region) -> tuple[Array, Array | None]:
        """The stored voxels of a box inside the volume: image (c, *shape) and label (*shape), as views."""
        label = None if self.label is None else self.label[region.slices]
        return self.image[(slice(None), *region.slices)], label

    def renamed(self, case_id: str) -> Volume:
        """The same voxels under this case id."""
        return self if case_id == self.case_id else replace(self, case_id=case_id)

    def load(self) -> Volume:
        """The volume itself."""
        return self

    def intensities(self) -> npt.NDArray[np.float32]:
        """(c, x, y, z) float32 with `scaling` applied; a fresh array in C order."""
        image = np.array(self.image, dtype=np.float32, order="C")
        for channel, scaling in zip(image, self.scaling, strict=False):
            channel *= np.float32(scaling.slope)
            channel += np.float32(scaling.inter)
        return image

    def with_(self, **changes: Any) -> Volume:
        """A copy with some fields replaced."""
        return replace(self, **changes)


def slabs(*arrays: Array, max_values: int) -> Iterator[tuple[Array, ...]]:
    """Matching pieces of arrays of one shape, cut along the axes that are slowest in the first array's memory.

    Args:
        arrays: of one shape.
        max_values: per piece; the pieces may have fewer axes than the arrays.
    """
    first = arrays[0]
    if first.size <= max_values:
        yield arrays
        return
    slow = max(range(first.ndim), key=lambda axis: abs(first.strides[axis]) if first.shape[axis] > 1 else -1)
    moved = tuple(np.moveaxis(array, slow, 0) for array in arrays)
    thickness = max_values // moved[0][0].size
    if thickness == 0:
        for planes in zip(*moved, strict=True):
            yield from slabs(*planes, max_values=max_values)
        return
    for start in range(0, len(moved[0]), thickness):
        yield tuple(array[start : start + thickness] for array in moved)
