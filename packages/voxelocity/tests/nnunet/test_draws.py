"""Quick draws: the numbers that nnU-Net's own objects draw from equal seeds, to the bit; other objects are asked."""

import numpy as np
import pytest
import torch

from voxelocity.nnunet.chain import NnunetChain
from voxelocity.nnunet.draws import DRAWN

pytest.importorskip("batchgeneratorsv2.transforms.utils.compose", reason="nnU-Net's transforms")
from .own_chain import (
    BGContrast,
    ContrastTransform,
    Convert2DTo3DTransform,
    Convert3DTo2DTransform,
    GammaTransform,
    GaussianBlurTransform,
    GaussianNoiseTransform,
    MirrorTransform,
    MultiplicativeBrightnessTransform,
    RandomTransform,
    SimulateLowResolutionTransform,
    SpatialTransform,
    nnunet_chain,
)
from .test_feed import seed_all

PATCH, CROP, NUM_CHANNELS = (12, 16, 10), (17, 21, 16), 3
EACH = {"synchronize_channels": False, "p_per_channel": 0.6}
GAMMA = {**EACH, "gamma": BGContrast((0.7, 1.5)), "p_retain_stats": 1}


def spatial(sides=PATCH, **changed):
    settings = {"p_rotation": 0.5, "rotation": (-0.5, 0.5), "p_scaling": 0.5, "scaling": (0.7, 1.4)}
    fixed = {"patch_center_dist_from_border": 0, "random_crop": False, "border_mode_seg": "constant"}
    return SpatialTransform(sides, **fixed, padding_value_seg=-1, **(settings | changed))


def low_resolution(**changed):
    settings = {**EACH, "scale": (0.5, 1), "synchronize_axes": True, "ignore_axes": None}
    return SimulateLowResolutionTransform(**(settings | changed))


KNOWN = {
    "noise": [GaussianNoiseTransform((0, 0.1), p_per_channel=1, synchronize_channels=True)],
    "noise of one strength": [GaussianNoiseTransform(0.05, p_per_channel=1, synchronize_channels=True)],
    "blur": [GaussianBlurTransform((0.5, 1.0), p_per_channel=0.6)],
    "the same blur of all axes": [GaussianBlurTransform([0.5, 1.0], synchronize_axes=True, p_per_channel=0.6)],
    "brightness": [MultiplicativeBrightnessTransform(BGContrast((0.75, 1.25)), **EACH)],
    "brightness, only more": [MultiplicativeBrightnessTransform(BGContrast((1.1, 1.3)), **EACH)],
    "contrast": [ContrastTransform(BGContrast((0.75, 1.25)), True, **EACH)],
    "contrast, an interval": [ContrastTransform((0.75, 1.25), True, **EACH)],
    "low resolution": [low_resolution()],
    "low resolution in planes": [low_resolution(ignore_axes=(0,), p_per_channel=1)],
    "gamma": [GammaTransform(p_invert_image=0, **GAMMA)],
    "gamma of the negative": [GammaTransform(p_invert_image=1, **GAMMA)],
    "mirroring": [MirrorTransform((0, 1, 2))],
    "mirroring of one axis": [MirrorTransform((1,))],
    "warp": [spatial(p_synchronize_scaling_across_axes=1)],
    "warp, each axis for itself": [spatial(p_synchronize_scaling_across_axes=0.5, p_rot_per_axis=0.5)],
    "warp in planes": [Convert3DTo2DTransform(), spatial(PATCH[1:], rotation=(-3, 3)), Convert2DTo3DTransform()],
}


def opened(transforms, *, asks_nnunet=False, is_flat=False):
    warps = any(isinstance(transform, SpatialTransform) for transform in transforms)
    patch, crop = ((1, *shape[1:]) if is_flat else shape for shape in (PATCH, CROP))
    chain = NnunetChain(
        transforms, crop=crop if warps else patch, patch=patch, is_flat=is_flat, asks_nnunet=asks_nnunet
    )
    assert chain.rest == []
    return chain


def draw(chain, seed):
    """What is drawn for a batch of two, and what the generators give next."""
    params = chain.unchanged(2, NUM_CHANNELS)
    seed_all(seed)
    for number in range(2):
        chain.draw(params, number)
    return {name: getattr(params, name) for name in DRAWN}, np.random.uniform(), float(torch.rand(1))


