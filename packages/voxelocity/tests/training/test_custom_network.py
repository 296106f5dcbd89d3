"""A network of a person's own, from training to prediction."""

import sys

import pytest
import torch

import voxelocity
from voxelocity.infer import save_model
from voxelocity.planning import model_spec
from voxelocity.step import build_network
from voxelocity_observe.core.errors import ConfigError, InputError


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """In the folder where a person works, a module with what makes a network."""
    (tmp_path / "networks_of_mine.py").write_text("""
import torch


def build(num_channels, num_classes):
    return torch.nn.Sequential(torch.nn.Conv3d(num_channels, 4, 3, padding=1), torch.nn.Conv3d(4, num_classes, 1))
""")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "networks_of_mine:build"
    sys.modules.pop("networks_of_mine", None)


def test_it_is_trained_validated_kept_and_predicted_with(tiny_msd, tiny_plan, tmp_path, own_module):
    own = {"network.name": "custom", "network.factory": own_module}
    result = voxelocity.train(
        voxelocity.open(tiny_msd), tmp_path / "run", device="cpu", overrides=tiny_plan | own | {"train.steps": 10}
    )
    assert result.step == 10
    scan = sorted((tiny_msd / "imagesTr").iterdir())[0]
    options = {"device": torch.device("cpu"), "num_threads": 1}
    with pytest.raises(
        InputError,
        match="made by the code networks_of_mine:build; if you trust that code, give factory='networks_of_mine:build'",
    ):
        voxelocity.predict(tmp_path / "run", [scan], tmp_path / "predictions", **options)
    with pytest.raises(InputError, match="made by the code networks_of_mine:build, not other:build; if you trust"):
        voxelocity.predict(tmp_path / "run", [scan], tmp_path / "predictions", factory="other:build", **options)
    (done,) = voxelocity.predict(tmp_path / "run", [scan], tmp_path / "predictions", factory=own_module, **options)
    assert done.path.exists()
    others = {key: value for key, value in tiny_plan.items() if not key.startswith("network.")}
    start = {"device": "cpu", "overrides": others, "start_from": tmp_path / "run"}
    with pytest.raises(
        InputError, match=f'if you trust that code, give overrides={{"network.factory": "{own_module}"}}'
    ):
        voxelocity.train(voxelocity.open(tiny_msd), tmp_path / "tuned", **start)
    start["overrides"] = others | {"network.factory": own_module}
    assert voxelocity.train(voxelocity.open(tiny_msd), tmp_path / "tuned", **start).step > 0
    (tmp_path / "networks_of_mine.py").unlink()
    sys.modules.pop("networks_of_mine")
    with pytest.raises(ConfigError, match="'networks_of_mine:build' cannot be imported"):
        voxelocity.predict(tmp_path / "run", [scan], tmp_path / "again", factory=own_module, **options)


def test_a_model_of_voxelocity_needs_no_code(tiny_msd, tiny_plan, tmp_path):
    spec = model_spec(voxelocity.plan(voxelocity.open(tiny_msd), device="cpu", overrides=tiny_plan))
    (tmp_path / "run").mkdir()
    save_model(tmp_path / "run", build_network(spec.network, num_channels=1, num_classes=3, seed=0), spec)
    scan = sorted((tiny_msd / "imagesTr").iterdir())[0]
    with pytest.raises(InputError, match="is one of Voxelocity's; leave factory='a:b' out"):
        voxelocity.predict(
            tmp_path / "run", [scan], tmp_path / "out", factory="a:b", device=torch.device("cpu"), num_threads=1
        )
