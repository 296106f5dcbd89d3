"""What the doctor reports: one judged line per item, and the verdict on all of them. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Level = Literal["ok", "note", "warning", "problem"]
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One judged item.

    Attributes:
        section: the group it belongs to: "GPU", "torch", "CPU", "memory", "disk", "limits", "variables", "packages".
        name: of the item, in a word or two.
        level: "ok"; "note" for what is worth knowing; "warning" for what costs speed or may fail; "problem" for what
            keeps training from running as this machine could.
        found: what is there.
        costs: what it costs, in plain words; "" if it costs nothing.
        cure: what to do, with the command; "" if there is nothing to do.
        source: the address of a claim that we did not measure ourselves.
        stops_training: whether no training can run here until it is fixed.
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
        checks: in reading order, grouped by section.
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
