"""Our trainers inside nnU-Net's own training loop; skipped where nnU-Net is not installed."""

import runpy

import numpy as np
import pytest

from voxelocity.nnunet.places import FOLDER, VARIABLE
from voxelocity.nnunet.trainer import VoxelocityFeed, trainer_class

pytest.importorskip("nnunetv2", reason="nnU-Net v2")
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

from .own_chain import nnunet_chain


@pytest.mark.parametrize("end", ["", "_250epochs", "NoMirroring", "DA5", "_2000epochs_NoMirroring"])
def test_nnunet_finds_our_form_of_each_of_its_trainers(end, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(FOLDER))
    found = recursive_find_trainer_class_by_name(f"nnUNetTrainerVoxelocity{end}")
    assert found.__name__ == f"nnUNetTrainerVoxelocity{end}"
    assert found.__mro__[1] is VoxelocityFeed
    assert found.__mro__[2] is recursive_find_trainer_class_by_name(f"nnUNetTrainer{end}")


@pytest.mark.parametrize("name", ["nnUNetTrainerVoxelocity_3epochs", "nnUNetTrainer", "anything"])
def test_other_names_are_not_found(name):
    with pytest.raises(AttributeError, match=f"no trainer is called {name}"):
        trainer_class(name)
    assert "nnUNetTrainer" not in runpy.run_path(str(FOLDER / "nnUNetTrainerVoxelocity.py"))


def test_the_chain_of_our_tests_is_that_of_nnunet():
    for patch, in_planes, degrees in (((12, 16, 10), False, np.pi / 6), ((4, 16, 12), True, np.pi)):
        scales = [(1, 1, 1), (0.5, 0.5, 0.5)]
        theirs = nnUNetTrainer.get_training_transforms(
            patch, (-degrees, degrees), scales, (0, 1, 2), in_planes, use_mask_for_norm=[False]
        )
        ours = nnunet_chain(patch, in_planes=in_planes, scales=scales)
        assert [told(step) for step in theirs.transforms] == [told(step) for step in ours.transforms]


def told(step):
    """A transform with its numbers; objects within it are told by their class and theirs."""
    if hasattr(step, "apply_probability"):
        return step.apply_probability, told(step.transform)
    kept = {key: value for key, value in vars(step).items() if not key.startswith(("_", "benchmark"))}
    return type(step).__name__, {key: str(value) for key, value in kept.items()}
