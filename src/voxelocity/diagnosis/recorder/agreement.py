"""Ranks of one training end their recording at the same step, or those that go on would wait for the others for ever.

The leader writes into a file of the recording at which step what begins, some steps ahead; the others look for it after
each step. All must see the same folder.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

_FILE = "agreed.json"
_AHEAD_S = 3.0
_MIN_AHEAD = 5


class Plan(NamedTuple):
    """Numbers of steps: each phase goes on until its own."""

    watched: int
    profiled: int
    resident: int


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
    """The leader's plan, None while there is none. Costs some microseconds."""
    try:
        with open(os.path.join(folder, _FILE), encoding="utf-8") as file:
            return Plan(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None
