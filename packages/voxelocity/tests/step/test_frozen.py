"""The way down of a network held while the rest learns."""

import io

import pytest
import torch

from voxelocity.core.batch import Batch
from voxelocity.parallel import ALONE, Sharding
from voxelocity.step import (
    LossConfig,
    NetworkConfig,
    OptimizerConfig,
    PrecisionConfig,
    TrainingStep,
    build_loss,
    build_network,
)
from voxelocity.step.frozen import Frozen
from voxelocity_observe.core.errors import ConfigError

TWOS = [[2, 2, 2]]
WAYS_DOWN = {
    "dynunet": ({"widths": [4, 4, 8], "strides": TWOS * 2}, ("input_block.", "downsamples.", "bottleneck.")),
    "unet": ({"widths": [4, 8, 8], "strides": TWOS * 2}, ("model.0.", "model.1.submodule.0.")),
    "segresnet": ({"widths": [8, 16], "strides": TWOS}, ("convInit.", "down_layers.")),
}


def training(name="dynunet", optimizer="adamw", compute="float32"):
    config = NetworkConfig.parse({"name": name, **WAYS_DOWN[name][0]})
    return TrainingStep(
        build_network(config, num_channels=1, num_classes=2, seed=0),
        build_loss(LossConfig()),
        optimizer=OptimizerConfig(name=optimizer, learning_rate=0.01, average_decay=0.9, weight_decay=0.1),
        precision=PrecisionConfig(compute=compute, channels_last=False),
        device=torch.device("cpu"),
    )


def batch(step):
    image = torch.randn(2, 1, 16, 16, 16, generator=torch.Generator().manual_seed(step))
    return Batch(image=image, label=(image[:, 0] > 0).to(torch.uint8), draws=(), regions=(), step=step)


def values(network):
    return {name: weight.detach().clone() for name, weight in network.named_parameters()}


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize(
    ("name", "optimizer", "compute"),
    [("dynunet", "adamw", "bfloat16"), ("unet", "sgd", "float32"), ("segresnet", "muon", "float32")],
)
@pytest.mark.parametrize("is_alone", [True, False])
def test_the_way_down_keeps_its_weights_until_it_is_let_go(name, optimizer, compute, is_alone):
    step = training(name, optimizer, compute)
    # As with several ranks, where the gradients of all weights are exchanged.
    step.frozen = Frozen(step._sharding, skips_gradients=is_alone)
    held = {key for key in values(step.network) if key.startswith(WAYS_DOWN[name][1])}
    assert step.frozen.turn(True)
    assert not step.frozen.turn(True)
    first = values(step.network)
    for number in range(2):
        step(batch(number), 0.01)
    then = values(step.network)
    assert changed(first, then) == first.keys() - held
    assert changed(first, values(step.averaged())) == first.keys() - held
    assert step.frozen.turn(False)
    step(batch(2), 0.01)
    assert changed(then, values(step.network)) == first.keys()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_training_that_continues_while_weights_are_held_ends_with_the_same_weights(optimizer):
    through, first = training(optimizer=optimizer), training(optimizer=optimizer)
    for step, stop in ((through, 4), (first, 1)):
        for number in range(stop):
            step.frozen.turn(number < 2)
            step(batch(number), 0.01)
    file = io.BytesIO()
    torch.save(first.state(), file)
    file.seek(0)
    second = training(optimizer=optimizer)
    second.load_state(torch.load(file, weights_only=True))
    for number in range(1, 4):
        second.frozen.turn(number < 2)
        second(batch(number), 0.01)
    assert changed(values(through.network), values(second.network)) == set()
    assert changed(values(through.averaged()), values(second.averaged())) == set()


def test_a_network_whose_way_down_is_not_known_is_refused():
    step = TrainingStep(
        torch.nn.Conv3d(1, 2, 1),
        build_loss(LossConfig()),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.01),
        precision=PrecisionConfig(compute="float32", channels_last=False),
        device=torch.device("cpu"),
    )
    assert not step.frozen.turn(False)
    with pytest.raises(ConfigError, match=r"schedule.frozen_share freezes the encoder, .* set it to 0"):
        step.frozen.turn(True)


def test_what_a_network_never_trains_stays_so():
    network = torch.nn.Sequential()
    network.add_module("encoder", torch.nn.Sequential(torch.nn.Conv3d(1, 2, 1), torch.nn.Conv3d(2, 2, 1)))
    network.encoder[0].requires_grad_(False)
    frozen = Frozen(Sharding(network, ALONE), skips_gradients=True)
    for is_on in (True, False):
        frozen.turn(is_on)
        assert [weight.requires_grad for weight in network.parameters()] == [False, False, not is_on, not is_on]
