"""Numbers as people read and write them: times, bytes, shares, scores. All pages and terminal tables use these.

A number that does not exist (None, NaN, infinite) reads "n/a". What a plan prints ("8 × 8 × 4", "33.0 %", "5 min 2 s")
can be read back.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from voxelocity_observe.core.errors import ConfigError

NOT_AVAILABLE = "n/a"

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_EXTENT = re.compile(r"shape|spacing|extent|stride|_voxel$|_mm$")
_LARGE_UNITS = (("d", "h", 86_400, 3_600), ("h", "min", 3_600, 60), ("min", "s", 60, 1))
_UNITS_S = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "min": 60.0, "s": 1.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)\s*")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])(i?)b")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_BYTES_IN = {unit: 1024**power for power, unit in enumerate(_BYTE_UNITS)}
_AMOUNT = re.compile(r"([\d.]+)\s*(%|[KMGT]?i?B)")


def duration_text(seconds: float | None) -> str:
    """A duration in its two largest units: "12 ms", "0.90 s", "4.2 s", "42 s", "5 min 2 s", "1 h 3 min", "2 d 4 h"."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_AVAILABLE
    if seconds < 0.0:
        return f"-{duration_text(-seconds)}"
    if seconds == 0.0:
        return "0 s"
    if seconds < 0.0995:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    for large, small, large_s, small_s in _LARGE_UNITS:
        whole = round(seconds / small_s) * small_s
        if whole >= large_s:
            rest = (whole % large_s) // small_s
            return f"{whole // large_s} {large}" + (f" {rest} {small}" if rest else "")
    raise AssertionError(f"no unit for {seconds} s")


def bytes_text(num_bytes: float | None) -> str:
    """Memory in binary units with three digits: "512 B", "3.20 GiB"."""
    if num_bytes is None or not math.isfinite(num_bytes):
        return NOT_AVAILABLE
    value, unit = float(num_bytes), _BYTE_UNITS[0]
    for unit in _BYTE_UNITS:
        if abs(value) < 1023.5 or unit == _BYTE_UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{_three_digits(value)} {unit}"


def share_text(share: float | None) -> str:
    """A fraction as a percentage: 0.019 is "1.9 %"."""
    if share is None or not math.isfinite(share):
        return NOT_AVAILABLE
    return f"{share * 100:.1f} %"


def dice_text(dice: float | None) -> str:
    """A Dice score to three decimal places."""
    return NOT_AVAILABLE if dice is None or not math.isfinite(dice) else f"{dice:.3f}"


def signed_text(difference: float | None, *, digits: int = 3) -> str:
    """A difference with its sign; "±0.000" where it rounds to nothing."""
    if difference is None or not math.isfinite(difference):
        return NOT_AVAILABLE
    text = f"{difference:+.{digits}f}"
    return f"±{text[1:]}" if float(text) == 0 else text


def mm_text(length_mm: float | None) -> str:
    """A length to two decimal places, without its unit (column headings show it)."""
    return NOT_AVAILABLE if length_mm is None or not math.isfinite(length_mm) else f"{length_mm:.2f}"


def ml_text(volume_ml: float | None) -> str:
    """A volume with three digits, without its unit: "0", "0.012", "12.3", "1,480"."""
    if volume_ml is None or not math.isfinite(volume_ml):
        return NOT_AVAILABLE
    return "0" if volume_ml == 0.0 else _three_digits(volume_ml)


def rate_text(per_second: float | None) -> str:
    """A rate with three digits: "0.520", "48.3", "1,250"."""
    return NOT_AVAILABLE if per_second is None or not math.isfinite(per_second) else _three_digits(per_second)


def figure_text(figure: float | None) -> str:
    """A measured figure in any unit, with three digits or, from a thousand on, all before the point: "0.5", "1,235"."""
    if figure is None or not math.isfinite(figure):
        return NOT_AVAILABLE
    return f"{figure:,.0f}" if abs(figure) >= 1000.0 else f"{figure:.3g}"


def factor_text(factor: float | None) -> str:
    """How many times better: "3.2×"; below one is worse."""
    if factor is None or not math.isfinite(factor):
        return NOT_AVAILABLE
    if factor < 0.95:
        return f"{factor:.2f}×"
    return f"{factor:.1f}×" if factor < 9.95 else f"{factor:,.0f}×"


def count_text(count: int, singular: str, plural: str | None = None) -> str:
    """A count with its noun: "1 case", "42 cases", "12,345 voxels"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def joined(parts: Iterable[str], separator: str = ", ") -> str:
    """The parts that are not empty."""
    return separator.join(part for part in parts if part)


def value_text(value: Any, key: str = "") -> str:
    """Any plain value in one line. The end of its key (`_bytes`, `_s`, `_share`, `_mm`) decides its format."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number_text(value, key)
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {value_text(v, str(k))}" for k, v in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _sequence_text(value, key)
    return str(value)


