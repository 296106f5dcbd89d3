"""Changes of an array's shape, axis by axis, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxelocity.core.region import Index3


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """The voxels along one axis as weighted sums of those of the array.

    Attributes:
        index: (n, taps) int32, which voxels of the array.
        weight: (n, taps) float32. With one tap of weight 1 everywhere, voxels are copied.
    """

    index: npt.NDArray[np.int32]
    weight: npt.NDArray[np.float32]

    def after(self, first: Table) -> Table:
        """The table of both: this one applied to the result of `first`."""
        num = len(self.index)
        weight = first.weight[self.index] * self.weight[:, :, None]
        return Table(index=first.index[self.index].reshape(num, -1), weight=weight.reshape(num, -1))

    def rows(self, rows: npt.NDArray[np.intp]) -> Table:
        """The table of these rows; row -1 is a voxel of value 0."""
        weight = np.where(rows[:, None] < 0, np.float32(0.0), self.weight[rows])
        return Table(index=self.index[rows], weight=weight)


@dataclass(frozen=True, kw_only=True, eq=False)
class Resize:
    """The array resampled axis by axis.

    Attributes:
        tables: of x, y and z.
        matrix: (4, 4), the result of `to_source`.
    """

    tables: tuple[Table, Table, Table]
    matrix: npt.NDArray[np.float64]

    def to_source(self, shape: Index3) -> npt.NDArray[np.float64]:
        """As `Crop.to_source`, given by the step's maker."""
        return self.matrix

    def shape_after(self, shape: Index3) -> Index3:
        """As `Crop.shape_after`."""
        x, y, z = (len(table.index) for table in self.tables)
        return (x, y, z)
