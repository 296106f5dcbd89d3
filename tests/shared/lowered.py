"""What a lowered transform promises, checked against MONAI's own on one item."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from monai.data.meta_obj import get_track_meta, set_track_meta

from parity.compare import compare
from voxelocity.monai.difference import differences_of
from voxelocity.monai.lower import lowerings
from voxelocity.monai.lower.pending import finish


@contextlib.contextmanager
def metadata_tracked(is_tracked: bool) -> Iterator[None]:
    """MONAI tracks metadata within this block, or does not."""
    before = get_track_meta()
    set_track_meta(is_tracked)
    try:
        yield
    finally:
        set_track_meta(before)


def check_lowered_alike(transform: Any, data: Any, tolerance: float = 0.0, exact: Collection[str] = ()) -> Any:
    """MONAI's result, which the lowering of this transform gives too: values, types, metadata, draws left behind.

    Args:
        transform: an instance that can be lowered.
        data: an item, a tensor or an array; not changed.
        tolerance: largest difference of two values, relative to the largest absolute value of MONAI's, or to 1.
        exact: keys of an item, "" without one, whose values are equal.
    """
    lowering = lowerings(exact_noise=True)[type(transform)]
    reason = lowering.why_not(transform)
    assert reason == "", f"{type(transform).__name__} is not lowered: {reason}"
    theirs, _, differences = compare(transform, lowering, data)
    for difference in differences:
        assert difference.words == "", difference
        limit = 0.0 if difference.key in exact else tolerance * max(1.0, difference.scale)
        assert difference.largest == 0 or difference.largest <= limit, difference
    return theirs


def both(chain: Sequence[Any], item: Any) -> tuple[Any, Any]:
    """MONAI's result of a chain, and that of its lowerings, not finished."""
    theirs, ours, known = copy.deepcopy(item), item, lowerings(exact_noise=True)
    for transform in copy.deepcopy(chain):
        theirs = transform(theirs)
    for transform in chain:
        assert known[type(transform)].why_not(transform) == ""
        ours = known[type(transform)].apply(transform, ours)
    return theirs, ours


def assert_equal(theirs: Any, ours: Any) -> None:
    """Once ours is finished, it has MONAI's values, types and metadata."""
    assert not [
        difference for difference in differences_of(theirs, finish(ours)) if difference.words or difference.largest
    ]
