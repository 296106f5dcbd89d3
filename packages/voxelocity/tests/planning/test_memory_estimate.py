"""The memory of a run, part by part. `benchmarks/memory_estimate.py` compares it with what runs take."""

import json
from dataclasses import replace

import pytest
import torch

import voxelocity as vx
from voxelocity.planning import memory_estimate
from voxelocity.planning.memory_estimate import PARTS, LibraryMemory, estimate_memory, memory_document
from voxelocity.training import library_memory
from voxelocity_observe.core.errors import ConfigError

MIB = 2**20
LIBRARIES = LibraryMemory(preparing_bytes=200 * MIB, training_bytes=300 * MIB)
VOXELS = 20 * 22 * 18


@pytest.fixture(scope="module")
def planned(tiny_msd, tiny_plan, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    keys = {**tiny_plan, "planner.measure": "never"}
    return vx.plan(vx.open(tiny_msd), overrides=keys, cache_folder=cache, device="cpu")


@pytest.fixture(scope="module")
def host(planned):
    return estimate_memory(planned, LIBRARIES).host


def what_if(planned, **keys):
    return estimate_memory(planned, LIBRARIES, keys={name.replace("__", "."): keys[name] for name in keys}).host


def test_every_part_has_its_bytes(planned, host):
    training, validation = host["training"], host["validation"]
    assert [*training] == [part for part in PARTS if part != "window stitching"]
    assert [*validation] == [*PARTS]
    # Six cases of float32 stored in two bytes, with a label each.
    assert training["cache"] == 6 * VOXELS * 3
    assert training["feed"] == (planned.plan.data.feed.num_batches_ahead + 1) * 2 * 16**3 * 5
    assert training["gradients"] == training["weights"]
    assert host["preparing"]["libraries"] == 200 * MIB
    # The sum of three classes' logits, for padding that none of the axes needs.
    assert validation["window stitching"] > 4 * 3 * VOXELS


def test_batch_patch_and_classes_change_their_parts_alone(planned, host):
    batch = what_if(planned, data__batch_size=4)["training"]
    assert batch["feed"] == 2 * host["training"]["feed"]
    assert batch["activations"] > 1.8 * host["training"]["activations"]
    assert batch["weights"] == host["training"]["weights"]
    classes = what_if(planned, classes=30)
    assert classes["training"]["activations"] > 3 * host["training"]["activations"]
    assert classes["validation"]["window stitching"] > 3 * host["validation"]["window stitching"]
    # Labels of more than 256 classes take two bytes in a cache and four in a batch.
    wide = what_if(planned, classes=300)["training"]
    assert wide["cache"] == 6 * VOXELS * 4
    assert wide["feed"] == host["training"]["feed"] // 5 * 8
    patch = what_if(planned, data__patch__shape_voxel="8 x 8 x 8")
    assert patch["training"]["feed"] == host["training"]["feed"] // 8
    # Windows have the shape of patches.
    assert patch["validation"]["activations"] < host["validation"]["activations"]
    windows = what_if(planned, window__batch_size=1)["validation"]
    assert windows["activations"] < host["validation"]["activations"]


def test_where_cases_are_kept_decides_what_they_take(planned, host):
    by_tier = {
        tier: what_if(planned, data__cache__tier=tier, data__cache__format=form)["training"]
        for tier, form in (("disk", "raw"), ("lmdb", "blosc2"), ("none", "raw"))
    }
    assert by_tier["disk"]["cache"] == host["training"]["cache"]
    assert "cache" not in by_tier["lmdb"]
    # The feed prepares them itself.
    assert by_tier["none"]["feed"] > host["training"]["feed"] + VOXELS


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"data.batchsize": 2}, "data.batch_size"),
        ({"data.batch_size": 0}, "batch_size"),
        ({"data.patch.shape_voxel": [9, 8, 8]}, "multiple of"),
        ({"classes": 1}, "whole number from 2"),
        ({"classes": "many"}, "'many' cannot be a number of outputs"),
    ],
)
def test_what_cannot_be_is_refused_with_its_cure(planned, keys, words):
    with pytest.raises(ConfigError, match=words):
        estimate_memory(planned, LIBRARIES, keys=keys)


