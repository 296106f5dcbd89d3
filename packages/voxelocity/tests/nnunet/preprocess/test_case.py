"""One case cropped, normalized and resampled: what nnU-Net's own calls of SciPy and NumPy give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import binary_fill_holes

from shared.examples import examples
from voxelocity.nnunet.preprocess.case import most_bytes, new_shape, outside_of
from voxelocity.nnunet.preprocess.store import block_and_chunk


@settings(max_examples=examples(40))
@given(shape=st.tuples(*[st.integers(1, 7)] * 3), share=st.floats(0.05, 0.9), seed=st.integers(0, 99))
def test_empty_voxels_are_those_that_filling_holes_leaves(shape, share, seed):
    rng = np.random.default_rng(seed)
    image = (rng.random((2, *shape)) < share) * rng.integers(1, 9, (2, *shape))
    found = outside_of(image)
    wanted = ~binary_fill_holes((image != 0).any(axis=0))
    assert np.array_equal(np.zeros(shape, bool) if found is None else found, wanted)


def test_new_shapes_are_rounded_as_nnunet_rounds_them():
    assert new_shape((5, 10, 100), (2.5, 1.0, 0.7), (1.0, 4.0, 0.8)) == (12, 2, 87), "halves to even numbers"
    assert new_shape((1, 1, 1), (0.1, 1.0, 1.0), (9.0, 1.0, 1.0)) == (1, 1, 1)


def test_memory_grows_with_the_resampled_case():
    assert most_bytes((10, 10, 10), 1, (1.0, 1.0, 1.0), []) == 1000 * (20 + 16)


@pytest.mark.parametrize(
    ("shape", "patch", "itemsize", "block", "chunk"),
    [
        # Of nnU-Net's `comp_blosc2_params`, 2.8.1.
        ((1, 400, 400, 400), (128, 128, 128), 4, (1, 32, 32, 32), (1, 96, 128, 128)),
        ((1, 36, 50, 35), (40, 56, 40), 4, (1, 32, 32, 32), (1, 36, 50, 35)),
        ((2, 20, 512, 512), (512, 512), 2, (1, 1, 256, 256), (1, 1, 512, 512)),
    ],
)
def test_chunks_and_blocks_are_those_of_nnunet(shape, patch, itemsize, block, chunk):
    try:
        from nnunetv2.training.dataloading.nnunet_dataset import comp_blosc2_params
    except ImportError:
        pytest.skip("nnU-Net v2")
    assert block_and_chunk(shape, patch, itemsize) == comp_blosc2_params(shape, patch, itemsize)
