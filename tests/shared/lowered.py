"""What a lowered transform promises, checked against MONAI's own on one item."""

from __future__ import annotations

from typing import Any

from voxelocity.interop.monai.difference import compare
from voxelocity.interop.monai.lower import Lowerings


def check_lowered_alike(transform: Any, lowerings: Lowerings, data: Any, tolerance: float = 0.0) -> Any:
    """MONAI's result, which the lowering of this transform gives too: values, types, metadata, draws left behind.

    Args:
        transform: an instance that can be lowered.
        lowerings: by class, this one's among them.
        data: an item, a tensor or an array; not changed.
        tolerance: largest difference of two values, relative to the largest absolute value of MONAI's.
    """
    lowering = lowerings[type(transform)]
    reason = lowering.why_not(transform)
    assert reason == "", f"{type(transform).__name__} is not lowered: {reason}"
    theirs, _, differences = compare(transform, lowering, data)
    for difference in differences:
        assert difference.words == "", difference
        assert difference.largest == 0 or difference.largest <= tolerance * difference.scale, difference
    return theirs
