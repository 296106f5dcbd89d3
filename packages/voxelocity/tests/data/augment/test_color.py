"""Changes of color and stain: the compiled loop against plain torch, and what they keep."""

import numpy as np
import pytest
import torch

from voxelocity.core.batch import Draw
from voxelocity.data.augment import AugmentConfig, Effects
from voxelocity.data.augment.color import ColorAndStain
from voxelocity_observe.core.errors import ConfigError

FACTORY = "voxelocity.data.augment.color:ColorAndStain"


def patch(seed=0):
    return np.random.default_rng(seed).random((3, 9, 7, 1), dtype=np.float32)


def changed(effect, image, seed=0):
    drawn = effect.draw(np.random.default_rng(seed), 3)
    copy = image.copy()
    effect.apply(copy, np.zeros(image.shape[1:], np.uint8), drawn)
    return copy, drawn


@pytest.mark.parametrize("stain", [0.4, 0.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_compiled_loop_agrees_with_plain_torch(seed, stain):
    effect, image = ColorAndStain(stain=stain, stain_shift=stain / 10, hue=0.1), patch(seed)
    ours, drawn = changed(effect, image, seed)
    theirs = torch.from_numpy(image.copy())
    effect.apply_on_device(theirs, torch.zeros(image.shape[1:], dtype=torch.uint8), drawn)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=2e-6)
    assert not np.allclose(ours, image, atol=0.01)


def test_a_stain_that_stays_is_left_out_and_colors_are_the_same():
    effect, image = ColorAndStain(stain=0.0, stain_shift=0.0, contrast=0.5), patch()
    ours, drawn = changed(effect, image)
    assert not drawn.is_stained
    slow = image.copy()
    effect.apply(slow, np.zeros(image.shape[1:], np.uint8), drawn._replace(is_stained=True))
    np.testing.assert_allclose(ours, slow, atol=2e-6)


def test_without_strength_nothing_changes():
    effect = ColorAndStain(stain=0.0, stain_shift=0.0, brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0)
    image = patch().clip(1.0 / 255.0, 1.0)
    np.testing.assert_allclose(changed(effect, image)[0], image, atol=2e-6)


def test_intensities_stay_from_0_to_1_and_black_stays_finite():
    effect = ColorAndStain(stain=1.0, stain_shift=1.0, brightness=1.0, contrast=1.0, saturation=1.0, hue=0.5)
    for seed in range(20):
        image = patch(seed)
        image[:, 0] = 0.0
        found = changed(effect, image, seed)[0]
        assert np.isfinite(found).all()
        assert found.min() >= 0.0
        assert found.max() <= 1.0


def test_gray_keeps_its_gray_when_only_hue_and_saturation_change():
    effect = ColorAndStain(stain=0.0, stain_shift=0.0, brightness=0.0, contrast=0.0, saturation=0.9, hue=0.5)
    image = np.repeat(patch()[:1], 3, axis=0).clip(0.1, 1.0)
    np.testing.assert_allclose(changed(effect, image, 3)[0], image, atol=1e-3)


def test_more_of_a_stain_is_darker_where_it_absorbs():
    effect = ColorAndStain(stain=0.5, stain_shift=0.0, brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0)
    density = np.array([0.65, 0.704, 0.286])
    image = np.tile(np.exp(-density)[:, None, None, None], (1, 2, 2, 1)).astype(np.float32)
    rng = np.random.default_rng(1)
    amount = 1.0 + 0.5 * np.random.default_rng(1).uniform(-1.0, 1.0, 3)[0]
    drawn = effect.draw(rng, 3)
    effect.apply(image, np.zeros((2, 2, 1), np.uint8), drawn)
    np.testing.assert_allclose(image[:, 0, 0, 0], np.exp(-amount * density), rtol=1e-3)


def test_an_image_without_colors_is_refused_in_words():
    with pytest.raises(ConfigError, match=r"changes red, green and blue, but images have 1 channel.* remove this"):
        ColorAndStain().draw(np.random.default_rng(0), 1)


def test_it_is_an_effect_of_the_engine():
    config = AugmentConfig.only(effects=[{"factory": FACTORY, "probability": 1.0, "settings": {"stain": 0.3}}])
    effects, image = Effects(config), torch.rand(2, 3, 5, 5, 1)
    before = image.clone()
    draws = [Draw(case_id="a", case=0, epoch=0, draw=number) for number in range(2)]
    effects.apply(draws, image, torch.zeros(2, 5, 5, 1, dtype=torch.uint8), seed=1)
    assert effects.run_on_device
    assert not torch.equal(image, before)
