"""By how much the windows of a prediction overlap, told by the variables of the functions that cut them."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

from .lines import OWN_CODE, Place

_MAX_FRAMES = 16
_SHARES = ("overlap",)
_STEPS = ("tile_step_size",)
_STRIDES = ("stride", "strides", "step_size")
_GRIDS = ("GridSampler",)


class Windows(NamedTuple):
    """Windows of a prediction: the share of a window's length that the next one covers again, and the user's line."""

    overlap: float
    place: Place


def windows_around(frame: FrameType | None, window: Sequence[int]) -> Windows | None:
    """What the functions that lead to a network's call tell of its windows; None where they tell nothing.

    MONAI's functions and most people's have a variable `overlap` (a share) or `stride` (voxels), nnU-Net's predictor
    has a `tile_step_size`, and TorchIO's grid a `patch_overlap`.

    Args:
        frame: that calls the network.
        window: shape of what the network is given, (b, c, x, y, z).
    """
    lengths = list(window)[2:]
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        overlap = _overlap(frame.f_locals, lengths)
        if overlap:
            return Windows(overlap, OWN_CODE.place(frame))
        frame = frame.f_back
    return None


def _overlap(names: dict[str, Any], lengths: list[int]) -> float:
    for name in _SHARES:
        shares = _numbers(names.get(name))
        if shares and all(0.0 <= share < 1.0 for share in shares):
            return max(shares)
    owner = vars(names["self"]) if hasattr(names.get("self"), "__dict__") else {}
    for name in _STEPS:
        steps = _numbers(names.get(name, owner.get(name)))
        if steps and all(0.0 < step <= 1.0 for step in steps):
            return 1.0 - min(steps)
    for name in _STRIDES:
        strides = _numbers(names.get(name))
        if strides:
            return _of_strides(strides, lengths)
    for value in names.values():
        if type(value).__name__ in _GRIDS:
            covered = _numbers(list(getattr(value, "patch_overlap", ())))
            return _of_strides([length - one for length, one in zip(lengths, covered)], lengths) if covered else 0.0
    return 0.0


def _of_strides(strides: list[float], lengths: list[int]) -> float:
    strides = strides * len(lengths) if len(strides) == 1 else strides
    if len(strides) != len(lengths) or not all(0 < one <= length for one, length in zip(strides, lengths)):
        return 0.0
    return max((1.0 - one / length for one, length in zip(strides, lengths)), default=0.0)


def _numbers(value: Any) -> list[float]:
    """One number or several of them; none where it is something else."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    try:
        return [] if value is None else [float(one) for one in values if not isinstance(one, (bool, str))]
    except (TypeError, ValueError, RuntimeError):
        return []
