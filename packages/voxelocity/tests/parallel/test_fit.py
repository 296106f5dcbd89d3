"""Which way a model is distributed, and that each way trains as one process does."""

import json

import pytest
import torch

from shared.ranks import finish, start_ranks
from voxelocity.parallel.auto import auto_parallelize_model
from voxelocity.parallel.fit import decide, decide_in_process
from voxelocity.parallel.footprint import SegmentCost, measure_segments
from voxelocity.parallel.segments import segments_of
from voxelocity_observe.core.errors import InputError

_MB = 1_000_000


def cost(*, parameters_mb=1.0, activations_mb=10.0, seconds=1.0):
    return SegmentCost(
        seconds=seconds,
        parameter_bytes=round(parameters_mb * _MB),
        num_parameters=round(parameters_mb * _MB / 4),
        activation_bytes=round(activations_mb * _MB),
        working_bytes=0,
        output_bytes=round(activations_mb * _MB / 10),
    )


# Of both ranks, for four patches: 16 MB of state (4 bytes of parameters take 16) and 40 of activations.
ALIKE = [[cost()] * 4] * 2


@pytest.mark.parametrize(
    ("limits_mb", "mode", "needed_mb"),
    [
        # 16 of state and half the activations.
        ((36, 36), "ddp", (36, 36)),
        # Half the state, the gathered segment, and half the activations.
        ((30, 35), "fsdp", (30, 30)),
        # The state, half of what crosses segments, and half of the activations of one.
        ((23, 24), "checkpointing", (23, 23)),
    ],
)
def test_the_simplest_way_that_fits_every_rank_is_chosen(limits_mb, mode, needed_mb):
    decision = decide(ALIKE, [limit * _MB for limit in limits_mb], num_patches=4)
    assert decision.mode == mode
    assert decision.predicted_bytes == tuple(need * _MB for need in needed_mb)
    assert decision.reason.startswith(f"{mode}: a step takes")
    assert len(decision.rejected) == ("ddp", "fsdp", "checkpointing").index(mode)
    assert all("on rank 0, which has" in text for text in decision.rejected)


def test_a_pipeline_is_cut_where_the_smaller_device_has_room():
    large = [[cost(parameters_mb=10.0, activations_mb=0.5)] * 6] * 2
    # 40 of state for each segment: four of them on the first rank, two on the second.
    decision = decide(large, [164 * _MB, 82 * _MB], num_patches=2)
    assert (decision.mode, decision.cuts) == ("pipeline", (4,))
    assert decision.predicted_bytes == (162 * _MB, 81 * _MB)
    assert len(decision.rejected) == 3


def test_one_device_computes_again_before_it_gives_up():
    alone = [ALIKE[0]]
    assert decide(alone, [56 * _MB], num_patches=1).mode == "one device"
    assert decide(alone, [55 * _MB], num_patches=1).mode == "checkpointing"
    with pytest.raises(InputError, match=r"4 patches does not fit: one device would take .*; checkpointing would take"):
        decide(alone, [20 * _MB], num_patches=4)
    with pytest.raises(InputError, match="does not fit: pipeline is for several ranks"):
        decide(alone, [90 * _MB], num_patches=1, mode="pipeline")


def test_a_process_uses_its_other_devices_before_it_computes_twice():
    # 16 of state and 40 of activations in four segments; checkpointing takes 30.
    def mode_of(*limits_mb, **options):
        decision = decide_in_process(ALIKE[0], [limit * _MB for limit in limits_mb], num_patches=4, **options)
        return decision.mode, decision.cuts, decision.predicted_bytes

    assert mode_of(56, 10) == ("one device", (), (56 * _MB,))
    assert mode_of(42, 14) == ("pipeline", (3,), (42 * _MB, 14 * _MB))
    assert mode_of(14, 42) == ("pipeline", (1,), (14 * _MB, 42 * _MB))
    assert mode_of(30, 5) == ("checkpointing", (), (30 * _MB,))
    with pytest.raises(
        InputError, match=r"one device would take .* on device 0.*cannot be split.*checkpointing would take"
    ):
        mode_of(29, 5)
    with pytest.raises(InputError, match="ddp is for several ranks or devices"):
        mode_of(90, 90, mode="ddp")


