"""Ranks of one training end their recording at the same step; otherwise those that continue would wait forever.

The leader writes into a file of the recording which phase begins at which step, some steps ahead. The others look for
it after each step. All must see the same folder.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

_FILE = "agreed.json"
_AHEAD_S = 3.0
_MIN_AHEAD = 5


class Plan(NamedTuple):
    """How many steps each phase has.

    Attributes:
        watched, profiled: number of the step with which the phase ends.
        rounds: of the experiments that follow; each has the three kinds of steps below, one after the other.
        resident: steps of a round on resident batches.
        refilled: steps of a round that use up batches made ahead meanwhile, and are not counted.
        unchanged: steps of a round that run as the program makes them.
    """

    watched: int
    profiled: int
    rounds: int = 0
    resident: int = 0
    refilled: int = 0
    unchanged: int = 0

    def phase_after(self, num_steps: int) -> str:
        """Phase of the next step, this many after the profiled ones; "" where the rounds are over."""
        round_steps = self.resident + self.refilled + self.unchanged
        if num_steps >= self.rounds * round_steps:
            return ""
        within = num_steps % round_steps
        if within < self.resident:
            return "resident"
        return "refilled" if within < self.resident + self.refilled else "unchanged"


def ahead(step_s: float) -> int:
    """Steps that the others need to see a plan before it begins."""
    return max(_MIN_AHEAD, int(_AHEAD_S / max(step_s, 1e-6)))


def announce(folder: str, plan: Plan) -> None:
    """Writes the plan for the other ranks, whole or not at all."""
    path = os.path.join(folder, _FILE)
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump(plan._asdict(), file)
    os.replace(f"{path}.part", path)


def announced(folder: str) -> Plan | None:
    """The leader's plan, None while there is none. Costs a few microseconds."""
    try:
        with open(os.path.join(folder, _FILE), encoding="utf-8") as file:
            return Plan(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None
