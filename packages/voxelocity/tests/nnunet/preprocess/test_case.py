"""One case cropped, normalized and resampled: what nnU-Net's own calls of SciPy and NumPy give."""

import pytest

from voxelocity.nnunet.preprocess.case import most_bytes, new_shape
from voxelocity.nnunet.preprocess.store import block_and_chunk


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
