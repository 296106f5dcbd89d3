"""What the doctor says: one judged line a thing looked at, and the verdict over all. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Level = Literal["ok", "note", "warning", "problem"]
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at.

    Attributes:
        section: what it belongs to: "GPU", "torch", "CPU", "memory", "disk", "limits", "variables", "packages".
        name: of the thing, in a word or two.
        level: "ok"; "note" for what is worth knowing; "warning" for what costs speed or may fail; "problem" for what
            keeps training from running as this machine could.
        found: what is there.
        costs: in plain words what it costs; "" where it costs nothing.
        cure: what to do, with the command; "" where nothing is to be done.
        source: of a claim that we did not measure ourselves: an address.
        stops_training: whether no training can run here until it is mended.
    """

    section: str
    name: str
    level: Level
    found: str
    costs: str = ""
    cure: str = ""
    source: str = ""
    stops_training: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckUp:
    """All that the doctor found.

    Attributes:
        verdict: one or two plain sentences.
        checks: in the order in which they are read, sections together.
    """

    verdict: str
    checks: Sequence[Check]

    @property
    def can_train(self) -> bool:
        return not any(check.stops_training for check in self.checks)

    def to_plain(self) -> dict[str, Any]:
        """As types that JSON knows: verdict, can_train, counts by level, checks."""
        counts = {level: sum(check.level == level for check in self.checks) for level in LEVELS}
        return {
            "verdict": self.verdict,
            "can_train": self.can_train,
            "counts": counts,
            "checks": [asdict(check) for check in self.checks],
        }
