"""Validation on the way: which classes count in its mean."""

import math
from types import SimpleNamespace

import numpy as np
import torch

from voxelocity.infer import WindowConfig
from voxelocity.training import validate


class _BackgroundEverywhere:
    """In place of `Predictor`."""

    def __init__(self, network, spec, *, device):
        pass

    def predict_prepared(self, volumes, *, window):
        for volume in volumes:
            yield volume, torch.zeros(volume.label.shape, dtype=torch.uint8)


def test_a_network_that_finds_nothing_reaches_no_target_by_classes_that_are_not_there(monkeypatch):
    monkeypatch.setattr(validate, "Predictor", _BackgroundEverywhere)
    label = np.zeros((4, 4, 4), np.uint8)
    label[0, 0] = [0, 1, 1, 2]
    volume = SimpleNamespace(case_id="a", label=label)
    prepared = [SimpleNamespace(load=lambda: volume)]
    names = ("background", *(f"class {index}" for index in range(1, 105)))
    spec = SimpleNamespace(
        class_names=names, labels=dict.fromkeys(names, 0), window=WindowConfig(shape_voxel=(4, 4, 4), overlap=0.5)
    )
    mean, dice = validate.validate_prepared(torch.nn.Identity(), prepared, spec, device=torch.device("cpu"))
    assert mean == 0.0
    assert sum(math.isnan(value) for value in dice.values()) == 102
