import io

import pytest
import torch

from voxelocity.core.batch import Batch
from voxelocity.observe import SpanRecorder
from voxelocity.step import (
    LossConfig,
    NetworkConfig,
    OptimizerConfig,
    PrecisionConfig,
    TrainingStep,
    build_loss,
    build_network,
)

NETWORK = NetworkConfig.parse({"name": "unet", "widths": [4, 8], "strides": [[2, 2, 2]]})


def training(compute="float32", average_decay=0.9, name="sgd", compile="none"):
    return TrainingStep(
        build_network(NETWORK, num_channels=1, num_classes=2, seed=0),
        build_loss(LossConfig()),
        optimizer=OptimizerConfig(name=name, learning_rate=0.05, average_decay=average_decay, momentum=0.9),
        precision=PrecisionConfig(compute=compute, channels_last=compute != "float32", compile=compile),
        device=torch.device("cpu"),
    )


def batch(step=0):
    rng = torch.Generator().manual_seed(step % 3)
    image = torch.randn(2, 1, 8, 8, 8, generator=rng)
    return Batch(image=image, label=(image[:, 0] > 0).to(torch.uint8), draws=(), regions=(), step=step)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_steps_lower_the_loss(compute, name):
    step = training(compute, name=name)
    losses = [float(step(batch(i), 0.1 if name == "sgd" else 0.02)) for i in range(30)]
    assert losses[-1] < 0.8 * losses[0]


def test_going_on_from_a_saved_state_gives_the_same_weights_bit_for_bit():
    through, first = training(), training()
    for i in range(6):
        through(batch(i), 0.05)
    for i in range(3):
        first(batch(i), 0.05)
    file = io.BytesIO()
    torch.save(first.state(), file)
    file.seek(0)
    second = training()
    second.load_state(torch.load(file, weights_only=True))
    for i in range(3, 6):
        second(batch(i), 0.05)
    for network in ("network", "averaged"):
        a, b = getattr(through, network).state_dict(), getattr(second, network).state_dict()
        assert all(torch.equal(a[name], b[name]) for name in a), network


def test_the_average_lags_behind_the_weights_and_is_the_network_itself_when_off():
    step = training(average_decay=0.99)
    for i in range(20):
        step(batch(i), 0.05)
    a, b = next(iter(step.averaged.parameters())), next(iter(step.network.parameters()))
    assert not torch.equal(a, b)
    off = training(average_decay=0.0)
    assert off.averaged is off.network


def test_the_parts_of_a_step_are_spans_in_their_order():
    step = training()
    with SpanRecorder() as recorder:
        step(batch(), 0.05)
    names = ["copy", "forward", "loss", "backward", "optimizer", "averaging"]
    assert [(record.name, record.depth) for record in recorder.take()] == [(name, 0) for name in names]
    with SpanRecorder() as recorder:
        training(average_decay=0.0)(batch(), 0.05)
    assert [record.name for record in recorder.take()] == names[:-1]


# torch warns about parts of its own that compiling touches.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
def test_a_compiled_step_trains_the_same_weights_and_saves_them_under_the_same_names(monkeypatch):
    compile_with = torch.compile
    # The whole way but for the C++ compiler, which would take half a minute.
    monkeypatch.setattr(
        torch, "compile", lambda network, **_: compile_with(network, backend="aot_eager", dynamic=False)
    )
    plain, fast = training(), training(compile="default")
    for i in range(3):
        losses = [float(step(batch(i), 0.05)) for step in (plain, fast)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert fast._forward is not fast.network, "otherwise nothing was compiled"
    a, b = plain.network.state_dict(), fast.network.state_dict()
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(b[name], a[name], rtol=1e-3, atol=1e-4)
    resumed = training()
    resumed.load_state(fast.state())
    assert all(torch.equal(weight, b[name]) for name, weight in resumed.network.state_dict().items())
