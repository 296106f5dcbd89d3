"""Plans on GPUs that are not there: golden files of what cards get for a budget, and that they fit their memory."""

import difflib
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.plan_facts import GIB, fingerprint, machine, plan_facts
from voxelocity.planning import Plan
from voxelocity.planning.memory_rule import LIBRARIES_BYTES, WORKSPACE_BYTES, CountedStep, count_tensors, window_bytes
from voxelocity.planning.rules import RULES
from voxelocity.planning.size_rule import budget_for
from voxelocity.planning.step_forecast import PatchPass, forecast_step_s
from voxelocity_observe.core.environment import CHECKOUT

GOLDEN = CHECKOUT / "tests" / "golden"
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
    statistics, num_training = DATA[data] if isinstance(data, str) else data
    facts = plan_facts(statistics, on, overrides, num_training=num_training, time_budget_s=time_budget_s)
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
    step = CountedStep(
        network=plan.network, loss=plan.loss, optimizer=plan.optimizer, precision=plan.precision, num_outputs=2
    )
    tensors = count_tensors(
        step,
        batch_bcxyz=(plan.data.batch_size, 1, *plan.data.patch.shape_voxel),
        windows_bcxyz=(plan.window.batch_size, 1, *plan.window.shape_voxel),
        device=torch.device("cpu"),
    )
    state = tensors.weights + tensors.gradients + tensors.optimizer + LIBRARIES_BYTES + WORKSPACE_BYTES
    assert state + tensors.activations <= 0.93 * gb * GIB
    keeps_graph = "a CUDA graph of the step" not in reason(facts, "data.batch_size")
    assert state + tensors.windows + (tensors.activations if keeps_graph else 0) <= 0.93 * gb * GIB


def all_window_bytes(facts, plan):
    """What the windows that a validation computes at once take."""
    window = PatchPass(
        network=plan.network, shape_voxel=plan.window.shape_voxel, num_channels=len(facts.data.channels),
        num_outputs=facts.data.num_outputs, is_half=plan.precision.compute != "float32",
    )  # fmt: skip
    return plan.window.batch_size * window_bytes(window)


@st.composite
def data_sets(draw):
    """Statistics of any data set, 2-D and anisotropic ones included, and how many of its cases are trained on."""
    shape = draw(st.tuples(*[st.sampled_from([1.0, 5.0, 35.0, 155.0, 512.0, 1500.0])] * 3))
    spacing = draw(st.tuples(*[st.sampled_from([0.01, 0.5, 1.0, 5.0])] * 3))
    num_cases = draw(st.sampled_from([2, 41, 2000]))
    classes = tuple(f"class {number}" for number in range(draw(st.sampled_from([2, 4, 105]))))
    channels = tuple(f"channel {number}" for number in range(draw(st.sampled_from([1, 4, 60]))))
    crop = draw(st.sampled_from([1.0, 0.3]))
    options = {"class_names": classes, "channels": channels, "num_cases": num_cases, "crop_share": crop}
    return fingerprint(shape, spacing, **options), max(1, int(0.8 * num_cases))


@given(
    data=data_sets(),
    card=st.sampled_from(sorted(CARDS)),
    free_gib=st.sampled_from([7.4, 10.2, 11.2, 14.9, 22.3, 79.2]),
    budget_s=st.sampled_from([0.0, 5.0, 41.0, 600.0, 36_000.0, 259_200.0]),
    num_ranks=st.sampled_from([1, 1, 8]),
)
def test_no_plan_exceeds_the_memory_or_promises_more_steps_than_its_budget_has(
    data, card, free_gib, budget_s, num_ranks
):
    facts, plan = planned(data, card, budget_s, free_gib=free_gib, num_ranks=num_ranks)
    free_bytes, cached = int(free_gib * GIB), plan.data.cache.device_max_bytes
    if "does not fit" not in reason(facts, "data.batch_size"):
        held = facts.planned_bytes if plan.precision.step_graph else 0
        assert cached + max(facts.planned_bytes, held + all_window_bytes(facts, plan)) <= free_bytes
    expected = facts.forecast
    assert 0 <= expected.num_steps * expected.step_s <= budget_s
    assert np.isfinite(plan.data.prepare.spacing_mm).all()
    longer = planned(data, card, 2.0 * budget_s, free_gib=free_gib, num_ranks=num_ranks)[0].forecast
    if budget_s > 0.0 and (budget_s < 300.0 or budget_s >= 600.0) and free_gib == 79.2:
        assert longer.device_s >= expected.device_s * 0.999
    if budget_s and expected.num_steps < 100:
        enough_s = math.ceil(budget_for(facts, 100, expected.step_s))
        cured = planned(data, card, enough_s, free_gib=free_gib, num_ranks=num_ranks)[0]
        assert cured.forecast.num_steps >= 100


def test_windows_are_counted_in_the_shape_that_you_set_and_next_to_a_graph_alone():
    facts, plan = planned(SPLEEN, "RTX 3060 12 GB", overrides={"window.shape_voxel": [192, 192, 192]})
    assert plan.window.batch_size == 1
    assert facts.planned_bytes + all_window_bytes(facts, plan) <= int(11.2 * GIB) or not plan.precision.step_graph
    # Without a graph, a step leaves its memory to the windows.
    _, on_t4 = planned(BRATS, "T4 16 GB")
    assert (on_t4.precision.step_graph, on_t4.window.batch_size) == (False, 4)


def test_a_slice_of_a_card_and_float32_without_tf32_are_slower():
    def seconds(name, is_half=True):
        network = planned(SPLEEN)[1].network
        patch = PatchPass(network=network, shape_voxel=(128, 128, 128), num_channels=1, num_outputs=2, is_half=is_half)
        return forecast_step_s(patch, machine("cuda", device_name=name), batch_size=8)[1]

    whole = seconds("NVIDIA A100-SXM4-40GB")
    assert seconds("NVIDIA A100-SXM4-40GB MIG 2g.10gb") == pytest.approx(whole * 7 / 2)
    assert seconds("NVIDIA A100-SXM4-40GB", is_half=False) < 2.1 * whole
    assert seconds("Tesla T4", is_half=False) > 3.0 * seconds("Tesla T4")
