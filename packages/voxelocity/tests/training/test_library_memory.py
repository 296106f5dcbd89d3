"""What libraries take in memory, from small trainings in processes of their own."""

from types import SimpleNamespace

import pytest
import torch

import voxelocity as vx
from voxelocity.planning.config import plan_with
from voxelocity.training.library_memory import measure, measure_libraries
from voxelocity_observe.core.errors import InputError

MIB = 2**20


@pytest.fixture(scope="module")
def planned(tiny_msd, tiny_plan, tmp_path_factory):
    keys = {**tiny_plan, "planner.measure": "never"}
    return vx.plan(vx.open(tiny_msd), overrides=keys, cache_folder=tmp_path_factory.mktemp("cache"), device="cpu")


def test_libraries_are_measured_by_a_small_training(planned):
    found = measure_libraries(planned)
    assert 50 * MIB < found.preparing_bytes < found.training_bytes < 4096 * MIB


def test_libraries_are_measured_with_effects_that_need_the_channels_of_the_run(planned):
    effects = [{"factory": "voxelocity.data.augment.color:ColorAndStain", "probability": 1.0}]
    plan = plan_with(planned.plan, {"data.augment.effects": effects}, where="test")
    assert measure(plan, torch.device("cpu"), num_channels=3)["training_bytes"] > 50 * MIB


def test_a_process_that_fails_says_why(planned, monkeypatch):
    network = {"name": "custom", "factory": "no_such_module:build", "widths": (4, 8), "strides": ((2, 2, 2),)}
    plan = planned.plan.model_copy(update={"network": type(planned.plan.network)(**network)})
    with pytest.raises(InputError, match="no_such_module:build"):
        measure(plan, torch.device("cpu"), num_channels=1)
    failed = SimpleNamespace(returncode=1, stdout="", stderr="Traceback\nConfigError: no such thing\n")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: failed)
    with pytest.raises(InputError, match=r"status 1: ConfigError: no such thing; .*leave out --memory"):
        measure_libraries(planned)
