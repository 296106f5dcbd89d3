"""The file of one recorded process: its lines as records. Torn lines and those of other versions are skipped."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from voxelocity_observe.diagnose.facts.events import RECORDS, event
from voxelocity_observe.diagnose.facts.whole import ProcessFacts

_hints = cache(get_type_hints)


@event("unseen")
@dataclass(frozen=True)
class Unseen:
    """Event `unseen`: something that could not be seen, and why, in words."""

    text: str


@dataclass
class RecordedProcess:
    """One file: its records by event, oldest first."""

    path: Path
    records: dict[str, list[Any]] = field(default_factory=dict)
    last_s: float = 0.0

    def all(self, *events: str) -> list[Any]:
        """The records of these events, event by event."""
        return [record for name in events for record in self.records.get(name, [])]

    def last(self, name: str) -> Any:
        found = self.all(name)
        return found[-1] if found else None

    @property
    def facts(self) -> ProcessFacts:
        # Written when the process begins, and again at its end, when rank and versions are known.
        found = self.last("process")
        assert isinstance(found, ProcessFacts)
        return found


def read_process(path: Path) -> RecordedProcess:
    """All that the file holds; nothing where it cannot be read."""
    process = RecordedProcess(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return process
    for line in lines:
        try:
            values = json.loads(line)
            name, time_s = str(values.pop("event")), float(values.pop("time_s"))
        except (ValueError, TypeError, KeyError, AttributeError):
            # The line was torn when the process was killed or the disk was full.
            continue
        if not math.isfinite(time_s):
            continue
        if name != "refused":
            # The program's shutdown is not recorded.
            process.last_s = max(process.last_s, time_s)
        record = record_of(RECORDS.get(name), {**values, "time_s": time_s})
        if record is not None:
            process.records.setdefault(name, []).append(record)
    return process


def record_of(kind: Any, values: Mapping[str, Any]) -> Any:
    """The record with these values, lists made tuples.

    None if a field is missing or has a wrong value, or if the event is unknown. Integers pass for floats, lists for any
    sequence; numbers must be finite.
    """
    if kind is None:
        return None
    known = {f.name: f for f in fields(kind)}
    needed = {name for name, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    if not needed <= values.keys():
        return None
    chosen = {name: value for name, value in values.items() if name in known}
    if not all(_is(_hints(kind)[name], value) for name, value in chosen.items()):
        return None
    return kind(**{name: _frozen(value) for name, value in chosen.items()})


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(inner) for inner in value)
    return value


def _is(hint: Any, value: Any) -> bool:
    """Whether the value is of this type. A file may be damaged, or of another version of the recorder."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_is(kind, value) for kind in inner)
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
        return all(_is(inner[0], item) for item in value)
    return len(value) == len(inner) and all(_is(*pair) for pair in zip(inner, value, strict=True))
