"""Whether a training made enough steps for a score to say anything about it."""

from __future__ import annotations

import json
import math
from pathlib import Path

from voxelocity_observe.core.quantities import count_text
from voxelocity_observe.core.whole_file import check_is_file

FEWEST_STEPS, ENOUGH_STEPS = 10, 100
"""Optimizers average gradients over about 10 steps (a decay of 0.9) and their squares over about 100 (0.99, the default
of `optimizer.second_momentum`). Before the first, a step follows single batches; after the second, the weights have
moved in any training, however large its data set."""


UNLEARNED = "unlearned"
"""The key of the reason in `scores.json`, in the event `run_finished` and in models of recipes."""


def steps_needed(steps_of_a_pass: float) -> int:
    """Steps until a training counts as one: a pass over the training data, but at least 10 and at most 100."""
    return min(ENOUGH_STEPS, max(FEWEST_STEPS, math.ceil(steps_of_a_pass)))


def unlearned(step: int, *, steps_of_a_pass: float, started_from: str = "") -> str:
    """Why a training has no score, in words; "" where it has made enough steps.

    Args:
        step: optimizer steps done.
        steps_of_a_pass: steps in which each training item is seen once.
        started_from: the trained network whose weights it began with; then any step counts.
    """
    if step == 0 and started_from:
        return f"it made no training step, so its network is still that of {started_from}"
    if step == 0:
        return "it made no training step, so its network is still random"
    needed = steps_needed(steps_of_a_pass)
    if step >= needed or started_from:
        return ""
    a_pass = max(1, math.ceil(steps_of_a_pass))
    why = f"one pass over the training data takes {a_pass:,}"
    if needed != a_pass:
        why = f"{needed} are the minimum" if needed == FEWEST_STEPS else f"{why}, and {needed} would count"
    return f"it made only {count_text(step, 'training step')}, too few to train a network ({why})"


def read_mark(scores: Path) -> str:
    """What `unlearned` said of the training with this `scores.json`; "" where that says nothing or cannot be read."""
    try:
        found = json.loads(check_is_file(scores).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ""
    mark = found.get(UNLEARNED) if isinstance(found, dict) else None
    return mark if isinstance(mark, str) else ""
