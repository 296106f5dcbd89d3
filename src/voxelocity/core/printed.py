"""Reads values back from the form in which a plan prints them: "40 × 40 × 48", "33.0 %", "10.6 GiB", "5 min 2 s"."""

from __future__ import annotations

import re
import types
import typing
from typing import Annotated, Any

from voxelocity.core.errors import ConfigError
from voxelocity.core.units import parse_duration_s

_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_AMOUNT = re.compile(r"([\d.]+)\s*(%|[KMGT]?i?B)")


def read_printed(value: Any, annotation: Any, key: str) -> Any:
    """The value that a field of this annotation was printed from; anything not in that form is returned unchanged.

    Args:
        value: of the field, as read from YAML.
        annotation: the field's type.
        key: dotted name of the field; one that ends in `_s` holds seconds.
    """
    for option in _options(annotation):
        if typing.get_origin(option) is tuple and isinstance(value, str | int | float) and value != "auto":
            return _sequence(str(value), typing.get_args(option))
    kinds = set(_options(annotation))
    if not isinstance(value, str) or not kinds & {int, float} or str in kinds:
        return value
    return _number(value, key)


def sequence_length(annotation: Any) -> int:
    """How many values a field takes if their number is fixed; 0 for every other field."""
    for option in _options(annotation):
        items = typing.get_args(option)
        if typing.get_origin(option) is tuple and Ellipsis not in items:
            return len(items)
    return 0


def _options(annotation: Any) -> list[Any]:
    """The alternatives of a union, without their constraints."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _options(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [one for inner in typing.get_args(annotation) for one in _options(inner)]
    return [annotation]


def _sequence(text: str, items: tuple[Any, ...]) -> Any:
    parts = [part.strip() for part in text.split(",")] if text not in ("none", "") else []
    (inner,) = _options(items[0])[:1]
    if typing.get_origin(inner) is not tuple:
        return [_plain(one) for part in parts for one in re.split(r"\s*[x×]\s*", part)] if parts else []
    rows = [re.split(r"\s*[x×]\s*", part) for part in parts]
    if all(len(row) == 1 for row in rows):
        # Pairs of names are printed one after another.
        count = len(typing.get_args(inner))
        return [parts[start : start + count] for start in range(0, len(parts), count)]
    return [[_plain(one) for one in row] for row in rows]


def _plain(text: str) -> Any:
    try:
        return float(text) if re.search(r"[.e]", text) else int(text)
    except ValueError:
        return text


def _number(text: str, key: str) -> Any:
    stripped = text.strip()
    if re.fullmatch(r"\d{1,3}(,\d{3})+", stripped):
        return int(stripped.replace(",", ""))
    if match := _AMOUNT.fullmatch(stripped):
        amount, unit = float(match[1]), match[2]
        return amount / 100 if unit == "%" else round(amount * _BYTES[unit]) if unit in _BYTES else text
    if key.endswith("_s"):
        try:
            return 0.0 if stripped == "0 s" else parse_duration_s(stripped)
        except ConfigError:
            return text
    return text
