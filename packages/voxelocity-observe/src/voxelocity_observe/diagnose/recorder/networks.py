"""What the networks of the program are called with: shapes, images, whether they learn, and how much the windows of a
prediction overlap, from the variables of the functions that cut them."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any, Callable, NamedTuple

from .batches import tensors_in
from .lines import NOWHERE, OWN_CODE, SourceLine, call_at, line_of, variables_of
from .timeline import Ledger

_MAX_SHAPES = 64
_DEEPEST = 4
_SYNCING = "DistributedDataParallel"
_MAX_FRAMES = 16
_STRIDES = ("stride", "strides", "step_size")


class Networks:
    """Looks at each outermost call of a module in the training thread.

    A module without parameters, such as a loss, is not a network: only its time counts, as forward.

    Attributes:
        look: called with (network, first tensor) at the next learning call, once; None for none.
        before_call: called before each call of a network; it may raise to end the program.
    """

    def __init__(self, torch: Any, ledger: Ledger) -> None:
        self.look: Callable[[Any, Any], object] | None = None
        self.before_call: Callable[[], None] = lambda: None
        self._torch = torch
        self._ledger = ledger
        self._is_network: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def note_call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes a call that is about to be made. Costs about 3 microseconds."""
        if not self._has_parameters(module):
            return
        self.before_call()
        ledger, stretch = self._ledger, self._ledger.running
        is_evaluating = not module.training or not self._torch.is_grad_enabled()
        if is_evaluating:
            if stretch.label == "start":
                stretch = ledger.cut("forward")
            stretch.num_evaluating += 1
            stretch.has_gradients = stretch.has_gradients or self._torch.is_grad_enabled()
            if not ledger.mode and not stretch.num_backwards:
                ledger.mode = "validation"
        else:
            ledger.mode = ""
            if type(module).__name__ == _SYNCING and module.require_backward_grad_sync:
                stretch.num_synced += 1
        stretch.num_forwards += 1
        tensor = next(tensors_in(self._torch, (*args, *kwargs.values()), _DEEPEST), None)
        if is_evaluating and tensor is not None and stretch.num_evaluating == 1:
            try:
                stretch.windows = windows_around(sys._getframe(2), tensor.shape)
            except Exception:
                # The program's variables may run any code when inspected; the program must not notice.
                stretch.windows = None
        if tensor is not None and tensor.dim() > 0:
            shape = tuple(tensor.shape)
            stretch.num_images += shape[0]
            if shape in stretch.shapes or len(stretch.shapes) < _MAX_SHAPES:
                stretch.shapes[shape] = stretch.shapes.get(shape, 0) + 1
        if self.look is not None and not is_evaluating:
            look, self.look = self.look, None
            look(module, tensor)

    def _has_parameters(self, module: Any) -> bool:
        try:
            answer = self._is_network.get(module)
            if answer is None:
                answer = self._is_network[module] = first_parameter(module) is not None
        except TypeError:
            answer = first_parameter(module) is not None
        return answer


def first_parameter(module: Any) -> Any:
    """None where it has none; a class of the user's may return its parameters as a list."""
    return next(iter(module.parameters()), None)


class PredictionWindows(NamedTuple):
    """Windows of a prediction.

    Attributes:
        overlap: share of a window's length that the next one covers again.
        place: the user's line that asked for them; `call` is its source and `variable` the name it is assigned to.
        volume: shape (voxels) of what they are cut from; empty if unknown.
    """

    overlap: float
    place: SourceLine
    call: str
    variable: str
    volume: list[int]


NO_WINDOWS = PredictionWindows(0.0, NOWHERE, "", "", [])


def windows_around(frame: FrameType | None, window: Sequence[int]) -> PredictionWindows | None:
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
                return PredictionWindows(overlap, NOWHERE, "", "", volume)
            call = call_at(own.f_code.co_filename, line_of(own), (frame.f_code.co_name,))
            return PredictionWindows(overlap, OWN_CODE.place(own), *call, volume)
        frame = frame.f_back
    return None


def _overlap(names: dict[str, Any], lengths: list[int]) -> float:
    shares = _numbers(names.get("overlap"))
    if shares and all(0.0 <= share < 1.0 for share in shares):
        return max(shares)
    owner = vars(names["self"]) if hasattr(names.get("self"), "__dict__") else {}
    steps = _numbers(names.get("tile_step_size", owner.get("tile_step_size")))
    if steps and all(0.0 < step <= 1.0 for step in steps):
        return 1.0 - min(steps)
    for name in _STRIDES:
        strides = _numbers(names.get(name))
        if strides:
            return _of_strides(strides, lengths)
    for value in names.values():
        if type(value).__name__ == "GridSampler":
            covered = _numbers(list(getattr(value, "patch_overlap", ())))
            return (
                _of_strides([length - shared for length, shared in zip(lengths, covered)], lengths) if covered else 0.0
            )
    return 0.0


def _volume(names: dict[str, Any], window: list[int]) -> list[int]:
    """Lengths of the largest image among the variables; the axis of the batch may be missing."""
    lengths = window[2:]
    found: list[list[int]] = []
    for value in list(names.values()):
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple) and len(shape) in (len(window), len(window) - 1) and hasattr(value, "dtype"):
            spatial = [int(length) for length in shape[-len(lengths) :]]
            if all(length >= covered for length, covered in zip(spatial, lengths)) and spatial != lengths:
                found.append(spatial)
    return max(found, key=lambda spatial: math.prod(spatial), default=[])


def _of_strides(strides: list[float], lengths: list[int]) -> float:
    strides = strides * len(lengths) if len(strides) == 1 else strides
    if len(strides) != len(lengths) or not all(0 < stride <= length for stride, length in zip(strides, lengths)):
        return 0.0
    return max((1.0 - stride / length for stride, length in zip(strides, lengths)), default=0.0)


def _numbers(value: Any) -> list[float]:
    """One number or several; empty for anything else."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    try:
        return [] if value is None else [float(number) for number in values if not isinstance(number, (bool, str))]
    except (TypeError, ValueError, RuntimeError):
        return []
