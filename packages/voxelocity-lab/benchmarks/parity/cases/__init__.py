"""The cases of the parity table: every dictionary transform that is lowered, with several sets of arguments."""

from __future__ import annotations

from collections.abc import Iterator

from parity.case import ParityCase
from parity.cases import crop, intensity, noise, spatial


def all_cases(side: int) -> Iterator[ParityCase]:
    """Cases whose patches have this many voxels a side; sizes in their arguments go with it."""
    for module in (crop, spatial, intensity, noise):
        yield from module.cases(side)


__all__ = ["all_cases"]
