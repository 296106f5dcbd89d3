"""Plans on GPUs that are not there: golden files of what cards get for a budget, and that they fit their memory."""

import difflib
import math
import os
from pathlib import Path

import pytest
import torch

from shared.plan_facts import GIB, fingerprint, machine
from voxelocity.planning import Plan
from voxelocity.planning.facts import PlanFacts, Request
from voxelocity.planning.memory_rule import LIBRARIES_BYTES, WORKSPACE_BYTES, count_tensors
from voxelocity.planning.rules import RULES

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CARDS = {
    "H100 80 GB": ("NVIDIA H100 80GB HBM3", 79.2, 16),
    "A100 40 GB": ("NVIDIA A100-SXM4-40GB", 39.0, 16),
    "RTX 4090 24 GB": ("NVIDIA GeForce RTX 4090", 23.0, 16),
    "RTX 3060 12 GB": ("NVIDIA GeForce RTX 3060", 11.2, 8),
    "T4 16 GB": ("Tesla T4", 14.5, 4),
}
DATA = {
    "spleen-like CT, 41 scans of 512x512x100": (
        fingerprint((512.0, 512.0, 100.0), (0.8, 0.8, 5.0), channels=("CT",), num_cases=41),
        33,
    ),
    "BraTS-like, 484 cases of 240x240x155": (
        fingerprint(
            (240.0, 240.0, 155.0),
            channels=("FLAIR", "T1", "T1Gd", "T2"),
            class_names=("background", "edema", "core", "enhancing"),
            num_cases=484,
            crop_share=0.36,
        ),
        388,
    ),
    "hippocampus, 260 cases of 35x50x36": (
        fingerprint(class_names=("background", "anterior", "posterior"), num_cases=260),
        166,
    ),
}
BUDGETS = {"41 s": 41.0, "10 min": 600.0, "10 h": 36_000.0}
SPLEEN, BRATS, HIPPOCAMPUS = DATA
SMALL_GB = (8, 11, 12, 16, 24)


def planned(data, card="H100 80 GB", time_budget_s=0.0, overrides=None, free_gib=None, **changes):
    name, card_gib, num_cpus = CARDS[card]
    free_bytes = int((free_gib or card_gib) * GIB)
    on = machine(
        "cuda",
        device_name=name,
        device_memory_bytes=free_bytes,
        device_free_bytes=free_bytes,
        fast_bfloat16=name != "Tesla T4",
        num_cpus=num_cpus,
        memory_bytes=128 * GIB,
        **changes,
    )
    statistics, num_training = DATA[data]
    request = Request(num_training=num_training, time_budget_s=time_budget_s, seed=0, cache_folder="cache")
    facts = PlanFacts(data=statistics, machine=on, request=request, overrides=overrides or {})
    for rule in RULES:
        rule(facts)
    return facts, Plan.parse(facts.settled)


def reason(facts, key):
    (found,) = [choice.reason for choice in facts.choices if choice.key == key]
    return found


def line(name, facts, plan):
    """What a plan does, in a line."""
    network = plan.network
    shape = "x".join(map(str, plan.data.patch.shape_voxel))
    spacing = "x".join(f"{mm:.3g}" for mm in plan.data.prepare.spacing_mm)
    parts = [
        f"{plan.data.batch_size} of {shape} at {spacing} mm",
        f"widths {' '.join(map(str, network.widths))}"
        + (f" behind a stem {'x'.join(map(str, network.stem_stride))}" if math.prod(network.stem_stride) > 1 else ""),
        f"{plan.precision.compute}, {plan.optimizer.name} {plan.optimizer.learning_rate:g}",
        f"cuDNN {'tries' if plan.backend.cudnn_benchmark else 'guesses'}",
        f"windows {plan.window.batch_size}",
        f"{facts.planned_bytes / GIB:.1f} GiB beside {plan.data.cache.device_max_bytes / GIB:.1f} of cases",
    ]
    if facts.forecast.num_steps:
        parts.append(f"{facts.forecast.num_steps:,} steps of {1000 * facts.forecast.step_s:.0f} ms")
    parts.append("given up: " + (reason(facts, "data.batch_size").partition("given up for memory: ")[2] or "nothing"))
    return f"{name}: {'; '.join(parts)}"


