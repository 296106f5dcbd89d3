"""The loss of many classes by torch's own operations, a few classes at a time."""

from __future__ import annotations

import pytest
import torch

from voxelocity.step import LossConfig, build_loss
from voxelocity.step import loss as loss_module
from voxelocity.step.fused import set_fused
from voxelocity.step.loss_table import LOSSES

SHAPE = (2, 37, 3, 4, 5)


@pytest.fixture(autouse=True)
def without_loops():
    set_fused("loss", False)
    yield
    set_fused("loss", True)


def example(dtype=torch.float32):
    numbers = torch.Generator().manual_seed(0)
    logits = (3.0 * torch.randn(SHAPE, generator=numbers)).to(dtype)
    # Beyond the classes: voxels that do not count.
    return logits, torch.randint(SHAPE[1] + 1, (2, 3, 4, 5), generator=numbers, dtype=torch.int32)


def value_and_gradient(config, logits, label, ignored):
    leaf = logits.clone().requires_grad_()
    value = build_loss(config, ignored=ignored)(leaf, label)
    value.backward()
    return value.detach(), leaf.grad


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("over_batch", [True, False])
@pytest.mark.parametrize("has_ignored", [True, False])
def test_some_classes_at_a_time_have_the_value_and_gradient_of_all(monkeypatch, name, over_batch, has_ignored):
    config, (logits, label) = LossConfig(name=name, dice_over_batch=over_batch), example()
    ignored = SHAPE[1] if has_ignored else None
    label = label if has_ignored else label.clamp(max=SHAPE[1] - 1)
    expected = value_and_gradient(config, logits, label, ignored)
    monkeypatch.setattr(loss_module, "MAX_BYTE_CLASSES", 2)
    found = value_and_gradient(config, logits, label, ignored)
    assert torch.allclose(found[0], expected[0], rtol=1e-5)
    assert torch.allclose(found[1], expected[1], rtol=1e-4, atol=1e-8)


def test_half_precision_has_a_gradient_of_its_type(monkeypatch):
    logits, label = example(torch.bfloat16)
    expected = value_and_gradient(LossConfig(), logits.float(), label, SHAPE[1])
    monkeypatch.setattr(loss_module, "MAX_BYTE_CLASSES", 2)
    value, gradient = value_and_gradient(LossConfig(), logits, label, SHAPE[1])
    assert torch.allclose(value, expected[0], rtol=1e-4)
    assert gradient.dtype == torch.bfloat16
    assert torch.allclose(gradient.float(), expected[1], rtol=0.02, atol=1e-6)


def test_a_class_beyond_a_byte_is_learned():
    logits = torch.zeros(1, 300, 1, 1, 2, requires_grad=True)
    build_loss(LossConfig())(logits, torch.tensor([[[[299, 0]]]], dtype=torch.int32)).backward()
    assert logits.grad[0, 299, 0, 0, 0] < 0.0
    assert logits.grad[0, 299, 0, 0, 1] > 0.0
