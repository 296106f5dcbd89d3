"""What lowering a transform means: its draw stays MONAI's, its work becomes steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Lowering:
    """How one class of MONAI's transforms is lowered.

    Attributes:
        apply: `(transform, data)` to what the transform would return, with a `Sketch` for each tensor that it touches.
            `data` is a dictionary (forms whose name ends in "d"; not changed, a new one is returned, or a list of them)
            or a tensor, array or `Sketch`. Random numbers are drawn by the transform itself or from its `R`, as many
            and in the same order as MONAI draws them, so that what follows draws the same.
        why_not: why this instance cannot be lowered, in words that the plan shows; "" if it can.
    """

    apply: Callable[[Any, Any], Any]
    why_not: Callable[[Any], str] = lambda transform: ""


Lowerings = Mapping[type, Lowering]
"""By exact class: a derived class may have changed anything."""
