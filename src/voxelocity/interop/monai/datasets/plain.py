"""A list of items and a chain of transforms. Keeps nothing."""

from __future__ import annotations

from typing import Any

from voxelocity.interop.monai.chain import ChainPlan
from voxelocity.interop.monai.datasets import peer
from voxelocity.interop.monai.datasets.chain import DataChain


class Dataset(peer.Dataset):  # type: ignore[misc]
    """MONAI's `Dataset`: item i is `transform(data[i])`; a slice or a list of indices gives a torch `Subset`.

    Args:
        data: the items.
        transform: a callable, a list of callables, a `Compose`, or None for unchanged items.

    Raises:
        ValueError: `transform` cannot be made into a `Compose`.
    """

    # Not in `__dict__`: MONAI iterates over it while thread workers, which share the data set, make items.
    __slots__ = ("_held_chain",)

    def plan(self) -> ChainPlan:
        """What happens to each transform of the chain, why, and what each has cost so far. Print it."""
        return self._data_chain().plan()

    def sketch(self, index: int) -> Any:
        """What `self[index]` is, drawn but not yet made. It draws what `self[index]` draws; `make` makes it."""
        return self._data_chain().whole(self.data[index])

    def make(self, sketched: Any) -> Any:
        """What `sketch` returned, with its voxels made."""
        return self._data_chain().make(sketched)

    def count_made(self, seconds: float) -> None:
        """Records how long a sample took to make, for `plan`."""
        self._data_chain().count_made(seconds)

    def _transform(self, index: int) -> Any:
        return self.make(self.sketch(index))

    def _data_chain(self) -> DataChain:
        """The current chain: users replace it, or put other transforms into it."""
        held: DataChain | None = getattr(self, "_held_chain", None)
        if held is None or not held.is_of(self.transform):
            held = self._held_chain = DataChain(self.transform)
        return held
