"""The file of one recorded process: its lines as records. Torn lines and those of other versions are skipped."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from voxelocity.diagnosis.facts.data import FetchFacts, FileFacts, LoaderFacts, TransformFacts
from voxelocity.diagnosis.facts.fitting import fits
from voxelocity.diagnosis.facts.program import (
    CallFacts,
    CompileFacts,
    HeldFacts,
    MemoryFacts,
    NetworkFacts,
    OptimizerFacts,
    SettingFacts,
    StackFacts,
    SyncFacts,
)
from voxelocity.diagnosis.facts.recording import (
    CoreWait,
    Ending,
    ExperimentFacts,
    OwnCost,
    ProcessFacts,
    RefusedWrite,
)
from voxelocity.diagnosis.facts.steps import Pass, Step


@dataclass(frozen=True)
class Unseen:
    """Event `unseen`: something that could not be seen, and why, in words."""

    text: str


RECORDS: Mapping[str, Any] = {
    "process": ProcessFacts,
    "step": Step,
    "pass": Pass,
    "open pass": Pass,
    "loader": LoaderFacts,
    "fetch": FetchFacts,
    "transform": TransformFacts,
    "files": FileFacts,
    "stacks": StackFacts,
    "sync": SyncFacts,
    "settings": SettingFacts,
    "network": NetworkFacts,
    "optimizer": OptimizerFacts,
    "compile": CompileFacts,
    "memory": MemoryFacts,
    "held": HeldFacts,
    "call": CallFacts,
    "experiment": ExperimentFacts,
    "cost": OwnCost,
    "core wait": CoreWait,
    "end": Ending,
    "refused": RefusedWrite,
    "unseen": Unseen,
}
"""The record of each event, field by field."""


@dataclass
class RecordedProcess:
    """One file: its records by event, oldest first."""

    path: Path
    records: dict[str, list[Any]] = field(default_factory=dict)
    last_s: float = 0.0

    def all(self, event: str) -> list[Any]:
        return self.records.get(event, [])

    def last(self, event: str) -> Any:
        found = self.all(event)
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
            event = json.loads(line)
            name, time_s = str(event.pop("event")), float(event.pop("time_s"))
        except (ValueError, TypeError, KeyError, AttributeError):
            # The line was torn when the process was killed or the disk was full.
            continue
        if not math.isfinite(time_s):
            continue
        if name != "refused":
            # The program's shutdown is not recorded.
            process.last_s = max(process.last_s, time_s)
        record = _record(RECORDS.get(name), {**event, "time_s": time_s} if name == "end" else event)
        if record is not None:
            process.records.setdefault(name, []).append(record)
    return process


def _record(kind: Any, values: Mapping[str, Any]) -> Any:
    """The record with these values, lists made tuples.

    None if a field is missing or has a wrong value, or if the event is unknown.
    """
    if kind is None:
        return None
    known = {f.name: f for f in fields(kind)}
    needed = {name for name, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    if not needed <= values.keys():
        return None
    chosen = {name: value for name, value in values.items() if name in known}
    return kind(**{name: _frozen(value) for name, value in chosen.items()}) if fits(kind, chosen) else None


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(inner) for inner in value)
    return value
