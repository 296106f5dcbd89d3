"""The file of one recorded process: its lines as records. Torn lines and those of other versions are skipped."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voxelocity_observe.core.credentials import hide_credentials
from voxelocity_observe.core.plain import record_of
from voxelocity_observe.diagnose.facts.events import RECORDS, event
from voxelocity_observe.diagnose.facts.whole import ProcessFacts


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
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            # The line was torn when the process was killed or the disk was full.
            continue
        if not math.isfinite(time_s):
            continue
        if name != "refused":
            # The program's shutdown is not recorded.
            process.last_s = max(process.last_s, time_s)
        if name in RECORDS:
            if isinstance(values.get("note"), str):
                # The text of an error of the program, such as one that names an address with its password.
                values["note"] = hide_credentials(values["note"])
            # Another version of the recorder may have written it.
            with suppress(KeyError, ValueError, OverflowError):
                record = record_of(RECORDS[name], {**values, "time_s": time_s})
                process.records.setdefault(name, []).append(record)
    return process