def dotted(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings, and lists of them, as one level with dotted keys, in order; other lists stay whole."""
    if isinstance(values, Mapping):
        inner = {str(key): value for key, value in values.items()}
    elif isinstance(values, list | tuple) and any(isinstance(value, Mapping) for value in values):
        inner = {str(index): value for index, value in enumerate(values)}
    else:
        return {prefix.rstrip("."): values}
    flat: dict[str, Any] = {}
    for key, value in inner.items():
        flat.update(dotted(value, f"{prefix}{key}."))
    return flat


def parse_duration_s(text: str) -> float:
    """Seconds in a duration such as "5m", "1h30m" or "90s".

    Raises:
        ConfigError: the text is not a duration, has a number without a unit, or is zero.
    """
    position, seconds = 0, 0.0
    stripped = text.strip().lower()
    if _NUMBER.fullmatch(stripped):
        raise ConfigError(f"config: '{text}' has no unit; write {stripped}s for seconds or {stripped}m for minutes")
    while match := _DURATION_PART.match(stripped, position):
        seconds += float(match[1]) * _UNITS_S[match[2]]
        position = match.end()
    if position < len(stripped) or seconds <= 0.0:
        raise ConfigError(f"config: '{text}' is not a duration; write it like 90s, 5m or 1h30m")
    return seconds


def parse_bytes(text: str) -> int:
    """Bytes in an amount of memory such as "8GB", "512MiB" or "1.5 GB"; GB are powers of ten, GiB of two.

    Raises:
        ConfigError: the text is not an amount, or has no unit.
    """
    match = _MEMORY.fullmatch(text.strip().lower())
    if match is None or float(match[1]) <= 0.0:
        raise ConfigError(f"config: '{text}' is not an amount of memory; write it like 8GB or 512MiB")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** (1 + "kmgt".index(match[2])))


def read_printed(value: Any, annotation: Any, key: str) -> Any:
    """The value that a field of this annotation was printed from; anything not in that form is returned unchanged.

    Args:
        value: of the field, as read from YAML.
        annotation: the field's type.
        key: dotted name of the field; one that ends in `_s` holds seconds.
    """
    options = _options(annotation)
    named = [name for option in options if typing.get_origin(option) is Literal for name in typing.get_args(option)]
    if value in ("auto", *named):
        return value
    for option in options:
        if typing.get_origin(option) is tuple and isinstance(value, str | int | float):
            return _read_sequence(str(value), typing.get_args(option))
    kinds = set(options)
    if not isinstance(value, str) or not kinds & {int, float} or str in kinds:
        return value
    return _read_number(value, key)


def sequence_length(annotation: Any) -> int:
    """How many values a field takes if their number is fixed; 0 for every other field."""
    for option in _options(annotation):
        items = typing.get_args(option)
        if typing.get_origin(option) is tuple and Ellipsis not in items:
            return len(items)
    return 0


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}" if size >= 0.9995 else f"{value:.3f}"


def _number_text(value: float, key: str) -> str:
    # The unit may be in the last part (file_bytes) or in the one above it (class_shares.liver).
    for name in reversed(key.split(".")[-2:]):
        if name.endswith("bytes"):
            return bytes_text(value)
        if name == "seconds" or (name.endswith(("_s", "_seconds")) and not name.endswith("per_s")):
            return duration_text(value)
        if name.endswith(("share", "shares")):
            return share_text(value)
    if isinstance(value, int):
        # A seed is a name, not an amount, so it has no separators.
        return str(value) if "seed" in key else f"{value:,}"
    return f"{value:.4g}" if math.isfinite(value) else NOT_AVAILABLE


def _sequence_text(values: Sequence[Any], key: str) -> str:
    texts = [value_text(value, key) for value in values]
    is_extent = _EXTENT.search(key.rsplit(".", 1)[-1]) and all(isinstance(value, int | float) for value in values)
    return (" × " if is_extent else ", ").join(texts) or "none"


def _options(annotation: Any) -> list[Any]:
    """The alternatives of a union, without their constraints."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _options(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [option for inner in typing.get_args(annotation) for option in _options(inner)]
    return [annotation]


def _read_sequence(text: str, items: tuple[Any, ...]) -> Any:
    parts = [part.strip() for part in text.split(",")] if text not in ("none", "") else []
    (inner,) = _options(items[0])[:1]
    if inner is str:
        # A name may hold an x.
        return parts
    if typing.get_origin(inner) is not tuple:
        return [_read_item(item) for part in parts for item in re.split(r"\s*[x×]\s*", part)] if parts else []
    rows = [re.split(r"\s*[x×]\s*", part) for part in parts]
    if all(len(row) == 1 for row in rows):
        # Pairs of names are printed one after another.
        count = len(typing.get_args(inner))
        return [parts[start : start + count] for start in range(0, len(parts), count)]
    return [[_read_item(item) for item in row] for row in rows]


def _read_item(text: str) -> Any:
    try:
        return float(text) if re.search(r"[.e]", text) else int(text)
    except ValueError:
        return text


def _read_number(text: str, key: str) -> Any:
    stripped = text.strip()
    if re.fullmatch(r"\d{1,3}(,\d{3})+", stripped):
        return int(stripped.replace(",", ""))
    if match := _AMOUNT.fullmatch(stripped):
        amount, unit = float(match[1]), match[2]
        return amount / 100 if unit == "%" else round(amount * _BYTES_IN[unit]) if unit in _BYTES_IN else text
    if key.endswith("_s"):
        try:
            return 0.0 if stripped == "0 s" else parse_duration_s(stripped)
        except ConfigError:
            return text
    return text
