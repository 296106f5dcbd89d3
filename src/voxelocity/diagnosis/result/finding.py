"""A finding: one thing that holds a program back, with its evidence and its remedy. Plain data; rules make it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Risk = Literal["safe", "changes results"]
Basis = Literal["measured", "estimated"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule found.

    Attributes:
        code: stable, "VX101"; `voxelocity explain VX101` says more.
        title: the cause in a few words, as a heading: "Batches are made in the training's own thread".
        cause: one or two sentences with this program's own figures.
        evidence: one figure per line, with where it was seen.
        saves_s: seconds of `of_s` that the change would save; None where the recording does not show it.
        of_s: seconds of the watched time, all of it (steps, validation, saving).
        basis: whether `saves_s` was measured by an experiment or follows from counted seconds.
        risk: "safe" changes no result of the program.
        change: the exact change, as code or a command, ready to paste.
        where: "file:line" of the user's code to change; "" where it is a setting.
        is_cause: False for what is worth knowing but does not hold this program back now.
    """

    code: str
    title: str
    cause: str
    evidence: Sequence[str]
    saves_s: float | None
    of_s: float
    basis: Basis
    risk: Risk
    change: str
    where: str = ""
    is_cause: bool = True

    @property
    def speedup(self) -> float | None:
        """How many times faster the program would be; None where that is unknown."""
        if self.saves_s is None:
            return None
        return self.of_s / max(self.of_s - self.saves_s, 1e-9)