def test_a_gpu_has_the_tensors_and_main_memory_the_rest(planned, monkeypatch):
    count = memory_estimate.count_tensors
    monkeypatch.setattr(
        memory_estimate,
        "count_tensors",
        lambda *args, device, **kwargs: count(*args, device=torch.device("cpu"), **kwargs),
    )
    gpu = replace(planned, machine=replace(planned.machine, device="cuda", device_index=0))
    estimate = estimate_memory(gpu, LIBRARIES)
    assert "activations" in estimate.device["training"]
    assert "activations" not in estimate.host["training"]
    assert "window stitching" in estimate.device["validation"]
    assert estimate.peak_bytes("device") > estimate.device["training"]["weights"]
    document = memory_document({"As planned": estimate}, free={"host": 2**30, "device": 2**31})
    assert [section.title for section in document.sections] == ["Main memory", "Memory of the GPU"]


def test_a_gpu_has_a_loss_of_kernels_and_keeps_recorded_steps_during_a_validation(planned, monkeypatch):
    count, asked = memory_estimate.count_tensors, []

    def counted(step, *, device, **shapes):
        asked.append(step.has_fused_loss)
        return count(step, device=torch.device("cpu"), **shapes)

    monkeypatch.setattr(memory_estimate, "count_tensors", counted)
    machine = replace(planned.machine, device="cuda", device_index=0, has_triton=True, device_memory_bytes=2**34)
    gpu = replace(planned, machine=machine)

    def on(changed, **keys):
        plain = {key.replace("__", "."): value for key, value in keys.items()}
        return estimate_memory(changed, LIBRARIES, keys=plain).device

    eager, fused = on(gpu, backend__fused_loss=False), on(gpu)
    assert asked == [False, True]
    assert fused["training"]["activations"] < eager["training"]["activations"]
    on(gpu, loss__boundary_weight=0.1)
    on(replace(planned, machine=replace(machine, has_triton=False)))
    assert asked[2:] == [False, False]
    recorded = on(gpu, precision__step_graph=True)
    kept = recorded["validation"]["activations"] - fused["validation"]["activations"]
    assert kept == recorded["training"]["activations"]
    # They are dropped for a validation where they hold a large part of the memory.
    small = replace(planned, machine=replace(machine, device_memory_bytes=2 * kept))
    assert on(small, precision__step_graph=True)["validation"] == fused["validation"]


def test_the_command_prints_the_memory_and_what_would_change_it(voxelocity, tiny_msd, tiny_sets, monkeypatch):
    monkeypatch.setattr(library_memory, "measure_libraries", lambda planned: LIBRARIES)
    command = ("plan", tiny_msd, "--device", "cpu", "--memory", *tiny_sets)
    more = ("--what-if", "data.batch_size=8", "--what-if", "classes=20; window.batch_size=1")
    ended = voxelocity(*command, *more, "--json")
    assert ended.status == 0, ended.err
    memory = json.loads(ended.out)["memory"]
    plain, batch, classes = memory["estimates"].values()
    assert batch["host_peak_bytes"] > plain["host_peak_bytes"]
    assert classes["host"]["training"]["activations"] > plain["host"]["training"]["activations"]
    shown = " ".join(voxelocity(*command, *more).out.split())
    assert all(words in shown for words in ("window stitching", "With data.batch_size=8", "are free"))
    refused = voxelocity(*command, "--what-if", "data.batch_sise=8")
    assert refused.status == 2
    assert "data.batch_size" in refused.err
    refused = voxelocity(*command, "--what-if", "classes")
    assert "--what-if 'classes' has no '='; write --what-if key=value" in refused.err
