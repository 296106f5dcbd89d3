"""Our trainers inside nnU-Net's own training loop; skipped where nnU-Net is not installed."""

import os
import runpy

import numpy as np
import pytest
import torch

from voxelocity.nnunet.fast import VoxelocityFast
from voxelocity.nnunet.fast_step import step_loss
from voxelocity.nnunet.places import FOLDER, VARIABLE
from voxelocity.nnunet.trainer import VoxelocityFeed, trainer_class

pytest.importorskip("nnunetv2", reason="nnU-Net v2")
from batchgeneratorsv2.transforms.utils.deep_supervision_downsampling import DownsampleSegForDSTransform
from nnunetv2.training.loss.compound_losses import DC_and_BCE_loss, DC_and_CE_loss
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerDA5 import nnUNetTrainerDA5
from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

from .own_chain import FakeDataset, FakeLoader, nnunet_chain
from .test_feed import SHAPES, feed_of, seed_all


@pytest.mark.parametrize("end", ["", "_250epochs", "NoMirroring", "DA5", "_2000epochs_NoMirroring"])
@pytest.mark.parametrize("ours", [(VoxelocityFeed,), (VoxelocityFast, VoxelocityFeed)])
def test_nnunet_finds_our_form_of_each_of_its_trainers(ours, end, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(FOLDER))
    name = f"nnUNetTrainerVoxelocity{'Fast' if len(ours) > 1 else ''}{end}"
    found = recursive_find_trainer_class_by_name(name)
    assert found.__name__ == name
    assert found.__mro__[1 : len(ours) + 2] == (*ours, recursive_find_trainer_class_by_name(f"nnUNetTrainer{end}"))


def test_trainers_of_the_user_have_our_forms_too(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer\n\n"
        "class nnUNetTrainerMine(nnUNetTrainer):\n    pass\n"
    )
    monkeypatch.setenv(VARIABLE, f"{FOLDER}{os.pathsep}{tmp_path}")
    found = recursive_find_trainer_class_by_name("nnUNetTrainerVoxelocityMine")
    assert [kind.__name__ for kind in found.__mro__[1:4]] == ["VoxelocityFeed", "nnUNetTrainerMine", "nnUNetTrainer"]


def test_of_a_chain_that_is_partly_nnunets_own_code_each_patch_is_nnunets():
    chain = nnUNetTrainerDA5.get_training_transforms(
        (12, 16, 12), (-0.5, 0.5), [(1, 1, 1), (0.5, 0.5, 0.5)], (0, 1, 2), False, use_mask_for_norm=[False]
    )
    # Of batches of one patch, nothing is drawn for another in between. In a crop that is longer by an odd number, axes
    # that are not turned would have all borders of labels at ties.
    loader = FakeLoader(FakeDataset(SHAPES), chain, crop=(18, 22, 18), patch=(12, 16, 12), batch_size=1)
    num_near = 0
    with feed_of(loader) as feed:
        assert type(feed.chain.rest[0].transform).__name__ == "Rot90Transform"
        for seed in range(20):
            seed_all(seed)
            _, (sample,) = loader.own_samples()
            seed_all(seed)
            batch = feed._make(feed._draw())
            for target, wanted in zip(batch["target"], sample["segmentation"], strict=True):
                assert (target[0] != wanted).float().mean() < 2e-3
            num_near += torch.allclose(batch["data"][0], sample["image"], rtol=1e-3, atol=1e-3)
    assert num_near >= 18, "ties of a median and steep gammas may make more of a rounding"


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


@pytest.mark.parametrize("ignored", [None, 3])
@pytest.mark.parametrize("over_batch", [False, True])
def test_our_loss_is_that_of_nnunet(over_batch, ignored):
    settings = {"batch_dice": over_batch, "smooth": 1e-5, "do_bg": False, "ddp": False}
    single = DC_and_CE_loss(settings, {}, ignore_label=ignored, dice_class=MemoryEfficientSoftDiceLoss)
    theirs = DeepSupervisionWrapper(single, [0.6, 0.4, 0.0])
    ours = step_loss(theirs, ignored=ignored)
    assert ours.takes_classes
    label = torch.randint(0, 3 if ignored is None else 4, (2, 1, 16, 12, 8), dtype=torch.int16)
    scales = [[1, 1, 1], [0.5, 0.5, 0.5], [0.25, 0.25, 0.25]]
    targets = [torch.stack(scale) for scale in zip(*(scales_of(sample, scales) for sample in label), strict=True)]
    logits = [torch.randn(2, 3, *target.shape[2:], requires_grad=True) for target in targets]
    values, slopes = [], []
    for value in (theirs(logits, targets), ours(logits, ours.label_of(targets))):
        values.append(value)
        slopes.append(torch.autograd.grad(value, logits[:2]))
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)
    for mine, other in zip(*slopes, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-7)


def scales_of(label, scales):
    return DownsampleSegForDSTransform(scales)(segmentation=label)["segmentation"]


@pytest.mark.parametrize("change", ["weights", "background", "regions"])
def test_other_losses_stay_those_of_nnunet(change):
    settings = {"batch_dice": True, "smooth": 1e-5, "do_bg": change == "background", "ddp": False}
    if change == "regions":
        loss = DC_and_BCE_loss({}, {**settings, "do_bg": True})
    else:
        loss = DC_and_CE_loss(settings, {}, 2 if change == "weights" else 1, 1, dice_class=MemoryEfficientSoftDiceLoss)
    assert not step_loss(DeepSupervisionWrapper(loss, [1.0]), ignored=None).takes_classes
