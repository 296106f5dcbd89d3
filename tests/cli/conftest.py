from __future__ import annotations

import pytest
from rich.console import Console


@pytest.fixture(scope="session")
def finished_run(tiny_msd, tiny_plan, tmp_path_factory):
    """A run that learned the tiny data well enough to have something to say."""
    import voxelocity
    from voxelocity.training import train

    out = tmp_path_factory.mktemp("finished") / "run"
    plan = {**tiny_plan, "train.steps": 40, "optimizer.learning_rate": 0.02}
    train(voxelocity.open(tiny_msd), out, overrides=plan, device="cpu", console=Console(quiet=True))
    return out