def test_what_is_measured_of_a_segment_is_what_autograd_keeps():
    network = torch.nn.Sequential(torch.nn.Conv3d(1, 2, 3, padding=1), torch.nn.Sigmoid(), torch.nn.Conv3d(2, 1, 1))
    image = torch.randn(1, 1, 8, 8, 8)
    network(image).sum().backward()
    before = [parameter.grad.clone() for parameter in network.parameters()]
    first, middle, last = measure_segments(segments_of(network), image)
    assert (first.parameter_bytes, first.num_parameters) == (4 * 56, 56)
    # The image; its own output; its input.
    assert (first.activation_bytes, middle.activation_bytes, last.activation_bytes) == (2048, 4096, 4096)
    assert (first.output_bytes, last.output_bytes) == (4096, 2048)
    assert all(torch.equal(parameter.grad, old) for parameter, old in zip(network.parameters(), before, strict=True))


def test_a_model_that_fits_stays_as_it_is():
    network = torch.nn.Sequential(torch.nn.Conv3d(1, 2, 3, padding=1), torch.nn.Conv3d(2, 1, 1))
    found = auto_parallelize_model(network, torch.randn(2, 1, 8, 8, 8), devices=[_MB])
    assert found is network
    decision = found.parallel_decision
    assert decision.mode == "one device"
    assert decision.measured_bytes[0] == pytest.approx(decision.predicted_bytes[0], rel=0.35)
    with pytest.raises(InputError, match="2 patches does not fit"):
        auto_parallelize_model(network, torch.randn(2, 1, 8, 8, 8), devices=[10 * _MB], model_size_mb=100.0)


_RUN = """
import json
import torch
from voxelocity.parallel import PipelineParallelModule, auto_parallelize_model, join_world
from voxelocity.step import NetworkConfig, build_network

def make():
    values = {"name": "dynunet", "widths": [8, 16, 32], "strides": [[2, 2, 2]] * 2}
    return build_network(NetworkConfig.parse(values), num_channels=1, num_classes=2, seed=3)

image = torch.randn(4, 1, 16, 16, 16, generator=torch.Generator().manual_seed(0))
label = torch.randint(2, (4, 16, 16, 16), generator=torch.Generator().manual_seed(1))
loss = torch.nn.functional.cross_entropy
whole = make()
loss(whole(image), label).backward()
wanted = {name: value.grad for name, value in whole.named_parameters()}
scale = max(float(value.abs().max()) for value in wanted.values())
found = {}
with join_world() as world:
    part = slice(2 * world.place.rank, 2 * world.place.rank + 2)
    for mode in ("ddp", "fsdp", "checkpointing", "pipeline"):
        model = auto_parallelize_model(
            make(), image, world=world, devices=[10**9, 10**9], mode=mode, num_microbatches=2
        )
        decision = model.parallel_decision
        if isinstance(model, PipelineParallelModule):
            model.make_gradients(image, label, loss)
            by_id = {id(value): name for name, value in model.stage.state_dict(keep_vars=True).items()}
            gradients = {model.names[by_id[id(value)]][0]: value.grad for value in model.parameters()}
        else:
            loss(model(image[part]), label[part]).backward()
            gradients = {
                name.removeprefix("module.").removeprefix("network."): getattr(
                    value.grad, "full_tensor", lambda value=value: value.grad
                )()
                for name, value in model.named_parameters()
            }
        difference = max(float((gradients[name] - wanted[name]).abs().max()) for name in gradients) / scale
        found[mode] = [
            difference, len(gradients), decision.mode, *decision.predicted_bytes, *decision.measured_bytes,
            sum(getattr(value, "to_local", lambda value=value: value)().numel() for value in model.parameters()),
        ]
print(json.dumps(found))
"""


def test_every_way_trains_as_one_process_and_takes_about_what_was_predicted(tmp_path):
    ended = finish(start_ranks(2, [], memory=tmp_path, script=_RUN))
    assert [status for status, _, _ in ended] == [0, 0], ended
    first, last = (json.loads(out) for _, out, _ in ended)
    num_all = first["ddp"][-1]
    for mode, (difference, num_names, chosen, *figures, num_own) in first.items():
        assert chosen == mode
        assert max(difference, last[mode][0]) < 1e-5, (mode, difference)
        predicted, measured = figures[:2], figures[2:]
        assert all(abs(a - b) < 0.35 * b for a, b in zip(predicted, measured, strict=True)), (mode, figures)
        if mode == "pipeline":
            assert num_names + last[mode][1] == first["ddp"][1]
        assert num_own + last[mode][-1] == (2 if mode in ("ddp", "checkpointing") else 1) * num_all, mode
