"""How much the windows of a prediction overlap, from the variables of the functions that cut them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

from .lines import NOWHERE, OWN_CODE, Place, line_of, variables_of
from .sites import call_at

_MAX_FRAMES = 16
_SHARES = ("overlap",)
_STEPS = ("tile_step_size",)
_STRIDES = ("stride", "strides", "step_size")
_GRIDS = ("GridSampler",)


class Windows(NamedTuple):
    """Windows of a prediction.

    Attributes:
        overlap: share of a window's length that the next one covers again.
        place: the user's line that asked for them; `call` is its source and `variable` the name it is assigned to.
        volume: shape (voxels) of what they are cut from; empty if unknown.
    """

    overlap: float
    place: Place
    call: str
    variable: str
    volume: list[int]


def windows_around(frame: FrameType | None, window: Sequence[int]) -> Windows | None:
    """The windows of a network's call, from the functions that lead to it; None if those do not show any.

    MONAI's functions and most others have a variable `overlap` (a share) or `stride` (voxels), nnU-Net's predictor
    has a `tile_step_size`, and TorchIO's grid a `patch_overlap`.

    Args:
        frame: the one that calls the network.
        window: shape of the network's input, (b, c, x, y, z).
    """
    lengths = list(window)[2:]
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        names = variables_of(frame)
        overlap = _overlap(names, lengths)
        if overlap:
            own, volume = OWN_CODE.innermost(frame), _volume(names, list(window))
            if own is None:
                return Windows(overlap, NOWHERE, "", "", volume)
            return Windows(overlap, OWN_CODE.place(own), *_call(own, frame), volume)
        frame = frame.f_back
    return None


def _call(own: FrameType, frame: FrameType) -> tuple[str, str]:
    return call_at(own.f_code.co_filename, line_of(own), (frame.f_code.co_name,))


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


def _volume(names: dict[str, Any], window: list[int]) -> list[int]:
    """Lengths of the largest image among the variables; the axis of the batch may be missing."""
    lengths = window[2:]
    found: list[list[int]] = []
    for value in list(names.values()):
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple) and len(shape) in (len(window), len(window) - 1) and hasattr(value, "dtype"):
            spatial = [int(length) for length in shape[-len(lengths) :]]
            if all(length >= one for length, one in zip(spatial, lengths)) and spatial != lengths:
                found.append(spatial)
    return max(found, key=lambda spatial: math.prod(spatial), default=[])


def _of_strides(strides: list[float], lengths: list[int]) -> float:
    strides = strides * len(lengths) if len(strides) == 1 else strides
    if len(strides) != len(lengths) or not all(0 < one <= length for one, length in zip(strides, lengths)):
        return 0.0
    return max((1.0 - one / length for one, length in zip(strides, lengths)), default=0.0)


def _numbers(value: Any) -> list[float]:
    """One number or several; empty for anything else."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    try:
        return [] if value is None else [float(one) for one in values if not isinstance(one, (bool, str))]
    except (TypeError, ValueError, RuntimeError):
        return []
