"""The bytes that the loss moves for each voxel, by arithmetic: before the kernels and with them."""

import pytest

from loss_bytes import fused_bytes, operation_bytes


@pytest.mark.parametrize(
    ("num_classes", "before", "after"), [(2, 250, 14), (3, 362, 20), (14, 1594, 86), (105, 11786, 632)]
)
def test_two_passes_move_an_eighteenth_of_the_bytes(num_classes, before, after):
    # Of torch 2.11 to 2.13; another release may split operations otherwise.
    assert operation_bytes(num_classes) == pytest.approx(before, rel=0.1)
    assert fused_bytes(num_classes) == after


def test_float32_logits_move_twice_the_bytes_of_bfloat16():
    assert fused_bytes(3, itemsize=4) - 2 == 2 * (fused_bytes(3) - 2)
