"""Structures painted into one label: where several overlap, the largest value, or one that stands for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from voxelocity.core.volume import Array
from voxelocity_observe.core.errors import ScanError

NamedValues = Mapping[str, int | tuple[int, ...]]
"""The value of each class by its name; of overlapping classes (regions), every value of a class."""
_MOST_OVERLAPPING = 64


def values_by_name(structures: Sequence[tuple[str, int]]) -> NamedValues:
    """Of pairs that have a name several times, if its class has several values."""
    grouped: dict[str, tuple[int, ...]] = {}
    for name, value in structures:
        grouped[name] = (*grouped.get(name, ()), value)
    return {name: values[0] if len(values) == 1 else values for name, values in grouped.items()}


class LabelCanvas:
    """A label (x, y, z) that is empty at first.

    Classes of one value each compete for a voxel, and the largest value wins. Overlapping ones share it: it gets the
    value that all of them have and no other class, or the one that comes nearest to it.

    Attributes:
        num_shared: voxels that more than one value could have had.

    Raises:
        ScanError: there are more than 64 overlapping classes.
    """

    def __init__(self, shape: tuple[int, ...], values: NamedValues) -> None:
        self._values = {name: (value,) if isinstance(value, int) else value for name, value in values.items()}
        self._overlaps = any(len(several) > 1 for several in self._values.values())
        self.num_shared = 0
        if not self._overlaps:
            self._painted = np.zeros(shape, dtype=np.uint16)
            return
        if len(values) > _MOST_OVERLAPPING:
            raise ScanError(
                f"decode: {len(values)} overlapping classes are declared, and {_MOST_OVERLAPPING} can be told apart; "
                "leave some out"
            )
        self._bits = {name: 1 << place for place, name in enumerate(self._values)}
        self._painted = np.zeros(shape, dtype=np.min_scalar_type((1 << len(values)) - 1))

    def paint(self, name: str, index: Any) -> None:
        """Adds a class to the voxels that this selects: indices along each axis, or a mask."""
        before = self._painted[index]
        if self._overlaps:
            self._painted[index] = before | self._painted.dtype.type(self._bits[name])
            return
        (value,) = self._values[name]
        self.num_shared += int(((before != 0) & (before != value)).sum())
        self._painted[index] = np.maximum(before, value)

    def label(self) -> Array:
        """The values (x, y, z) uint16, 0 where nothing was painted."""
        if not self._overlaps:
            return self._painted
        label = np.zeros(self._painted.shape, dtype=np.uint16)
        inside = self._painted != 0
        found, number, counts = np.unique(self._painted[inside], return_inverse=True, return_counts=True)
        chosen = [self._value_of(int(bits)) for bits in found]
        self.num_shared = sum(int(count) for (_, is_exact), count in zip(chosen, counts, strict=True) if not is_exact)
        label[inside] = np.array([value for value, _ in chosen], dtype=np.uint16)[number.reshape(-1)]
        return label

    def _value_of(self, bits: int) -> tuple[int, bool]:
        """The value of voxels in these classes, and whether it stands for exactly them."""
        names_of: dict[int, int] = {}
        for name, values in self._values.items():
            for value in values:
                names_of[value] = names_of.get(value, 0) | self._bits[name]
        # The fewest classes that are missing or too many; the largest value where several have as few.
        value = min(names_of, key=lambda each: ((names_of[each] ^ bits).bit_count(), -each))
        return value, names_of[value] == bits
