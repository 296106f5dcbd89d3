"""Noise that fills an image, in both ways: MONAI's own numbers, and those that the engine draws itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

import monai.transforms as mt

from parity.case import Item, ParityCase, cases_of, item_of, scaled

TOLERANCE = 1e-5
Make = Callable[[int], Item]


def cases(side: int) -> Iterator[ParityCase]:
    """All of them, for patches of this many voxels a side."""
    patch: Make = functools.partial(item_of, shape=(side, side, side))
    slim: Make = functools.partial(item_of, shape=scaled(side, 101, 90, 57), num_channels=2)
    plane: Make = functools.partial(item_of, shape=scaled(side, 320, 288))
    always = {"prob": 1.0, "std": 20.0}
    gaussian = cases_of(
        mt.RandGaussianNoised,
        (patch, always),
        (slim, always | {"mean": 5.0, "sample_std": False}),
        (plane, always | {"prob": 0.5}),
        keys="image",
        tolerance=TOLERANCE,
    )
    rician = cases_of(
        mt.RandRicianNoised,
        (patch, always),
        (slim, always | {"channel_wise": True, "std": (20.0, 5.0), "sample_std": False}),
        (slim, {"prob": 1.0, "std": 0.5, "relative": True, "sample_std": False}),
        (plane, always | {"prob": 0.5}),
        keys="image",
        tolerance=TOLERANCE,
    )
    yield from (*gaussian, *rician)
    yield from (replace(case, is_seeded=True) for case in (*gaussian, *rician))
