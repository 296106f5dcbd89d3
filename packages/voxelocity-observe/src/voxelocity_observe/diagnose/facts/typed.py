"""Plain data as the records that declare its types; a file may be damaged, or of another version."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from voxelocity_observe.core.plain import shortened

_hints = cache(get_type_hints)
# What JSON has for the types of fields, and how errors call it.
_PLAIN: Mapping[Any, type] = {str: str, int: int, bool: bool}
_WORDS: Mapping[Any, str] = {str: "text", bool: "true or false", list: "a list", Mapping: "keys and values"}


def record_of(kind: Any, values: Any, *, has_gaps: bool = False) -> Any:
    """The record of this class with these values, lists made tuples. Keys that it does not have are left out.

    Args:
        kind: a data class.
        values: by field.
        has_gaps: whether None stands for a number that does not exist, which becomes NaN.

    Raises:
        ValueError: a value has another type than its field. Integers pass for floats; numbers must be finite.
        KeyError: a field without a default has no value.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{shortened(values)} is not keys and values")
    chosen: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in values:
            chosen[field.name] = _typed(_hints(kind)[field.name], values[field.name], has_gaps)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise KeyError(f"{kind.__name__} without {field.name}")
    return kind(**chosen)


def _typed(hint: Any, value: Any, has_gaps: bool) -> Any:
    """The value in its declared type: records are made, lists become tuples, all else stays."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return None if value is None else _typed(next(kind for kind in inner if kind is not NoneType), value, has_gaps)
    if is_dataclass(hint):
        return record_of(hint, value, has_gaps=has_gaps)
    if hint is float:
        if value is None and has_gaps:
            return math.nan
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ValueError(f"{shortened(value)} is not a number")
        return float(value) if has_gaps else value
    expected = Mapping if origin is Mapping else (list, tuple) if origin in (Sequence, tuple) else _PLAIN.get(hint)
    if expected is not None and (not isinstance(value, expected) or (hint is int and isinstance(value, bool))):
        raise ValueError(f"{shortened(value)} is not {_WORDS.get(_first(expected), 'a number')}")
    if origin is tuple and inner[-1:] != (...,):
        return tuple(_typed(kind, item, has_gaps) for kind, item in zip(inner, value, strict=True))
    if origin in (Sequence, tuple):
        return tuple(_typed(inner[0], item, has_gaps) for item in value)
    if origin is Mapping:
        return {_typed(inner[0], key, has_gaps): _typed(inner[1], item, has_gaps) for key, item in value.items()}
    if origin is Literal and (not isinstance(value, str) or value not in inner):
        raise ValueError(f"{shortened(value)} is none of {', '.join(map(str, inner))}")
    return value


def _first(expected: Any) -> Any:
    return expected[0] if isinstance(expected, tuple) else expected
