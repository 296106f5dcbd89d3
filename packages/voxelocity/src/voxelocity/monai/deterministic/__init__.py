"""MONAI's deterministic transforms with the engine's loops behind them: the same results, faster.

A transform is known by its exact class and arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from voxelocity.core import native
from voxelocity.monai.compared import plain_class, why_not_readable
from voxelocity.monai.deterministic.shadow import WAYS, Way

__all__ = ["faster", "why_not"]


def faster(transform: object) -> Callable[..., Any] | None:
    """A callable that returns what this MONAI transform returns, faster; None if there is none.

    It takes and returns the same items: the same keys, types, metadata and applied operations, so MONAI can invert its
    results. Labels, boxes and indices are equal; intensities to the tolerances in docs/monai.md. It holds the arguments
    that the transform has now; neither the transform nor the item is changed. It raises what MONAI raises. Thread-safe.

    Args:
        transform: of exactly one of MONAI's classes; subclasses are never replaced.
    """
    return None if why_not(transform) else _ways()[plain_class(transform)].make(transform)


def why_not(transform: object) -> str:
    """Why `faster` has nothing for this transform, in words; empty if it has."""
    if not native.has_loops():
        return native.why_not()
    way = _ways().get(plain_class(transform))
    if way is not None:
        return why_not_readable(transform) or way.why_not(transform)
    name = type(transform).__name__
    for known in _ways():
        if isinstance(transform, known):
            return f"{name} is a subclass of {known.__name__}, which may change its behavior"
    return f"{name} has no faster equivalent"


@functools.cache
def _ways() -> dict[type, Way]:
    # Imported when the first transform is asked about, not with the package.
    from voxelocity.monai.deterministic import foreground, intensity, load, orientation, spacing  # noqa: F401

    return WAYS
