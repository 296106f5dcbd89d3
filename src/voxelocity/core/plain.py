"""Values that JSON can store."""

from __future__ import annotations

import dataclasses
import math
import numbers
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2


def shortened(value: Any) -> str:
    """The value as Python writes it, shortened for a message if it is long or nested."""
    return _SHORT.repr(value)


def plain_data(value: Any, *, where: str) -> Any:
    """The value as text, numbers, None, and dicts and lists of them; dataclasses and paths are made plain.

    A number that does not exist (NaN, infinite) is None, which every JSON reader takes.

    Args:
        value: anything to be written as JSON.
        where: names the value in errors.

    Raises:
        TypeError: something in it is not plain data, for example a tensor.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, PurePath):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain_data(getattr(value, f.name), where=where) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_data(inner, where=where) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [plain_data(inner, where=where) for inner in value]
    raise TypeError(f"{where} holds a {type(value).__name__}, which is not plain data; write numbers")
