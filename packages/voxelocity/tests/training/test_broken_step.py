"""A run whose network overflows float16 says which layer, and what would help."""

import pytest
import torch
from rich.console import Console

import voxelocity
from voxelocity.report import read_run
from voxelocity.step import NetworkConfig, build_network
from voxelocity.training import entry, train
from voxelocity_observe.core.errors import ConfigError, NonFiniteLossError

HALF = {"precision.compute": "float16", "precision.loss_scale.initial": 1024}


def _wide_layer(network):
    """A layer in the middle, whose name and weights serve."""
    return [item for item in network.named_modules() if isinstance(item[1], torch.nn.Conv3d)][-1]


@pytest.fixture
def layer(tiny_plan):
    keys = {name: tiny_plan[f"network.{name}"] for name in ("name", "widths", "strides")}
    return _wide_layer(build_network(NetworkConfig.parse(keys), num_channels=1, num_classes=2, seed=0))[0]


@pytest.fixture
def run_in(tiny_msd, tiny_plan, monkeypatch):
    """Trains a network with a layer that returns values beyond float16."""

    def build_wide(*arguments, **options):
        network = build_network(*arguments, **options)
        with torch.no_grad():
            _wide_layer(network)[1].weight.mul_(1e6)
        return network

    def run(out, keys):
        cases, console = voxelocity.open(tiny_msd), Console(quiet=True)
        return train(cases, out, overrides={**tiny_plan, **keys}, device="cpu", console=console)

    monkeypatch.setattr(entry, "build_network", build_wide)
    return run


def test_the_layer_that_overflowed_is_named_with_what_would_keep_it_from_it(run_in, layer, tmp_path):
    with pytest.raises(NonFiniteLossError, match="the loss became") as caught:
        run_in(tmp_path / "run", HALF)
    assert caught.value.case_ids
    text = str(caught.value)
    assert f"In float16, the layer '{layer}' (Conv3d) was the first to return NaN or infinity" in text
    assert 'overrides={"precision.compute": "float32"} computes everything in it' in text
    assert f'overrides={{"precision.float32_layers": "{layer.rpartition(".")[0]}"}}' in text


def test_a_layer_in_float32_lets_it_train_and_is_checked_before(run_in, layer, tmp_path):
    with pytest.raises(ConfigError, match=f"names '{layer}x'.*did you mean '{layer}'"):
        run_in(tmp_path / "none", {**HALF, "precision.float32_layers": f"{layer}x"})
    assert not (tmp_path / "none").exists()
    block = layer.rpartition(".")[0]
    result = run_in(tmp_path / "run", {**HALF, "precision.float32_layers": block})
    assert result.step == 6
    precision = read_run(tmp_path / "run").plan["precision"]
    assert precision["float32_layers"] == [block]
    assert precision["loss_scale"] == {"initial": 1024.0, "growth_interval": 2000, "fixed": False}
