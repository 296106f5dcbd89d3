"""Plain values: what JSON can store, records of it, and YAML without what is small on disk but huge in memory."""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
import reprlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from voxelocity_observe.core.errors import ConfigError

_MAX_DEPTH = 50
_MAX_VALUES = 1_000_000
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_hints = cache(get_type_hints)
# What JSON has for the types of fields, and how errors call it.
_PLAIN: Mapping[Any, type] = {str: str, int: int, bool: bool}
_WORDS: Mapping[Any, str] = {str: "text", bool: "true or false", list: "a list", Mapping: "keys and values"}
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = 80


def shortened(value: Any) -> str:
    """The value as Python writes it, shortened for a message if it is long or nested.

    Every message that quotes what a file of someone else holds uses this, or `excerpt`: such a value can be megabytes.
    """
    return _SHORT.repr(value)


def excerpt(text: object, most: int = 400) -> str:
    """Text without quotation marks for a message, such as the error of a library: one line, this many characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[: most // 2 - 3]}...{line[-(most // 2) :]}"


def table_cell(value: object) -> object:
    """The value for a cell of a CSV file: a text that a spreadsheet would take for a formula begins with "'".

    Such texts come from names of files and classes, which others may have chosen. `text_of_cell` is the reverse.
    """
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value) else value


def text_of_cell(cell: str) -> str:
    """The text that `table_cell` wrote."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


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
    for field in dataclasses.fields(kind):
        if field.name in values:
            chosen[field.name] = _typed(_hints(kind)[field.name], values[field.name], has_gaps)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise KeyError(f"{kind.__name__} without {field.name}")
    return kind(**chosen)


def _typed(hint: Any, value: Any, has_gaps: bool) -> Any:
    """The value in its declared type: records are made, lists become tuples, all else stays."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return None if value is None else _typed(next(kind for kind in inner if kind is not NoneType), value, has_gaps)
    if dataclasses.is_dataclass(hint):
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


def parse_yaml(text: str) -> Any:
    """The values in a YAML text.

    Raises:
        ValueError: the text is not YAML, a value does not exist (May 99), it is nested more than 50 deep, or its
            aliases, also those of merged keys, stand for more than a million values. The message is one line.
    """
    # `--help` does without it. Reading run.yaml takes 5 ms with libyaml, 60 ms without it; writing 26 kB, 4 and 25 ms.
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_size(text, loader)
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise ValueError(excerpt(error)) from None


def yaml_text(values: Mapping[str, Any]) -> str:
    """The values as YAML that people read, in their order."""
    import yaml

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(dict(values), Dumper=dumper, sort_keys=False, width=110, allow_unicode=True)
    return text


def read_mapping(path: Path, *, where: str, holds: str) -> dict[Any, Any]:
    """The mapping in a YAML or JSON file.

    Args:
        path: of the file.
        where: begins errors.
        holds: what such a file must hold, for errors.

    Raises:
        ConfigError: the file cannot be read, is not YAML or holds something else.
    """
    try:
        found = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{where}: cannot read {path} ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"{where}: {path} is not YAML: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: {path} must hold {holds}")
    return found


def _check_size(text: str, loader: Any) -> None:
    """Refuses a text before it is built: libyaml crashes the process if it is nested 100,000 deep.

    An alias stands for all values below its anchor, and merged keys are copied while a mapping is built.
    """
    import yaml

    # Of the open collections: the anchor, and how many values it has up to now.
    open_collections: list[tuple[str | None, int]] = []
    by_anchor: dict[str, int] = {}
    num_values, has_aliases = 0, False
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            if len(open_collections) == _MAX_DEPTH:
                raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
            open_collections.append((event.anchor, num_values))
            num_values += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_collections.pop()
            if anchor is not None:
                by_anchor[anchor] = num_values - before
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_collections):
                raise ValueError(f"*{excerpt(event.anchor)} stands for what it is in itself")
            num_values += by_anchor.get(event.anchor or "", 1)
            has_aliases = True
        elif isinstance(event, yaml.ScalarEvent):
            num_values += 1
            if event.anchor is not None:
                by_anchor[event.anchor] = 1
        if has_aliases and num_values > _MAX_VALUES:
            raise ValueError(f"its aliases stand for more than {_MAX_VALUES:,} values")
