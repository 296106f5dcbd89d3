"""What the tests of MONAI's names share: the names under test, and chains whose runs can be counted."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from monai.transforms import Transform


@pytest.fixture
def sets() -> ModuleType:
    """The names under test. With `monai.data` in their place, the tests of MONAI's faults fail."""
    import voxelocity.monai

    return voxelocity.monai


class Filled(Transform):
    """A (1, side, side, side) float32 tensor filled with the item's number."""

    def __init__(self, side: int = 4) -> None:
        self.side = side

    def __call__(self, number: Any) -> torch.Tensor:
        return torch.full((1, self.side, self.side, self.side), float(number))


class FailsOn(Transform):
    """Raises for one item."""

    def __init__(self, bad: Any) -> None:
        self.bad = bad

    def __call__(self, item: Any) -> Any:
        if item == self.bad:
            raise ValueError(f"scan {item} is broken")
        return item


@pytest.fixture
def filled() -> type[Filled]:
    return Filled


@pytest.fixture
def fails_on() -> type[FailsOn]:
    return FailsOn
