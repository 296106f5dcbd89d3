"""Which predictions of a command are pictured: without a truth, those least like the others. Draws nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from voxelocity.report.records import SliceFigure, SliceStack

_FEWEST = 3
# A structure in fewer scans than this share is not missed in the others.
_USUAL_SHARE = 0.5
_NOTABLE_FACTOR = 1.5


@dataclass(frozen=True, kw_only=True)
class _Kept:
    volumes_ml: Mapping[str, float]
    figure: SliceFigure


class Pictured:
    """Slices of a few scans, kept while more are predicted.

    A scan is unlike the others if a class is missing that most have, or has many times the median volume or a small
    part of it. With fewer than three scans there is nothing to compare with: the first ones are kept.

    Args:
        most: scans to keep.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._volumes_ml: list[Mapping[str, float]] = []
        self._kept: list[_Kept] = []

    def add(self, case_id: str, volumes_ml: Mapping[str, float], cut: Callable[[], tuple[SliceStack, ...]]) -> None:
        """Keeps the slices of a scan if it is among the most unlike so far; `cut` makes them, if they are needed."""
        self._volumes_ml.append(volumes_ml)
        if len(self._kept) >= self._most and self._unlike(volumes_ml) <= min(map(self._rank, self._kept)):
            return
        kept = _Kept(volumes_ml=volumes_ml, figure=SliceFigure(title=case_id, stacks=cut()))
        self._kept = sorted([*self._kept, kept], key=self._rank, reverse=True)[: self._most]

    @property
    def figures(self) -> list[SliceFigure]:
        """The slices, the most unlike first, each with what is unusual in its title."""
        ranked = sorted(self._kept, key=self._rank, reverse=True)
        return [self._titled(kept) for kept in ranked]

    def _titled(self, kept: _Kept) -> SliceFigure:
        return replace(kept.figure, title=f"{kept.figure.title}{self._words(kept.volumes_ml)}")

    def _words(self, volumes_ml: Mapping[str, float]) -> str:
        factors = self._factors(volumes_ml)
        name = max(factors, key=lambda name: abs(_log(factors[name])), default="")
        if not name or abs(_log(factors[name])) < math.log(_NOTABLE_FACTOR):
            return ""
        return f": no {name}" if factors[name] == 0.0 else f": {name} {factors[name]:.1f} times the median"

    def _rank(self, kept: _Kept) -> float:
        return self._unlike(kept.volumes_ml)

    def _unlike(self, volumes_ml: Mapping[str, float]) -> float:
        return max((abs(_log(factor)) for factor in self._factors(volumes_ml).values()), default=0.0)

    def _factors(self, volumes_ml: Mapping[str, float]) -> dict[str, float]:
        """The volume of each class that most scans have, by its median over them."""
        if len(self._volumes_ml) < _FEWEST:
            return {}
        factors = {}
        for name, volume_ml in volumes_ml.items():
            present = [volumes[name] for volumes in self._volumes_ml if volumes.get(name, 0.0) > 0.0]
            if len(present) > _USUAL_SHARE * len(self._volumes_ml):
                factors[name] = volume_ml / median(present)
        return factors


def _log(factor: float) -> float:
    return math.log(factor) if factor > 0.0 else -math.inf
