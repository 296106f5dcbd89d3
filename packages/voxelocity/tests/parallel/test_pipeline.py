"""A network on several ranks, one stage each: the gradients, state and logits of the whole network."""

import json

import pytest
import torch

from shared.ranks import finish, start_ranks
from voxelocity.parallel import Place, World
from voxelocity.parallel.pipeline import PipelineParallelModule
from voxelocity.step import NetworkConfig, build_network
from voxelocity_observe.core.errors import InputError

_RUN = """
import json
import torch
from voxelocity.parallel import join_world
from voxelocity.parallel.pipeline import PipelineParallelModule
from voxelocity.step import LossConfig, NetworkConfig, build_loss, build_network

CPU = torch.device("cpu")
TWOS = [[2, 2, 2]] * 2
NETWORKS = {
    "dynunet": {"name": "dynunet", "widths": [4, 8, 8], "strides": TWOS},
    "unet": {"name": "unet", "widths": [4, 8, 8], "strides": TWOS},
    "segresnet": {"name": "segresnet", "widths": [8, 16, 16], "strides": TWOS},
}

def make(name):
    return build_network(NetworkConfig.parse(NETWORKS[name]), num_channels=1, num_classes=2, seed=3)

def mean_loss(logits, label):
    return torch.nn.functional.cross_entropy(logits.float(), label.long())

whole_loss = build_loss(LossConfig())
numbers = torch.Generator().manual_seed(0)
image = torch.randn(5, 1, 16, 16, 16, generator=numbers)
label = (torch.rand(5, 16, 16, 16, generator=numbers) > 0.7).to(torch.uint8)
found = {}
with join_world() as world:
    for name, schedule, loss in (
        ("dynunet", "gpipe", whole_loss), ("unet", "gpipe", whole_loss), ("segresnet", "gpipe", whole_loss),
        ("dynunet", "1f1b", mean_loss),
    ):
        network = make(name)
        wanted_loss = loss(network(image), label)
        wanted_loss.backward()
        wanted = {key: value.grad for key, value in network.named_parameters()}
        pipeline = PipelineParallelModule(make(name), world, device=CPU, num_microbatches=4, schedule=schedule)
        optimizer = torch.optim.SGD(pipeline.parameters(), lr=1.0)
        before = pipeline.state_dict()
        largest, losses = 0.0, []
        for _ in range(2):
            optimizer.zero_grad()
            losses.append(float(pipeline.make_gradients(image, label, loss)))
        optimizer.step()
        after = pipeline.state_dict()
        scale = max(float(value.abs().max()) for value in wanted.values())
        for key, value in wanted.items():
            largest = max(largest, float((before[key] - after[key] - value).abs().max()) / scale)
        network.load_state_dict(after)
        with torch.no_grad():
            logits = float((network(image) - pipeline(image)).abs().max())
        own = sum(parameter.numel() for parameter in pipeline.parameters())
        pipeline.load_state_dict(before)
        restored = all(torch.equal(value, before[key]) for key, value in pipeline.state_dict().items())
        found[f"{name} {schedule}"] = [
            largest, abs(losses[0] - float(wanted_loss)), abs(losses[1] - losses[0]), logits, own,
            sum(parameter.numel() for parameter in network.parameters()), restored,
            sorted(before) == sorted(network.state_dict()),
        ]
print(json.dumps(found))
"""


def test_a_pipeline_has_the_gradients_state_and_logits_of_the_whole_network(tmp_path):
    ended = finish(start_ranks(2, [], memory=tmp_path, script=_RUN))
    assert [status for status, _, _ in ended] == [0, 0], ended
    results = [json.loads(out) for _, out, _ in ended]
    for name in results[0]:
        first, last = (found[name] for found in results)
        assert first[:4] == last[:4], name
        gradient, loss, again, logits, own, num, is_restored, has_names = first
        assert gradient < 1e-5, (name, gradient)
        assert loss < 1e-5, (name, loss)
        assert again < 1e-6
        assert logits < 1e-4
        assert own + last[4] == num
        assert min(own, last[4]) > 0
        assert is_restored
        assert has_names


def unet(**values):
    config = NetworkConfig.parse({"name": "unet", "widths": [4, 8], "strides": [[2, 2, 2]], **values})
    return build_network(config, num_channels=1, num_classes=2, seed=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_microbatches": 0}, "num_microbatches is 0"),
        ({"cuts": [3]}, r"UNet has 3 segments, which cannot be split at \(3,\) for 2 stages"),
        ({"cuts": []}, "give 1 increasing indices between 1 and 2"),
    ],
)
def test_impossible_pipelines_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        PipelineParallelModule(unet(), World(Place(rank=0, size=2)), device=torch.device("cpu"), **options)


def test_batch_norms_are_refused_with_the_cure():
    with pytest.raises(InputError, match=r"batch norms.*network\.norm=instance"):
        PipelineParallelModule(unet(norm="batch"), World(Place(rank=0, size=2)), device=torch.device("cpu"))
