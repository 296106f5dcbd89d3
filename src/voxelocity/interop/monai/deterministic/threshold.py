"""Recognizes a function that compares with a number, by its bytecode."""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import FunctionType
from typing import Any

from monai.transforms.utils import is_positive

_NO_EFFECT = ("RESUME", "NOP", "CACHE", "PRECALL")
_ONLY_A_PARAMETER = ("LOAD_FAST", "LOAD_CONST", "COMPARE_OP", "RETURN_VALUE")


def threshold_of(select: Callable[..., Any]) -> float | None:
    """The number t where the function is `x > t` and nothing else, as MONAI's `is_positive` is; else None."""
    if select is is_positive:
        return 0
    if type(select) is not FunctionType or select.__code__.co_freevars or select.__code__.co_argcount != 1:
        return None
    steps = [step for step in dis.get_instructions(select) if step.opname not in _NO_EFFECT]
    if tuple(step.opname for step in steps) != _ONLY_A_PARAMETER or steps[2].argval != ">":
        return None
    number = steps[1].argval
    return number if type(number) in (int, float) else None
