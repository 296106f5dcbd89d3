"""YAML as this package reads it: only plain values, and nothing that is small on disk but huge in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

# Reading run.yaml takes 5 ms with libyaml, 60 ms without it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 50
_MAX_VALUES = 1_000_000


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
