"""A network with one layer that overflows float16: the layer is found, and may compute in float32."""

import copy

import pytest
import torch
from torch import nn

from voxelocity.core.batch import Batch
from voxelocity.infer.runtimes.program import Converted
from voxelocity.step import (
    NetworkConfig,
    OptimizerConfig,
    PrecisionConfig,
    TrainingStep,
    autocast,
    build_network,
    first_overflow,
    keep_float32,
    overflow_advice,
)
from voxelocity_observe.core.errors import ConfigError

CPU = torch.device("cpu")
HALF = PrecisionConfig(compute="float16")
IMAGE = torch.ones(2, 1, 4, 4, 4)


def network_of():
    """Its second layer returns 240,000, beyond float16, and its last one divides that again."""
    layers = [nn.Conv3d(1, 1, 1, bias=False) for _ in range(3)]
    for layer, weight in zip(layers, (600.0, 400.0, 1e-5), strict=True):
        nn.init.constant_(layer.weight, weight)
    names = ("stem", "wide", "head")
    block = nn.Sequential()
    for name, layer in zip(names, layers, strict=True):
        block.add_module(name, layer)
    return nn.Sequential(block)


def logits(network, precision=HALF):
    with autocast(precision, CPU), torch.no_grad():
        return network(IMAGE)


def test_the_first_layer_that_overflows_is_named_with_what_it_was_given():
    network = network_of()
    assert not logits(network).isfinite().any()
    found = first_overflow(network, IMAGE, HALF)
    assert (found.layer, found.kind, found.largest, found.has_bad_weights) == ("0.wide", "Conv3d", 600.0, False)
    assert first_overflow(network, IMAGE, PrecisionConfig(compute="float32")) is None
    assert not any(module._forward_hooks for module in network.modules())
    text = overflow_advice(found, HALF)
    assert (
        "In float16, the layer '0.wide' (Conv3d) was the first to return NaN or infinity from inputs up to 600" in text
    )
    assert "--set precision.float32_layers=0 computes" in text
    assert "--set precision.compute=float32" in text


def test_what_broke_a_weight_is_not_sought_in_the_format():
    network = network_of()
    nn.init.constant_(network[0].stem.weight, float("nan"))
    found = first_overflow(network, IMAGE, PrecisionConfig(compute="float32"))
    text = overflow_advice(found, PrecisionConfig(compute="float32"))
    assert text == (
        ". In float32, the layer '0.stem' (Conv3d) was the first to return NaN or infinity by a weight that is"
    )
    assert overflow_advice(None, PrecisionConfig(compute="float32")) == ""
    assert "Float32 may be enough: --set precision.compute=float32" in overflow_advice(None, HALF)


@pytest.mark.parametrize("names", [["0"], ["0.wide", "0.head"], ["0.*"]])
def test_named_layers_compute_in_float32_and_copies_keep_it(names):
    network = network_of()
    state = [*network.state_dict()]
    twin = copy.deepcopy(keep_float32(network, names))
    assert [*twin.state_dict()] == state
    nn.init.constant_(twin[0].head.weight, 2e-5)
    assert logits(network).mean().item() == pytest.approx(2.4, rel=1e-2)
    assert logits(twin).mean().item() == pytest.approx(4.8, rel=1e-2)
    assert isinstance(network[0].wide, nn.Conv3d)
    assert isinstance(keep_float32(network, names)[0].wide, nn.Conv3d)


def test_a_network_with_half_weights_keeps_named_layers_too():
    """As TensorRT and ONNX Runtime get it."""
    network = keep_float32(network_of(), ["0"])
    assert Converted(network, torch.float16)(IMAGE).mean().item() == pytest.approx(2.4, rel=1e-2)
    assert not Converted(network_of(), torch.float16)(IMAGE).isfinite().any()


def test_a_layer_that_the_network_lacks_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"names '0\.wode', which Sequential does not have; did you mean '0\.wide'"):
        keep_float32(network_of(), ["0.wode"])
    with pytest.raises(ConfigError, match=r"its layers are 0, 0\.stem, 0\.wide"):
        keep_float32(network_of(), ["nothing.like.it*"])


def step_of(network, **precision):
    config = OptimizerConfig(name="sgd", learning_rate=1e-9)
    precision = PrecisionConfig.parse({"compute": "float16", **precision})
    return TrainingStep(
        network, lambda made, label: (made.float() - label).mean(), optimizer=config, precision=precision, device=CPU
    )


def scale_after(step, num_steps=2):
    for number in range(num_steps):
        step(Batch(image=IMAGE, label=IMAGE, draws=(), regions=(), step=number), 1e-9)
    return step.state()["scaler"]["scale"]


def test_a_step_trains_with_the_layers_that_a_plan_keeps_in_float32():
    step = step_of(network_of(), float32_layers=["0"])
    loss = step(Batch(image=IMAGE, label=IMAGE, draws=(), regions=(), step=0), 1e-9).item()
    assert loss == pytest.approx(1.4, rel=1e-2)


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"initial": 64.0, "growth_interval": 1}, 256.0),
        ({"initial": 64.0, "growth_interval": 1, "fixed": True}, 64.0),
        ({"initial": 64.0}, 64.0),
    ],
)
def test_the_loss_is_scaled_as_the_plan_says(settings, scale):
    network = keep_float32(network_of(), ["0"])
    assert scale_after(step_of(network, loss_scale=settings)) == scale
    # Each step overflows: the scale is halved, unless it is fixed.
    expected = settings["initial"] if settings.get("fixed") else settings["initial"] / 4.0
    assert scale_after(step_of(network_of(), loss_scale=settings)) == expected


def test_layers_of_a_plans_network_have_the_names_that_the_network_has():
    values = {"name": "dynunet", "widths": [4, 8, 8], "strides": [[2, 2, 2]] * 2}
    network = build_network(NetworkConfig.parse(values), num_channels=1, num_classes=2, seed=0)
    wanted = network(torch.zeros(1, 1, 8, 8, 8))
    keep_float32(network, ["output_block", "upsamples.*"])
    with autocast(PrecisionConfig(compute="bfloat16"), CPU):
        made = network(torch.zeros(1, 1, 8, 8, 8))
    assert made.dtype == torch.float32
    torch.testing.assert_close(made, wanted, atol=0.05, rtol=0.05)
