"""A list of items and a chain of transforms. Keeps nothing."""

from __future__ import annotations

from typing import Any

import monai.data

from voxelocity.interop.monai.datasets import chain


class Dataset(monai.data.Dataset):  # type: ignore[misc]
    """MONAI's `Dataset`: item i is `transform(data[i])`; a slice or a list of indices gives a torch `Subset`.

    Args:
        data: the items.
        transform: a callable, a list of callables, a `Compose`, or None for the items as they are.

    Raises:
        ValueError: `transform` cannot be made into a `Compose`.
    """

    def _transform(self, index: int) -> Any:
        return chain.run_whole(self.transform, self.data[index])
