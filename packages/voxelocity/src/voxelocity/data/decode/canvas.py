"""Structures painted into one label: where several overlap, the largest value, or one that stands for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from voxelocity.core.volume import Array, slabs
from voxelocity.data.decode.notes import Note
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.quantities import listed

T = TypeVar("T")
NamedValues = Mapping[str, int | tuple[int, ...]]
"""The value of each class by its name; of overlapping classes (regions), every value of a class."""
# As many as uint16 can number.
_MOST_SETS = 1 << 16
_SLAB_VALUES = 1 << 18


def values_by_name(structures: Sequence[tuple[str, int]]) -> NamedValues:
    """Of pairs that have a name several times, if its class has several values."""
    grouped: dict[str, tuple[int, ...]] = {}
    for name, value in structures:
        grouped[name] = (*grouped.get(name, ()), value)
    return {name: values[0] if len(values) == 1 else values for name, values in grouped.items()}


class LabelCanvas:
    """A label (x, y, z) that is empty at first, and knows all classes of each voxel.

    Classes of one value each compete for a voxel, and the largest value wins. Overlapping ones share it: it gets the
    value that all of them have and no other class, or the one that comes nearest to it.

    Attributes:
        values: of the classes, by name.
        sets: of classes, those that voxels are in: bit i stands for the i-th name of `values`. The first is empty.
        voxels: (x, y, z) uint16, indices in `sets`.
    """

    def __init__(self, shape: tuple[int, ...], values: NamedValues) -> None:
        self.values = values
        self._several = [(value,) if isinstance(value, int) else value for value in values.values()]
        self._bits = {name: 1 << place for place, name in enumerate(values)}
        # Of overlapping classes, those that have a value.
        self._classes_of: dict[int, int] = {}
        if any(len(several) > 1 for several in self._several):
            for bit, several in zip(self._bits.values(), self._several, strict=True):
                for value in several:
                    self._classes_of[value] = self._classes_of.get(value, 0) | bit
        self._numbers = {0: 0}
        self.sets = [0]
        self.voxels: Array = np.zeros(shape, dtype=np.uint16, order="F")

    def paint(self, name: str, index: Any) -> None:
        """Adds a class to the voxels that this selects: indices along each axis, or a mask.

        Raises:
            ScanError: classes overlap in more than 65,535 ways.
        """
        before = self.voxels[index]
        found, numbers = _numbers_in(before, len(self.sets)), [*range(len(self.sets))]
        for number in found:
            wider = self.sets[number] | self._bits[name]
            numbers[number] = self._numbers.setdefault(wider, len(self.sets))
            if numbers[number] == len(self.sets):
                self.sets.append(wider)
        if len(self.sets) > _MOST_SETS:
            raise ScanError(
                f"decode: {len(self.values)} structures overlap in more than {_MOST_SETS - 1:,} ways, as in noise; "
                "leave some of these classes out"
            )
        # Mostly nothing was painted there: then one number is written, in half of the time.
        is_same = len(found) == 1
        self.voxels[index] = numbers[found[0]] if is_same else np.array(numbers, dtype=np.uint16)[before]

    def label(self) -> Array:
        """The values (x, y, z) uint16, 0 where nothing was painted."""
        values = np.array([self._value_of(classes)[0] for classes in self.sets], dtype=np.uint16)
        label: Array = values[self.voxels]
        return label

    def noted_label(self, path: Path, note: Note) -> Array:
        """As `label`; calls `note` if classes of this file, or folder of masks, share a voxel that has one value."""
        where, taken = self.overlap()
        if where:
            what = "masks" if path.is_dir() else "structures"
            note("overlap", f"decode: {path}: {what} overlap: {where}, and count as {taken}")
        return self.label()

    def shared(self) -> dict[int, int]:
        """The voxels of each set of classes for which no value stands, the most first."""
        inexact = [number for number, classes in enumerate(self.sets) if not self._value_of(classes)[1]]
        if not inexact:
            return {}
        counts = np.zeros(len(self.sets), dtype=np.int64)
        for (slab,) in slabs(self.voxels, max_values=_SLAB_VALUES):
            counts += np.bincount(slab.ravel(order="K"), minlength=len(counts))
        inexact.sort(key=lambda number: -counts[number])
        return {self.sets[number]: int(counts[number]) for number in inexact if counts[number]}

    def overlap(self) -> tuple[str, str]:
        """Which of the classes that `shared` has lie on one another most, as part of a sentence, and as what these
        voxels are taken; empty if none do.
        """
        shared = self.shared()
        if not shared:
            return "", ""
        worst, number = next(iter(shared.items()))
        order = dict(zip(self.values, self._several, strict=True))
        names = sorted(members_of(worst, [*order]), key=lambda name: (order[name], name))
        value, _ = self._value_of(worst)
        taken = listed([name for name, several in order.items() if value in several])
        more = f" (and {sum(shared.values()) - number:,} in others)" if len(shared) > 1 else ""
        return f"{number:,} voxels lie in {' and in '.join(names[-2:])}{more}", taken

    def _value_of(self, classes: int) -> tuple[int, bool]:
        """The value of voxels in these classes, and whether it stands for exactly them."""
        if classes == 0:
            return 0, True
        if not self._classes_of:
            values = {several[0] for several in members_of(classes, self._several)}
            return max(values), len(values) == 1
        # The fewest classes that are missing or too many; the largest value where several have as few.
        known = self._classes_of
        value = min(known, key=lambda value: ((known[value] ^ classes).bit_count(), -value))
        return value, known[value] == classes


def members_of(bits: int, items: Sequence[T]) -> list[T]:
    """The items whose places have a bit."""
    found = []
    while bits:
        found.append(items[(bits & -bits).bit_length() - 1])
        bits &= bits - 1
    return found


def _numbers_in(array: Array, num_numbers: int) -> list[int]:
    """Which of the numbers below `num_numbers` an array holds, ascending."""
    is_there = np.zeros(num_numbers, dtype=bool)
    # Indices are made eight bytes wide, so in parts.
    for (slab,) in slabs(array, max_values=_SLAB_VALUES):
        is_there[slab] = True
    found: list[int] = np.flatnonzero(is_there).tolist()
    return found
