"""The loss in C: values and gradients against torch's operations, which are compared with MONAI's elsewhere."""

import pytest
import torch

from voxelocity.core import native
from voxelocity.step import LossConfig, build_loss, native_loss
from voxelocity.step.fused import set_fused
from voxelocity.step.native_loss import can_run

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-3}
pytestmark = pytest.mark.skipif(not native.has_loops(), reason="the loops are not compiled")


def drawn(num_classes, *, dtype=torch.float32, is_last=True, sides=(7, 11, 13), scale=3.0):
    rng = torch.Generator().manual_seed(0)
    logits = (scale * torch.randn(2, num_classes, *sides, generator=rng)).to(dtype)
    logits = logits.to(memory_format=torch.channels_last_3d if is_last else torch.contiguous_format).requires_grad_()
    dtype = torch.uint8 if num_classes <= 256 else torch.int32
    return logits, torch.randint(0, num_classes, (2, *sides), dtype=dtype, generator=rng)


def both(config, logits, label, **options):
    """Loss and gradient of the loops and of torch."""
    loss, found = build_loss(config, **options), []
    assert can_run(logits, label, config, 0)
    try:
        for is_on in (True, False):
            set_fused("loss", is_on)
            value = loss(logits, label)
            found.append((value.detach(), *torch.autograd.grad(value, logits)))
    finally:
        set_fused("loss", True)
    return found


def check(config, logits, label, **options):
    (value, gradient), (wanted, wanted_gradient) = both(config, logits, label, **options)
    torch.testing.assert_close(value, wanted, rtol=2e-6, atol=2e-6)
    assert (gradient.dtype, gradient.stride()) == (logits.dtype, logits.stride())
    off = (gradient.float() - wanted_gradient.float()).norm()
    assert float(off) <= TOLERANCE[logits.dtype] * float(wanted_gradient.float().norm())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("num_classes", "is_last"),
    [(2, True), (4, False), (9, True), (105, True), (256, False), (257, True), (1_000, False)],
)
def test_value_and_gradient_are_those_of_torch(num_classes, is_last, dtype):
    sides = (7, 11, 13) if num_classes < 100 else (3, 5, 7)
    check(LossConfig(), *drawn(num_classes, dtype=dtype, is_last=is_last, sides=sides))


@pytest.mark.parametrize("name", ["dice_ce", "dice", "tversky_ce", "focal_tversky"])
@pytest.mark.parametrize("over_batch", [True, False])
@pytest.mark.parametrize("ignored", [None, 1])
def test_every_loss_that_the_loops_have(name, over_batch, ignored):
    check(LossConfig(name=name, dice_over_batch=over_batch), *drawn(4), ignored=ignored)


def test_labels_of_any_size_that_a_batch_has_give_the_same():
    logits, label = drawn(4)
    narrow, wide = (both(LossConfig(), logits, values)[0] for values in (label, label.int()))
    assert all(torch.equal(one, other) for one, other in zip(narrow, wide, strict=True))


def test_as_many_classes_as_a_label_may_have_do_not_overflow():
    # All sums of exponentials are as large as they can be.
    check(LossConfig(), *drawn(65_535, sides=(2, 3, 3), scale=0.0))


def test_parts_of_a_large_patch_are_added_and_large_logits_do_not_overflow():
    check(LossConfig(), *drawn(3, sides=(40, 30, 31)))
    check(LossConfig(), *drawn(3, scale=1000.0))


def test_the_number_of_threads_changes_nothing():
    before, found = torch.get_num_threads(), []
    logits, label = drawn(4, sides=(40, 30, 31))
    try:
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            found.append(both(LossConfig(), logits, label)[0])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_batch_in_which_no_voxel_counts_learns_nothing():
    logits, label = drawn(3)
    (value, gradient), (wanted, _) = both(LossConfig(), logits, label.fill_(2), ignored=2)
    torch.testing.assert_close(value, wanted)
    assert not gradient.any()


def test_nan_makes_the_loss_nan():
    logits, label = drawn(3)
    with torch.no_grad():
        logits[0, 1, 0, 0, 0] = torch.nan
    assert build_loss(LossConfig())(logits, label).isnan()


def test_a_label_that_is_no_class_is_an_error_unless_it_is_ignored():
    logits, label = drawn(3)
    label[0, 0, 0, 0] = 200
    for value in (200, -1):
        with pytest.raises(ValueError, match="loop loss_sums"):
            build_loss(LossConfig())(logits, torch.where(label == 200, value, label.int()))
    with pytest.raises(ValueError, match="loop loss_sums"):
        build_loss(LossConfig())(logits, label)
    check(LossConfig(), logits, label, ignored=200)
    check(LossConfig(name="dice"), logits, label)


def test_what_the_loops_do_not_take_is_left_to_torch(monkeypatch):
    (logits, label), config = drawn(3), LossConfig()
    assert can_run(logits, label, config, 0)
    others = (
        (logits.double(), label, config, 0), (logits, label.long(), config, 0), (logits[:0], label[:0], config, 0),
        (logits, label, config, 3), (logits, label, LossConfig(name="dice_focal"), 0),
        (logits, label, LossConfig(boundary_weight=0.1), 0),
    )  # fmt: skip
    assert not any(can_run(*given) for given in others)
    monkeypatch.setattr(native_loss, "has_loops", lambda: False)
    assert not can_run(logits, label, config, 0)
