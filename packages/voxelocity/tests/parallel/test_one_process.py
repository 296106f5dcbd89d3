"""Calls as the guides write them, in one process: devices are parts of the CPU here."""

import copy
import json
import pickle

import pytest
import torch
from torch import nn

from shared.ranks import finish, start_ranks
from voxelocity.parallel import PipelineParallelModule, auto_parallelize_model
from voxelocity.step import NetworkConfig, build_network
from voxelocity_observe.core.errors import InputError

CPU = torch.device("cpu")
TWOS = [[2, 2, 2]] * 2
NETWORKS = {
    "dynunet": {"name": "dynunet", "widths": [4, 8, 8], "strides": TWOS},
    "unet": {"name": "unet", "widths": [4, 8, 8], "strides": TWOS},
    "segresnet": {"name": "segresnet", "widths": [8, 16, 16], "strides": TWOS},
}


def network_of(name="unet"):
    return build_network(NetworkConfig.parse(NETWORKS[name]), num_channels=1, num_classes=2, seed=3)


def batch(num=5):
    numbers = torch.Generator().manual_seed(0)
    return torch.randn(num, 1, 8, 8, 8, generator=numbers), torch.randint(2, (num, 8, 8, 8), generator=numbers)


def trained(model, num_steps=2):
    """The network's weights after some steps, as a guide makes them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = batch()
    for _ in range(num_steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.state_dict()


def assert_same(found, wanted):
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("device", [None, [CPU, CPU], ["cpu"] * 3])
def test_a_pipeline_in_one_process_trains_as_the_network_does(name, device):
    wanted = trained(network_of(name))
    model = PipelineParallelModule(network_of(name), num_microbatches=8, device=device)
    assert len(model.cuts) == (0 if device is None else len(device) - 1)
    assert_same(trained(model), wanted)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_gradients_of_a_process_are_made_as_those_of_ranks(schedule):
    images, labels = batch()
    network = network_of()
    loss = nn.functional.cross_entropy(network(images), labels)
    loss.backward()
    model = PipelineParallelModule(network_of(), num_microbatches=2, device=[CPU, CPU], schedule=schedule)
    assert isinstance(model, PipelineParallelModule)
    assert model.make_gradients(images, labels, nn.functional.cross_entropy).item() == pytest.approx(
        loss.item(), rel=1e-5
    )
    for own, one in zip(model.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(own.grad, one.grad, rtol=1e-4, atol=1e-6)


def test_stages_are_as_large_as_their_devices_or_as_the_cuts_say():
    model = PipelineParallelModule(network_of(), device=[CPU, CPU], cuts=[1])
    assert model.cuts == (1,)
    with pytest.raises(InputError, match=r"cannot be split at \(9,\) for 2 stages"):
        PipelineParallelModule(network_of(), device=[CPU, CPU], cuts=[9])


def test_whatever_runs_on_one_device_runs_there_uncut():
    class TwoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, a, b, *, scale):
            return self.norm(a) + scale * b, a

    model = PipelineParallelModule(TwoInputs(), num_microbatches=8)
    total, _ = model(torch.randn(4, 3), torch.ones(4, 3), scale=2.0)
    total.sum().backward()
    with pytest.raises(InputError, match=r"batch norms.*num_microbatches=1"):
        PipelineParallelModule(TwoInputs(), device=[CPU, CPU])
    with pytest.raises(InputError, match="passes on one tensor, and UNet was called with more"):
        PipelineParallelModule(network_of(), device=[CPU, CPU])(batch()[0], 1)
    found = auto_parallelize_model(TwoInputs(), model_size_mb=5000)
    found(torch.randn(4, 3), torch.ones(4, 3), scale=2.0)
    assert found.parallel_decision.mode == "one device"
    assert found.norm is found.network.norm


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        # Of what is free here; the state of a network of 5 GB would take 20.
        ({"model_size_mb": 0.1}, "one device"),
        ({"devices": [800_000]}, "checkpointing"),
        ({"devices": [900_000, 500_000]}, "pipeline"),
    ],
)
def test_the_first_call_decides_and_trains_the_very_parameters(options, mode):
    network = network_of("dynunet")
    wanted = trained(network_of("dynunet"))
    model = auto_parallelize_model(network, **options)
    assert model.parallel_decision is None
    assert [*map(id, model.parameters())] == [*map(id, network.parameters())]
    assert_same(trained(model), wanted)
    assert model.parallel_decision.mode == mode, model.parallel_decision
    assert_same(network.state_dict(), wanted)


def test_what_does_not_fit_is_said_at_the_first_call():
    model = auto_parallelize_model(network_of(), devices=[10_000])
    with pytest.raises(InputError, match=r"does not fit: one device would take .* on device 0, which has 9\.77 KiB"):
        model(batch()[0])


def test_a_stated_size_that_fits_nowhere_gives_way_to_the_measured_one():
    model = auto_parallelize_model(network_of(), model_size_mb=5000, devices=[10**9])
    with pytest.warns(UserWarning, match=r"model_size_mb=5000 would not fit .*one device would take 1[0-9.]+ GiB"):
        model(batch()[0])
    assert model.parallel_decision.mode == "one device"


def test_measuring_leaves_statistics_and_random_numbers_unchanged():
    model = auto_parallelize_model(nn.Sequential(nn.BatchNorm3d(1), nn.Dropout(0.5), nn.Conv3d(1, 1, 1)))
    alone = copy.deepcopy(model.network)
    images = batch()[0]
    torch.manual_seed(7)
    wanted = alone(images)
    torch.manual_seed(7)
    assert torch.equal(model(images), wanted)
    assert_same(model.state_dict(), alone.state_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("devices", [[800_000], [900_000, 500_000]])
def test_copies_train_their_own_parameters(copied, devices):
    model = auto_parallelize_model(network_of("dynunet"), devices=devices)
    model(batch()[0])
    before = copy.deepcopy(model.state_dict())
    twin = copied(model)
    changed = trained(twin)
    assert_same(model.state_dict(), before)
    assert any(not torch.equal(changed[name], before[name]) for name in before)
    # As a part of another module, the names are those of the network too.
    outer, other = nn.Sequential(twin), nn.Sequential(copied(model))
    other.load_state_dict(outer.state_dict())
    assert_same(other[0].state_dict(), changed)
    assert all(name.startswith("0.") and ".network." not in name for name in outer.state_dict())


_RUN = """
import json
import torch
from voxelocity.parallel import PipelineParallelModule, auto_parallelize_model, join_world
from voxelocity.step import NetworkConfig, build_network

