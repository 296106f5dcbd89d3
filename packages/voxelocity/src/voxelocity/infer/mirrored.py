"""The logits of a window whose last mirroring was not added yet: that is done while they are weighted.

So a pair of mirrorings needs no sum of its own in memory. Only where `arrays.has_kernels`; logits are arrays elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from voxelocity.core.region import Region
from voxelocity.infer import arrays
from voxelocity.infer.arrays import Values


@dataclass(frozen=True)
class Mirrored:
    """The mean of several mirrorings, as `(first + mirror image of last) * share`.

    Attributes:
        first_kxyz: the sum of all mirrorings but the last, of any float type.
        last_kxyz: what the network returned for the mirrored window.
        axes: spatial axes along which that was mirrored.
        swapped: (k,) int64, for each class the one of `last_kxyz` that is added to it; None for itself.
        share: one over the number of mirrorings, a power of two, so that no rounding depends on when it is applied.
    """

    first_kxyz: Values
    last_kxyz: Values
    axes: tuple[int, ...]
    swapped: Values | None
    share: float

    @property
    def shape(self) -> tuple[int, ...]:
        """(k, x, y, z)."""
        return tuple(self.first_kxyz.shape)

    @property
    def nbytes(self) -> int:
        """Of the mean as float32."""
        return 4 * int(self.first_kxyz.nelement())

    def of_class(self, index: int) -> Values:
        """The mean of one class (x, y, z), float32, without kernels."""
        other = index if self.swapped is None else int(self.swapped[index])
        last = arrays.flip(self.last_kxyz[other], self.axes)
        return (arrays.as_float32(self.first_kxyz[index]) + last) * self.share


def part_of(logits_kxyz: Values | Mirrored, box: Region) -> Values | Mirrored:
    """A view of some voxels of a window."""
    if not isinstance(logits_kxyz, Mirrored):
        return logits_kxyz[:, *box.slices]
    sides = logits_kxyz.shape[1:]
    mirrored = tuple(
        slice(side - box.stop[axis], side - box.start[axis]) if axis in logits_kxyz.axes else box.slices[axis]
        for axis, side in enumerate(sides)
    )
    first, last = logits_kxyz.first_kxyz[:, *box.slices], logits_kxyz.last_kxyz[:, *mirrored]
    return replace(logits_kxyz, first_kxyz=first, last_kxyz=last)


def add_weighted(total_kxyz: Values, logits_kxyz: Values | Mirrored, weights_xyz: Values) -> None:
    """Adds logits times weights to a float32 total, which may be on another device."""
    if not isinstance(logits_kxyz, Mirrored):
        arrays.add_weighted(total_kxyz, logits_kxyz, weights_xyz)
    elif arrays.has_kernels(total_kxyz, logits_kxyz.last_kxyz, weights_xyz):
        _add(total_kxyz, logits_kxyz, weights_xyz=weights_xyz)
    else:
        for index, sums in enumerate(total_kxyz):
            sums.addcmul_(logits_kxyz.of_class(index).to(sums.device), weights_xyz)


def as_float32_copy(logits_kxyz: Values | Mirrored) -> Values:
    """A float32 copy of the logits on the same device."""
    if not isinstance(logits_kxyz, Mirrored):
        return arrays.float32_copy(logits_kxyz)
    total = arrays.zeros(logits_kxyz.shape, arrays.device_of(logits_kxyz.first_kxyz))
    _add(total, logits_kxyz, overwrites=True)
    return total


def _add(total_kxyz: Values, logits: Mirrored, *, weights_xyz: Values | None = None, overwrites: bool = False) -> None:
    from voxelocity.infer import device_arrays

    device_arrays.add(
        total_kxyz,
        logits.first_kxyz,
        logits.last_kxyz,
        flipped=logits.axes,
        swapped=logits.swapped,
        share=logits.share,
        weights_xyz=weights_xyz,
        overwrites=overwrites,
    )
