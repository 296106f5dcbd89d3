"""What a lowered transform promises, checked against MONAI's own on one item."""

from __future__ import annotations

from typing import Any

from parity.compare import compare
from voxelocity.interop.monai.lower import lowerings


def check_lowered_alike(transform: Any, data: Any, tolerance: float = 0.0) -> Any:
    """MONAI's result, which the lowering of this transform gives too: values, types, metadata, draws left behind.

    Args:
        transform: an instance that can be lowered.
        data: an item, a tensor or an array; not changed.
        tolerance: largest difference of two values, relative to the largest absolute value of MONAI's.
    """
    lowering = lowerings(exact_noise=True)[type(transform)]
    reason = lowering.why_not(transform)
    assert reason == "", f"{type(transform).__name__} is not lowered: {reason}"
    theirs, _, differences = compare(transform, lowering, data)
    for difference in differences:
        assert difference.words == "", difference
        assert difference.largest == 0 or difference.largest <= tolerance * difference.scale, difference
    return theirs
