"""Whether plain values fit the declared types of a record's fields: a file may be damaged, or of another version of the
recorder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def fits(kind: type, values: Mapping[str, Any]) -> bool:
    """Whether each value has the type of the field of that name in the dataclass `kind`.

    Integers pass for floats, lists for any sequence. Numbers must be finite.
    """
    hints = _hints(kind)
    return all(_is(hints[name], value) for name, value in values.items())


def _is(hint: Any, value: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_is(one, value) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_is(inner[0], k) and _is(inner[1], v) for k, v in value.items())
    if origin in (Sequence, tuple):
        return _is_sequence(inner, value)
    if hint in (float, int):
        kinds = (int, float) if hint is float else (int,)
        return isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
    if hint is None or hint is NoneType:
        return value is None
    return hint in (Any, object) or isinstance(value, hint)


def _is_sequence(inner: tuple[Any, ...], value: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    if len(inner) == 1 or inner[-1] is ...:
        return all(_is(inner[0], one) for one in value)
    return len(value) == len(inner) and all(_is(*pair) for pair in zip(inner, value, strict=True))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
