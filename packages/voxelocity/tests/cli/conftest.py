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


@pytest.fixture
def model(tmp_path):
    """Makes the folder of a network that learned nothing, which is enough here."""

    def make(*channels):
        from voxelocity.infer import ModelSpec, save_model
        from voxelocity.step import build_network

        spec = ModelSpec.parse(
            {
                "network": {"name": "unet", "widths": [4, 8], "strides": [[2, 2, 2]]},
                "channels": list(channels),
                "labels": {0: "background", 7: "organ"},
                "prepare": {},
                "window": {"shape_voxel": [16, 16, 16], "batch_size": 2},
                "precision": {"compute": "float32"},
            }
        )
        folder = tmp_path / "run"
        folder.mkdir()
        save_model(folder, build_network(spec.network, num_channels=len(channels), num_classes=2, seed=1), spec)
        return folder

    return make
