"""Steps that are tried before the training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from voxelocity.diagnosis.recorder.ledger import Ledger
from voxelocity.diagnosis.recorder.trials import Trials


def test_hooks_stand_aside_within_a_trial_and_it_is_put_back() -> None:
    ledger, depths = Ledger(), []

    def time_steps(times: float) -> float:
        depths.append(ledger.depth)
        if times < 0:
            raise ValueError("no time")
        return 2 * times

    module: Any = SimpleNamespace(time_steps=time_steps)
    trials = Trials(ledger)
    trials.hook(lambda name, take: take(module))
    assert module.time_steps(3) == 6
    with pytest.raises(ValueError, match="no time"):
        module.time_steps(-1)
    assert (depths, ledger.depth) == ([1, 1], 0)
    trials.unhook()
    assert module.time_steps is time_steps


def test_the_planner_still_has_what_is_passed_over() -> None:
    from voxelocity.planning import step_timing

    assert callable(step_timing.time_steps)