CPU = torch.device("cpu")

def network_of():
    values = {"name": "unet", "widths": [4, 8, 8], "strides": [[2, 2, 2]] * 2}
    return build_network(NetworkConfig.parse(values), num_channels=1, num_classes=2, seed=3)

numbers = torch.Generator().manual_seed(0)
images, labels = torch.randn(4, 1, 8, 8, 8, generator=numbers), torch.randint(2, (4, 8, 8, 8), generator=numbers)
loss = torch.nn.functional.cross_entropy
whole = network_of()
loss(whole(images), labels).backward()
wanted = [value.grad for value in whole.parameters()]
found = {}
with join_world() as world:
    part = slice(2 * world.place.rank, 2 * world.place.rank + 2)
    models = {
        "auto in DDP": torch.nn.parallel.DistributedDataParallel(auto_parallelize_model(network_of(), model_size_mb=1)),
        "pipeline in DDP": torch.nn.parallel.DistributedDataParallel(
            PipelineParallelModule(network_of(), num_microbatches=8, device=[CPU, CPU])
        ),
        "auto of ranks": auto_parallelize_model(network_of(), world=world),
    }
    for name, model in models.items():
        for _ in range(2):
            model.zero_grad()
            loss(model(images[part]), labels[part]).backward()
        found[name] = max(
            float((own.grad - one).abs().max()) for own, one in zip(model.parameters(), wanted, strict=True)
        )
    found["mode"] = models["auto of ranks"].parallel_decision.mode
    try:
        auto_parallelize_model(network_of(), world=world, mode="pipeline")(images)
    except Exception as error:
        found["error"] = str(error)
print(json.dumps(found))
"""


def test_calls_as_written_train_under_ddp_and_with_ranks(tmp_path):
    ended = finish(start_ranks(2, [], memory=tmp_path, script=_RUN))
    assert [status for status, _, _ in ended] == [0, 0], ended
    for _, out, _ in ended:
        found = json.loads(out)
        assert found.pop("mode") == "ddp"
        assert "before the optimizer is created: give auto_parallelize_model a sample" in found.pop("error")
        assert max(found.values()) < 1e-4, found
