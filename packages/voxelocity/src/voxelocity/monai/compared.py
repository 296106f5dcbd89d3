"""What is known of the installed MONAI: compared versions, private names that are read, classes under a `Range`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping

import monai
from monai import transforms as mt
from monai.transforms.transform import RandomizableTransform

COMPARED_VERSIONS = ("1.6.1",)
"""Versions for which `parity` found equal results, and draws in the same order."""
_READ: Mapping[type, tuple[str, ...]] = {
    RandomizableTransform: ("_do_transform",),
    mt.LoadImaged: ("_loader",),
    mt.RandAxisFlip: ("_axis",),
    mt.RandBiasField: ("_coeff",),
    mt.RandKSpaceSpikeNoise: ("_set_default_range",),
    mt.RandRotate90: ("_rand_k",),
    mt.RandRotate90d: ("_rand_k",),
    mt.RandShiftIntensity: ("_offset",),
    mt.RandSpatialCrop: ("_size",),
    mt.RandZoom: ("_zoom",),
}


RANGED_CLASS = "_voxelocity_ranged_class"
"""Attribute of the classes that `Range` makes: the class that they extend."""


def plain_class(obj: object) -> type:
    """The class of an object as it was before a `Range` was put around its methods."""
    kind = type(obj)
    while (owner := vars(kind).get(RANGED_CLASS)) is not None:
        kind = owner
    return kind


def why_not_compared() -> str:
    """Why the installed MONAI runs every transform, in words; "" if its version was compared. Warns once."""
    if monai.__version__ in COMPARED_VERSIONS:
        return ""
    _warn_once(monai.__version__)
    return f"MONAI {monai.__version__} was not compared"


def why_not_readable(transform: object) -> str:
    """Why MONAI runs this transform, in words: a private name that would be read is missing. "" if none is.

    Dictionary forms are checked with the array form that they hold. Names that only a draw sets are not checked.
    """
    for holder in (transform, *vars(transform).values()):
        for kind, names in _READ.items():
            missing = [name for name in names if isinstance(holder, kind) and not hasattr(holder, name)]
            if missing:
                return f"MONAI's {type(holder).__name__} has no {missing[0]} here, unlike {COMPARED_VERSIONS[-1]}"
    return ""


@functools.cache
def _warn_once(version: str) -> None:
    warnings.warn(
        f"voxelocity.monai: MONAI {version} was not compared with this package (only {', '.join(COMPARED_VERSIONS)} "
        "was), so every transform runs as MONAI's own, which is slower. Install a MONAI that was compared, or a newer "
        "voxelocity",
        stacklevel=4,
    )
