"""Our step in nnU-Net's loop, on a network like its own, and epochs that follow the clock. Needs no nnU-Net."""

import pytest
import torch
from torch import nn

from voxelocity.nnunet.fast import VARIABLE, ClockedEpochs, time_budget_s
from voxelocity.nnunet.fast_step import OPTIMIZER, DeepLoss, FastStep, precision_of, step_loss
from voxelocity.nnunet.targets import picked
from voxelocity.step import LossConfig, build_loss
from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.core.errors import ConfigError

CPU = torch.device("cpu")


class TwoScales(nn.Module):
    """Logits of two scales, as nnU-Net's decoder returns them; its blocks are sequences that end in an activation."""

    def __init__(self, num_channels=1, num_classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.down = self.block(num_channels, 4, stride=1)
        self.bottom = self.block(4, 6, stride=2)
        self.coarse, self.up = nn.Conv3d(6, num_classes, 1), nn.ConvTranspose3d(6, 4, 2, 2)
        self.fine = nn.Conv3d(8, num_classes, 1)

    @staticmethod
    def block(num_channels, width, *, stride):
        return nn.Sequential(
            nn.Conv3d(num_channels, width, 3, stride, 1),
            nn.InstanceNorm3d(width, affine=True),
            nn.LeakyReLU(inplace=True),
        )

    def forward(self, image):
        skip = self.down(image)
        bottom = self.bottom(skip)
        return [self.fine(torch.cat((self.up(bottom), skip), 1)), self.coarse(bottom)]


def dice_ce(weights=(1.0, 0.5)):
    own = build_loss(LossConfig())
    return DeepLoss(own, weights, takes_classes=True)


def batch(seed, *, shape=(8, 12, 8)):
    numbers = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 3, (2, 1, *(side // 2 for side in shape)), generator=numbers, dtype=torch.int16)
    label = torch.nn.functional.interpolate(coarse.float(), shape).to(torch.int16)
    return torch.rand((2, 1, *shape), generator=numbers) + label, [label, coarse]


def fast_step(**changes):
    network = TwoScales()
    return network, FastStep(network, dice_ce(), device=CPU, is_flat=False, **{"num_steps": 10, **changes})


@pytest.mark.parametrize("steps", [(1, 1, 1), (2, 2, 2), (1, 2, 4), (3, 1, 6)])
def test_labels_of_coarser_scales_are_those_that_nnunet_picks(steps):
    label = torch.randint(0, 5, (2, 1, 6, 8, 12), dtype=torch.uint8)
    shape = [side // step for side, step in zip(label.shape[2:], steps, strict=True)]
    wanted = torch.nn.functional.interpolate(label.float(), shape, mode="nearest-exact").to(torch.uint8)
    assert torch.equal(picked(label, shape), wanted)
    assert torch.equal(picked(label[:, 0], shape), wanted[:, 0])


def test_the_loss_is_the_weighted_sum_over_scales_and_leaves_out_those_of_weight_0():
    image, target = batch(0)
    logits, single = TwoScales()(image), build_loss(LossConfig())
    fine, coarse = (single(part, label[:, 0].to(torch.uint8)) for part, label in zip(logits, target, strict=True))
    label = dice_ce().label_of(target)
    torch.testing.assert_close(dice_ce((0.75, 0.25))(logits, label), 0.75 * fine + 0.25 * coarse)
    torch.testing.assert_close(dice_ce((1.0, 0.0))([logits[0], None], label), fine)
    torch.testing.assert_close(dice_ce(None)(logits[0], dice_ce(None).label_of(target[0])), fine)


def test_a_foreign_loss_is_taken_unchanged_in_float32():
    given = []

    def theirs(logits, target):
        given.append((logits.dtype, target.shape))
        return logits.mean()

    loss = step_loss(theirs, ignored=None)
    assert not loss.takes_classes
    logits = torch.rand(2, 2, 4, 4, 4, dtype=torch.bfloat16)
    target = torch.zeros(2, 2, 4, 4, 4, dtype=torch.bool)
    assert loss(logits, loss.label_of(target)) == logits.float().mean()
    assert given == [(torch.float32, target.shape)]


def test_steps_learn_and_the_average_follows():
    network, step = fast_step(num_steps=40)
    losses = [float(step(*batch(number % 4))) for number in range(40)]
    assert losses[-1] < 0.85 * losses[0]
    assert step.averaged() is not network
    image, target = batch(5)
    label = dice_ce().label_of(target)
    with torch.no_grad():
        assert dice_ce()(step.averaged()(image), label) < 0.85 * losses[0]


def test_the_learning_rate_rises_and_falls_with_the_steps():
    _, step = fast_step(num_steps=20)
    rates = []
    for number in range(20):
        step(*batch(number))
        rates.append(step.param_groups[0]["lr"])
    assert rates[0] < rates[1] == pytest.approx(OPTIMIZER.learning_rate)
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert rates[-1] < 0.02 * OPTIMIZER.learning_rate


def test_a_training_continues_exactly_from_its_state():
    _, whole = fast_step()
    for number in range(6):
        whole(*batch(number))
    _, first = fast_step()
    for number in range(3):
        first(*batch(number))
    network, second = fast_step()
    # As nnU-Net does it: the network's weights of the file are the average.
    network.load_state_dict(first.averaged().state_dict())
    second.load_state_dict(first.state_dict())
    for number in range(3, 6):
        second(*batch(number))
    assert second.num_steps == 6
    pairs = zip(whole.averaged().state_dict().values(), second.averaged().state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_with_a_time_the_schedule_follows_the_clock_and_what_was_spent_counts():
    clock = FakeClock()
    _, step = fast_step(budget_s=100.0, clock=clock)
    clock.advance(1000.0)
    assert step.remaining_s == 100.0, "nothing counts before it begins"
    step.begin()
    clock.advance(60.0)
    step(*batch(0))
    assert step.param_groups[0]["lr"] < 0.5 * OPTIMIZER.learning_rate
    assert step.state_dict()["spent_s"] == 60.0

    _, later = fast_step(budget_s=100.0, clock=clock)
    later.load_state_dict(step.state_dict())
    clock.advance(500.0)
    later.begin()
    clock.advance(30.0)
    assert later.spent_s == 90.0
    last = later(*batch(1))
    clock.advance(10.0)
    assert later.remaining_s == 0.0
    assert later(*batch(2)) is last, "no step beyond the time"
    assert later.num_steps == 2


@pytest.mark.parametrize(("train_s", "validation_s", "between_s"), [(0.5, 0.1, 1.0), (3.0, 0.5, 0.2), (0.01, 0.02, 2)])
def test_epochs_end_with_the_time_whatever_an_iteration_takes(train_s, validation_s, between_s):
    clock, budget_s = FakeClock(), 3600.0
    epochs = ClockedEpochs(budget_s, most_epochs=1000, most_validation=50, clock=clock)
    assert epochs.num_epochs == 50
    lengths, validating_s = [], 0.0
    for epoch in range(epochs.num_epochs):
        training, validation = epochs.begin(epoch, max(0.0, budget_s - clock()))
        lengths.append((training, validation))
        # The first iterations, with kernels to be compiled, take longer; later ones now and then.
        slowness = 3.0 if epoch % 9 == 0 else 1.0
        clock.advance(training * train_s * slowness)
        epochs.end_training()
        clock.advance(validation * validation_s)
        validating_s += validation * validation_s
        epochs.end_validation()
        clock.advance(between_s)
    assert 0.97 * budget_s < clock() < 1.03 * budget_s
    assert validating_s < 0.12 * budget_s
    assert max(validation for _, validation in lengths) <= 50


@pytest.mark.parametrize(("budget_s", "most", "num_epochs"), [(10.0, 1000, 1), (600.0, 1000, 30), (600.0, 5, 5)])
def test_epochs_are_few_and_not_short(budget_s, most, num_epochs):
    assert ClockedEpochs(budget_s, most_epochs=most, most_validation=50).num_epochs == num_epochs


def test_the_time_is_read_from_a_variable_and_a_wrong_one_is_named(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert time_budget_s() == float("inf")
    monkeypatch.setenv(VARIABLE, "1h30m")
    assert time_budget_s() == 5400.0
    monkeypatch.setenv(VARIABLE, "2")
    with pytest.raises(ConfigError, match=r"VOXELOCITY_TIME_BUDGET is not a duration: .*2m for minutes"):
        time_budget_s()


def test_half_precision_and_a_graph_are_taken_where_the_device_has_them(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr("voxelocity.nnunet.fast_step.has_triton", lambda: True)
    gpu = precision_of(torch.device("cuda"), is_flat=False)
    assert (gpu.compute, gpu.channels_last, gpu.step_graph) == ("bfloat16", True, True)
    assert not precision_of(torch.device("cuda"), is_flat=True).channels_last
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    old = precision_of(torch.device("cuda"), is_flat=False)
    assert (old.compute, old.step_graph) == ("float16", False)
    assert precision_of(torch.device("mps"), is_flat=False).compute == "float32"
    assert not precision_of(CPU, is_flat=False).step_graph