def assert_golden(lines, name):
    """As `golden/NAME.txt` says; with UPDATE_GOLDEN=1 that file is written instead."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    changes = list(
        difflib.unified_diff(path.read_text("utf-8").splitlines(), lines, str(path), "now", lineterm="", n=0)
    )
    assert not changes, "\n".join([*changes, "If this is meant, UPDATE_GOLDEN=1 takes it over."])


def test_plans_of_cards_and_budgets_are_as_the_golden_file_says():
    lines = []
    for data in DATA:
        for budget, seconds in BUDGETS.items():
            lines.append(f"{data}, {budget}")
            lines += [line(card, *planned(data, card, seconds)) for card in CARDS]
    assert_golden(lines, "plans-gpu")


def test_plans_to_a_target_are_as_the_golden_file_says():
    lines = []
    for data in DATA:
        lines.append(data)
        lines += [line(card, *planned(data, card, overrides={"train.target_dice": 0.86})) for card in CARDS]
    assert_golden(lines, "plans-gpu-target")


def test_plans_of_small_cards_are_as_the_golden_file_says():
    lines = []
    for data in DATA:
        lines.append(f"{data}, no budget")
        lines += [line(f"{gb} GB", *planned(data, "RTX 3060 12 GB", free_gib=0.93 * gb)) for gb in SMALL_GB]
    assert_golden(lines, "plans-gpu-small")


def test_a_short_budget_gets_the_steps_of_monais_fast_tutorial_on_an_h100():
    facts, plan = planned(SPLEEN, time_budget_s=41.0)
    assert facts.forecast.num_steps >= 750
    assert 0.6 * 96**3 <= math.prod(plan.data.patch.shape_voxel) <= 1.2 * 96**3
    assert plan.data.batch_size == 8
    assert plan.data.prepare.spacing_mm[0] == pytest.approx(1.5, abs=0.1)
    assert f"about {facts.forecast.num_steps:,}, " in reason(facts, "train.steps")
    assert "epochs in 28 s" in reason(facts, "train.steps")


@pytest.mark.parametrize("budget_s", [600.0, 36_000.0, 0.0])
def test_a_long_budget_gets_nnunets_sizes_on_an_h100(budget_s):
    for data in (SPLEEN, BRATS):
        _, plan = planned(data, time_budget_s=budget_s)
        assert math.prod(plan.data.patch.shape_voxel) > 0.85 * 128**3
        assert (plan.network.widths[-1], plan.network.stem_stride, plan.data.batch_size) == (320, (1, 1, 1), 8)
        assert plan.optimizer.name == "adamw"


def test_more_time_never_gives_a_smaller_step():
    for data in DATA:
        for card in CARDS:
            costs = [planned(data, card, seconds)[0].forecast.device_s for seconds in (20, 41, 120, 300)]
            assert costs == sorted(costs), (data, card)


def test_small_data_get_the_same_step_with_and_without_a_target_on_an_h100():
    (_, to_target), (_, usual) = (planned(HIPPOCAMPUS, overrides=keys) for keys in ({"train.target_dice": 0.86}, {}))
    assert to_target.network == usual.network
    assert to_target.data.patch == usual.data.patch
    assert to_target.data.batch_size == usual.data.batch_size == 8
    assert to_target.train.validation_share > usual.train.validation_share


def test_muon_trains_runs_of_few_steps_on_a_gpu_unless_their_loss_is_scaled():
    names = {
        seconds: planned(HIPPOCAMPUS, time_budget_s=seconds)[1].optimizer.name for seconds in (41.0, 90.0, 120.0, 0.0)
    }
    assert names == {41.0: "muon", 90.0: "adamw", 120.0: "adamw", 0.0: "adamw"}
    assert planned(HIPPOCAMPUS, "T4 16 GB", 41.0)[1].optimizer.name == "adamw"
    assert planned(HIPPOCAMPUS, time_budget_s=41.0, overrides={"train.target_dice": 0.9})[1].optimizer.name == "adamw"


@pytest.mark.parametrize(("num_ranks", "batch", "factor"), [(1, 8, 1.0), (2, 16, 1.414), (8, 64, 2.0)])
def test_each_rank_brings_its_patches_and_the_learning_rate_follows(num_ranks, batch, factor):
    facts, plan = planned(BRATS, num_ranks=num_ranks)
    assert plan.data.batch_size == batch
    assert plan.optimizer.learning_rate == pytest.approx(4e-3 * factor)
    assert ("square root of the batch" in reason(facts, "optimizer.learning_rate")) == (num_ranks > 1)
    _, alone = planned(BRATS)
    assert plan.train.steps * batch == pytest.approx(alone.train.steps * 8, rel=0.01)


def test_a_batch_of_many_ranks_holds_no_case_twice():
    assert planned(SPLEEN, num_ranks=8)[1].data.batch_size == 33


@pytest.mark.parametrize("keys", [{"network.name": "unet"}, {"network.stem_stride": [1, 1, 1]}])
def test_keys_of_your_own_leave_out_the_stem_and_the_step_still_suits_the_time(keys):
    facts, plan = planned(SPLEEN, time_budget_s=41.0, overrides=keys)
    assert plan.network.stem_stride == (1, 1, 1)
    assert facts.forecast.num_steps >= 750


@pytest.mark.parametrize("gb", SMALL_GB)
def test_a_step_on_a_small_card_fits_by_the_count_of_its_tensors(gb):
    facts, plan = planned(SPLEEN, "RTX 3060 12 GB", free_gib=0.93 * gb)
    tensors = count_tensors(
        plan.network,
        plan.loss,
        plan.optimizer,
        plan.precision,
        batch_bcxyz=(plan.data.batch_size, 1, *plan.data.patch.shape_voxel),
        windows_bcxyz=(plan.window.batch_size, 1, *plan.window.shape_voxel),
        num_outputs=2,
        device=torch.device("cpu"),
    )
    state = tensors.weights + tensors.gradients + tensors.optimizer + LIBRARIES_BYTES + WORKSPACE_BYTES
    assert state + tensors.activations <= 0.93 * gb * GIB
    keeps_graph = "a CUDA graph of the step" not in reason(facts, "data.batch_size")
    assert state + tensors.windows + (tensors.activations if keeps_graph else 0) <= 0.93 * gb * GIB
