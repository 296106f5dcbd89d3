"""A run whose network overflows float16 says which layer, and what would help."""

import pytest
import torch
from rich.console import Console

import voxelocity
from voxelocity.report import read_run
from voxelocity.training import entry, train
from voxelocity_observe.core.errors import ConfigError, NonFiniteLossError

HALF = {"precision.compute": "float16", "precision.loss_scale.initial": 1024}


@pytest.fixture
def run_in(tiny_msd, tiny_plan, monkeypatch):
    """Trains a network whose last layer returns values beyond float16."""
    build = entry.build_network

    def build_wide(*arguments, **options):
        network = build(*arguments, **options)
        name, last = [item for item in network.named_modules() if isinstance(item[1], torch.nn.Conv3d)][-1]
        with torch.no_grad():
            last.weight.mul_(1e6)
        build_wide.layer = name
        return network

    monkeypatch.setattr(entry, "build_network", build_wide)

    def run(out, keys):
        cases, console = voxelocity.open(tiny_msd), Console(quiet=True)
        return train(cases, out, overrides={**tiny_plan, **keys}, device="cpu", console=console)

    return run, build_wide


def test_the_layer_that_overflowed_is_named_with_what_would_keep_it_from_it(run_in, tmp_path):
    run, wide = run_in
    with pytest.raises(NonFiniteLossError, match="the loss became") as caught:
        run(tmp_path / "run", HALF)
    assert caught.value.case_ids
    text = str(caught.value)
    assert f"In float16, the layer '{wide.layer}' (Conv3d) was the first to return NaN or infinity" in text
    assert "--set precision.compute=float32" in text
    assert f"precision.float32_layers=[{wide.layer.rpartition('.')[0] or wide.layer}]" in text


def test_a_layer_in_float32_lets_it_train_and_is_checked_before(run_in, tmp_path):
    run, wide = run_in
    with pytest.raises(ConfigError, match=f"names '{wide.layer}x'.*did you mean '{wide.layer}'"):
        run(tmp_path / "none", {**HALF, "precision.float32_layers": [f"{wide.layer}x"]})
    result = run(tmp_path / "run", {**HALF, "precision.float32_layers": [wide.layer]})
    assert result.step == 6
    precision = read_run(tmp_path / "run").plan["precision"]
    assert precision["float32_layers"] == [wide.layer]
    assert precision["loss_scale"] == {"initial": 1024.0, "growth_interval": 2000, "fixed": False}
