"""Plain values: what JSON can store, and YAML read without anything that is small on disk but huge in memory."""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import yaml

from voxelocity.core.errors import ConfigError

# Reading run.yaml takes 5 ms with libyaml, 60 ms without it; writing 26 kB takes 4 ms and 25 ms.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_MAX_DEPTH = 50
_MAX_VALUES = 1_000_000
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2


def shortened(value: Any) -> str:
    """The value as Python writes it, shortened for a message if it is long or nested."""
    return _SHORT.repr(value)


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


def parse_yaml(text: str) -> Any:
    """The values in a YAML text.

    Raises:
        ValueError: the text is not YAML, a value does not exist (May 99), it is nested more than 50 deep, or its
            aliases expand to more than a million values. The message is one line.
    """
    try:
        has_aliases = _check_depth(text)
        value = yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    if has_aliases and _num_values(value, _MAX_VALUES) >= _MAX_VALUES:
        raise ValueError(f"its aliases stand for more than {_MAX_VALUES:,} values")
    return value


def yaml_text(values: Mapping[str, Any]) -> str:
    """The values as YAML that people read, in their order."""
    text: str = yaml.dump(dict(values), Dumper=_DUMPER, sort_keys=False, width=110, allow_unicode=True)
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


def _check_depth(text: str) -> bool:
    """Whether the text has aliases. libyaml crashes the process if a text is nested 100,000 deep."""
    depth, has_aliases = 0, False
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        has_aliases = has_aliases or isinstance(event, yaml.AliasEvent)
    return has_aliases


def _num_values(value: Any, most: int) -> int:
    """How many values it holds, counted up to `most`."""
    num_values, waiting = 0, [value]
    while waiting and num_values < most:
        num_values += 1
        inner = waiting.pop()
        if isinstance(inner, Mapping):
            waiting.extend(inner.values())
        elif isinstance(inner, list):
            waiting.extend(inner)
    return num_values