def assert_equal_draws(transforms, **settings):
    chains = [opened(transforms, asks_nnunet=asks, **settings) for asks in (True, False)]
    changes = 0
    for seed in range(100, 250):
        (theirs, *after), (ours, *own_after) = (draw(chain, seed) for chain in chains)
        assert after == own_after
        for name, wanted in theirs.items():
            np.testing.assert_array_equal(ours[name], wanted, err_msg=f"{name}, seed {seed}")
        nothing = chains[0].unchanged(2, NUM_CHANNELS)
        changes += any(not np.array_equal(getattr(nothing, name), theirs[name]) for name in DRAWN)
    assert changes > 70


@pytest.fixture
def asked(monkeypatch):
    """The class of each object that is asked for its parameters."""
    names = []

    def watch(kind, own):
        def get_parameters(self, **sample):
            names.append(type(self).__name__)
            return own(self, **sample)

        monkeypatch.setattr(kind, "get_parameters", get_parameters)

    for kind in {type(step) for transforms in KNOWN.values() for step in transforms} | {RandomTransform}:
        watch(kind, kind.get_parameters)
    return names


@pytest.mark.parametrize("name", KNOWN)
def test_each_known_transform_is_drawn_as_nnunet_draws_it(name, asked):
    chain = [RandomTransform(KNOWN[name][0], 0.8)] if len(KNOWN[name]) == 1 and "warp" not in name else KNOWN[name]
    assert_equal_draws(chain)
    quick = opened(chain)
    draw(quick, 0)
    asked.clear()
    draw(quick, 1)
    assert asked == [], "known ones are not asked"


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("in_planes", [False, True])
def test_the_whole_chain_is_drawn_as_nnunet_draws_it(in_planes, is_flat, asked):
    if in_planes and is_flat:
        pytest.skip("nnU-Net has no planes of planes")
    sides = PATCH[1:] if is_flat else PATCH
    transforms = nnunet_chain(sides, in_planes=in_planes, scales=[[1] * len(sides)]).transforms
    assert_equal_draws(transforms, is_flat=is_flat)
    asked.clear()
    for seed in range(20):
        draw(quick := opened(transforms, is_flat=is_flat), seed)
        trials = len(asked)
        draw(quick, seed)
        assert len(asked) == trials > 0


class Stronger(GaussianNoiseTransform):
    pass


def changed_object():
    transform = ContrastTransform((0.75, 1.25), True, **EACH)
    transform.get_parameters = lambda **sample: ContrastTransform.get_parameters(transform, **sample)
    return transform


UNKNOWN = {
    "an object that was changed": changed_object(),
    "a range of the user": MultiplicativeBrightnessTransform(lambda *_, **__: np.random.normal(1.0, 0.1), **EACH),
    "a contrast of the user": ContrastTransform(BGContrast(lambda: np.random.normal(1.0, 0.1)), True, **EACH),
    "one value for all channels": MultiplicativeBrightnessTransform((0.7, 1.3), True, p_per_channel=0.6),
    "some channels": low_resolution(allowed_channels=(0, 2)),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_asked(name, asked):
    chain = opened([UNKNOWN[name]])
    draw(chain, 0)
    asked.clear()
    draw(chain, 1)
    assert asked == [type(UNKNOWN[name]).__name__] * 2


def test_a_subclass_is_left_to_nnunet():
    chain = NnunetChain([Stronger((0, 0.1), 1, True)], crop=PATCH, patch=PATCH, is_flat=False)
    assert [type(transform).__name__ for transform in chain.rest] == ["Stronger"]


@pytest.mark.parametrize("kind", [GaussianNoiseTransform, SpatialTransform, MirrorTransform, RandomTransform])
def test_of_a_release_that_draws_in_another_way_each_object_is_asked(kind, monkeypatch):
    transforms = nnunet_chain(PATCH, scales=[[1, 1, 1]]).transforms
    own = kind.get_parameters

    def get_parameters(self, **sample):
        np.random.uniform()
        return own(self, **sample)

    monkeypatch.setattr(kind, "get_parameters", get_parameters)
    chains = [opened(transforms, asks_nnunet=asks) for asks in (True, False)]
    for seed in range(30):
        (theirs, *after), (ours, *own_after) = (draw(chain, seed) for chain in chains)
        assert after == own_after
        assert all(np.array_equal(theirs[name], ours[name]) for name in DRAWN)


def test_opening_the_draws_leaves_the_generators_alone():
    chain = opened(nnunet_chain(PATCH, scales=[[1, 1, 1]]).transforms)
    first, second = draw(chain, 7), draw(chain, 7)
    assert first[1:] == second[1:], "before any draw was opened, and after"


def test_batches_share_nothing_that_is_drawn():
    chain = opened(KNOWN["mirroring"])
    first, second = chain.unchanged(2, 1), chain.unchanged(2, 1)
    first.flips[:] = True
    assert not second.flips.any()
    assert not chain.unchanged(2, 1).flips.any()
