"""Noise from a seed: the distribution of MONAI's, its deviation drawn from the same number, other voxels."""

from typing import Any

import monai.transforms as mt
import numpy as np
import pytest
import torch
from scipy import stats

from parity.compare import compare
from voxelocity.monai.lower import lowerings
from voxelocity.monai.lower.pending import finish

SEEDED = lowerings()
NUM_VOXELS = 48**3
SMALLEST_P = 1e-3
"""Seeds are fixed, so that a test of the same distribution that passes once passes always."""


def made(transform: Any, image: torch.Tensor, seed: int = 11) -> np.ndarray[Any, np.dtype[np.float32]]:
    transform.set_random_state(seed)
    return finish(SEEDED[type(transform)].apply(transform, image)).numpy()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "transform",
    [
        mt.RandGaussianNoise(prob=1.0, mean=0.5, std=2.0),
        mt.RandGaussianNoise(prob=1.0, mean=0.0, std=2.0, sample_std=False),
        mt.RandRicianNoise(prob=1.0, mean=0.3, std=1.5),
        mt.RandRicianNoise(prob=1.0, std=0.5, relative=True, sample_std=False),
    ],
    ids=["gaussian", "gaussian of one deviation", "rician", "rician, relative"],
)
def test_seeded_noise_is_distributed_as_monais(transform: Any, seed: int) -> None:
    image = 3 * torch.rand(1, 48, 48, 48, generator=torch.Generator().manual_seed(0))
    transform.set_random_state(seed)
    theirs = transform(image.clone()).numpy().ravel()
    ours = made(transform, image, seed).ravel()
    assert ours.size == NUM_VOXELS
    assert stats.ks_2samp(theirs, ours).pvalue > SMALLEST_P
    for power in (1, 2, 3, 4):
        error = np.sqrt(2 * np.var(theirs.astype(np.float64) ** power) / NUM_VOXELS)
        assert abs((theirs.astype(np.float64) ** power).mean() - (ours.astype(np.float64) ** power).mean()) < 4 * error


@pytest.mark.parametrize("gamma", [0.7, 1.5])
def test_what_depends_on_the_range_of_noise_is_as_with_monais(gamma: float) -> None:
    # The contrast's power acts on the share of the range, which two voxels of a patch decide: those in the tails.
    image, means = torch.zeros(1, 48, 48, 48), []
    noise = mt.RandGaussianNoise(prob=1.0, std=0.05, sample_std=False)
    contrast = mt.AdjustContrast(gamma)
    for seed in range(24):
        noise.set_random_state(seed)
        theirs = contrast(noise(image.clone())).mean()
        means.append((float(theirs), float(contrast(torch.from_numpy(made(noise, image, seed))).mean())))
    monai, ours = np.array(means).T
    error = np.sqrt((monai.var(ddof=1) + ours.var(ddof=1)) / len(means))
    assert abs(monai.mean() - ours.mean()) < 3 * error
    assert 0.5 < monai.std() / ours.std() < 2.0


def test_seeded_noise_has_the_deviation_that_monai_draws() -> None:
    zeros = torch.zeros(1, 48, 48, 48)
    for seed in range(5):
        transform = mt.RandGaussianNoise(prob=1.0, std=3.0)
        transform.set_random_state(seed)
        drawn = np.random.RandomState(transform.R.get_state()[1][0])
        drawn.set_state(transform.R.get_state())
        drawn.rand()
        assert made(transform, zeros, seed).std() == pytest.approx(drawn.uniform(0, 3.0), rel=0.02)


def test_voxels_and_channels_have_noise_of_their_own() -> None:
    noise = made(mt.RandGaussianNoise(prob=1.0, sample_std=False), torch.zeros(2, 48, 48, 48))
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(noise[0, :-1].ravel(), noise[0, 1:].ravel())[0, 1]) < 0.02
    real = made(mt.RandRicianNoise(prob=1.0, std=1.0, sample_std=False), torch.zeros(2, 48, 48, 48))
    assert abs(np.corrcoef(real[0].ravel(), real[1].ravel())[0, 1]) < 0.02


def test_the_generator_decides_the_noise() -> None:
    image = torch.zeros(1, 8, 8, 8)
    transform = mt.RandRicianNoise(prob=1.0)
    assert np.array_equal(made(transform, image, seed=4), made(transform, image, seed=4))
    assert not np.array_equal(made(transform, image, seed=4), made(transform, image, seed=5))


def test_all_keys_share_seeded_noise() -> None:
    data = {"image": torch.zeros(2, 9, 7, 5), "one": torch.zeros(1, 9, 7, 5), "whole": torch.zeros(2, 9, 7, 5)}
    transform = mt.RandGaussianNoised(("image", "whole"), prob=1.0)
    transform.set_random_state(0)
    out = finish(SEEDED[mt.RandGaussianNoised].apply(transform, data))
    assert torch.equal(out["image"], out["whole"])
    assert out["image"].std() > 0
    transform = mt.RandGaussianNoised(("one", "image"), prob=1.0, mean=5.0)
    transform.set_random_state(0)
    out = finish(SEEDED[mt.RandGaussianNoised].apply(transform, data))
    assert torch.equal(out["image"], out["one"].expand(2, -1, -1, -1))
    assert out["one"].mean() == pytest.approx(5.0, abs=0.1)


def test_a_plane_of_any_number_dtype_gets_seeded_noise() -> None:
    for kind in (torch.uint8, torch.int16, torch.float64):
        noisy = made(mt.RandGaussianNoise(prob=1.0), torch.zeros(3, 30, 31, dtype=kind))
        assert noisy.dtype == np.float32
        assert noisy.shape == (3, 30, 31)
        assert noisy.std() > 0
    kept = made(mt.RandGaussianNoise(prob=1.0, dtype=None), torch.zeros(1, 30, 31, dtype=torch.float64))
    assert kept.dtype == np.float64
    assert kept.std() > 0


def test_without_a_change_seeded_noise_draws_as_monai() -> None:
    for transform in (mt.RandGaussianNoised("image", prob=0.0), mt.RandRicianNoise(prob=0.0)):
        transform.set_random_state(0)
        image = torch.zeros(1, 6, 6, 6, dtype=torch.int16)
        data = {"image": image} if isinstance(transform, mt.RandGaussianNoised) else image
        _, _, differences = compare(transform, SEEDED[type(transform)], data)
        assert [(difference.largest, difference.words) for difference in differences] == [(0.0, "")]
