"""What seeds mean stays as it is: the numbers of the effects of 2026-11-28, as digests. A digest never changes."""

import hashlib

import numpy as np
import pytest

from voxelocity.core.batch import Draw
from voxelocity.data.augment import AugmentConfig, sample

FIELDS = (
    *(
        "is_warped",
        "matrix",
        "offset_voxel",
        "flips",
        "is_swapped",
        "swapped_classes",
        "is_elastic",
        "elastic",
        "votes",
    ),
    *("has_bias", "bias", "noise_std", "noise_seed", "blur_sigma_voxel", "scale", "shift", "contrast"),
    *("low_resolution", "gamma_inverted", "gamma", "gamma_keeps_moments"),
)
"""Of `AugmentParams`, those that existed on that day: effects that came later have streams of their own."""
OFTEN = dict.fromkeys(
    (f"{name}_probability" for name in ("bias", "intensity_shift", "contrast", "low_resolution", "gamma_inverted")), 0.6
)
CONFIGS = {
    "nnU-Net's": AugmentConfig(),
    "all": AugmentConfig(
        **OFTEN, quarter_turn_probability=(0.3, 0.2, 0.4), translate_voxel=(1.0, 2.0, 3.0), shear=0.1,
        affine_probability=0.8, elastic_probability=0.7, label_interpolation="vote", gamma_keeps="range",
    ),
    "without a deformation": AugmentConfig(**OFTEN, noise_probability=0.7, blur_probability=0.8, rotation_share=1.0),
    "rising": AugmentConfig(**OFTEN, elastic_probability=0.9, ramp_epochs=7),
}  # fmt: skip
DIGESTS = {
    ("nnU-Net's", 0): "6d81bd64d05aee64",
    ("nnU-Net's", 2**63 - 1): "5f0c5fc46f8e9192",
    ("all", 0): "de1148a232fd1829",
    ("all", 2**63 - 1): "390c831bf224ba95",
    ("without a deformation", 0): "cfca44bcc5f9af2b",
    ("without a deformation", 2**63 - 1): "3882f6e2b6602a21",
    ("rising", 0): "f5b1e96c38f4693a",
    ("rising", 2**63 - 1): "bc9d910cd9ce4cd0",
}


def digest(params):
    """Of the values as they are; of matrices to 1e-4, as sines differ in their last digits between libraries."""
    made = hashlib.blake2b(digest_size=8)
    for name in FIELDS:
        value = np.asarray(getattr(params, name))
        if name == "matrix":
            value = np.rint(value.astype(np.float64) * 1e4).astype(np.int64)
        made.update(f"{name} {value.dtype.str} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    return made.hexdigest()


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
@pytest.mark.parametrize("name", CONFIGS)
def test_seeds_give_the_numbers_that_they_always_gave(name, seed):
    params = sample(
        [Draw(case_id="a", case=case, epoch=case % 9, draw=3 * case) for case in range(12)],
        seed=seed,
        num_channels=2,
        patch_shape=(24, 32, 50),
        config=CONFIGS[name],
        spacing_mm=(0.7, 0.7, 5.0),
        swapped_classes=(0, 2, 1),
    )
    assert digest(params) == DIGESTS[name, seed]


@pytest.mark.parametrize("later", ["cutout"])
def test_effects_that_came_later_leave_the_numbers_of_the_others(later):
    config = CONFIGS["all"].model_copy(update={f"{later}_probability": 1.0})
    draws = [Draw(case_id="a", case=case, epoch=0) for case in range(5)]
    options = {"seed": 3, "num_channels": 1, "patch_shape": (9, 8, 7)}
    with_it, without = (sample(draws, config=some, **options) for some in (config, CONFIGS["all"]))
    assert digest(with_it) == digest(without)
