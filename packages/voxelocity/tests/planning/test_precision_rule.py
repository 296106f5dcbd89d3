from dataclasses import replace

import pytest
import torch

from shared.plan_facts import fingerprint, machine, plan_facts
from voxelocity.core.records import Measured
from voxelocity.planning import precision_rule
from voxelocity.planning.precision_rule import settle_precision
from voxelocity.planning.step_forecast import Forecast
from voxelocity.planning.step_timing import time_steps
from voxelocity_observe.core.interleaved_timing import Times

DATA = fingerprint(channels=("T1", "T2"), class_names=("background", "a", "b"))
CPU = machine()
OLD_CPU = replace(CPU, fast_bfloat16=False)
GPU = replace(CPU, device="cuda", device_name="H100", device_memory_bytes=2**36, device_free_bytes=2**36)


class FakeTimer:
    """Answers with made-up times, and notes what it was asked."""

    def __init__(self, why_not="", **ratios):
        self.ratios, self.why_not, self.asked = {"as planned": 1.0, **ratios}, why_not, []

    def __call__(self, task, ways, *, limit_s):
        self.asked.append((task, dict(ways), limit_s))
        if self.why_not:
            return Times(seconds={}, why_not=self.why_not)
        names = {name.rpartition(".")[2]: name for name in ways}
        spread = (0.98, 1.0, 1.0, 1.0, 1.02)
        found = {
            names.get(short, short): tuple(0.2 * ratio * part for part in spread)
            for short, ratio in self.ratios.items()
        }
        found["as planned"] = (0.2,) * 5
        return Times(seconds=found)


def settled(
    timer,
    on=CPU,
    overrides=None,
    budget_s=0.0,
    kept=None,
    tuned=None,
    patch=(16, 16, 16),
    network="unet",
    regions=(),
    **facts_too,
):
    facts = plan_facts(
        replace(DATA, regions=regions),
        on,
        overrides,
        num_training=8,
        time_budget_s=budget_s,
        kept=kept or {},
        tuned=tuned or {},
        tuned_reasons=dict.fromkeys(tuned or {}, "tuned"),
        time_steps=timer,
        **facts_too,
    )
    facts.settled |= {
        "data": {"patch": {"shape_voxel": list(patch)}, "batch_size": 2},
        "network": {"name": network, "widths": [8, 16], "strides": [[2, 2, 2]]},
        "optimizer": {"name": "adamw", "learning_rate": 1e-3},
    }
    settle_precision(facts)
    return {choice.key: choice for choice in facts.choices}


def test_without_measuring_the_rule_holds_and_says_how_to_measure():
    choice = settled(None)["precision.channels_last"]
    assert (choice.value, choice.measured) == (True, None)
    assert choice.reason == (
        "faster with half-precision convolutions; `voxelocity bench memory-format` measures whole trainings and their "
        "accuracy"
    )
    assert settled(None, OLD_CPU)["precision.channels_last"].value is False


def test_the_other_memory_format_is_taken_where_it_is_clearly_quicker():
    choice = settled(FakeTimer(channels_last=0.7), OLD_CPU)["precision.channels_last"]
    assert choice.value is True
    assert choice.reason == (
        "measured here: a step takes 0.70 times as long (0.69 to 0.71, n = 5; 140 and 200 ms) with channels_last_3d as "
        "with contiguous"
    )
    assert choice.measured == Measured(
        what="channels_last_3d against contiguous",
        ratio=pytest.approx(0.7),
        low=pytest.approx(0.686),
        high=pytest.approx(0.714),
        rounds=5,
        decided=True,
    )
    assert not choice.changes_results
    assert choice.changes_roundings


def test_the_rule_is_upheld_where_its_choice_is_clearly_quicker():
    choice = settled(FakeTimer(channels_last=1.4))["precision.channels_last"]
    assert (choice.value, choice.measured.decided) == (True, True)
    assert choice.reason.startswith(
        "measured here: a step takes 1.40 times as long (1.37 to 1.43, n = 5; 280 and 200 ms)"
    )
    assert choice.reason.endswith("with contiguous as with channels_last_3d")


@pytest.mark.parametrize("machine", [CPU, OLD_CPU])
def test_the_rule_holds_where_there_is_no_clear_difference(machine):
    choice = settled(FakeTimer(channels_last=0.98), machine)["precision.channels_last"]
    assert choice.value is machine.fast_bfloat16
    assert choice.reason.startswith("no clear difference here: a step takes 0.98 times as long (0.96 to 1.00, n = 5;")
    assert "; so the rule holds: " in choice.reason
    assert choice.measured.decided is False


def test_what_could_not_be_measured_is_said():
    choice = settled(FakeTimer("a step takes about 9 s here"))["precision.channels_last"]
    assert choice.value is True
    assert "convolutions; not measured: a step takes about 9 s here; `voxelocity bench memory-format`" in choice.reason


def test_the_number_format_stays_as_the_rule_has_it_whatever_it_takes():
    for ratio in (0.5, 3.0):
        choice = settled(FakeTimer(compute=ratio))["precision.compute"]
        assert choice.value == "bfloat16"
        assert choice.changes_results
        assert choice.measured.ratio == pytest.approx(1.0 / ratio)
        assert (choice.measured.what, choice.measured.decided) == ("bfloat16 against float32", False)
        assert f"measured here: a step takes {1 / ratio:.2f} times as long" in choice.reason
        assert "as in float32 with the same memory format" in choice.reason
        assert choice.reason.endswith("--set precision.compute=float32 turns it off")


def test_there_is_nothing_to_say_of_half_precision_where_float32_is_planned():
    timer = FakeTimer()
    assert settled(timer, OLD_CPU)["precision.compute"].reason == "bfloat16 is not faster on this CPU (docs/log)"
    ((_, ways, _),) = timer.asked
    assert list(ways) == ["as planned", "precision.channels_last"]


def test_a_value_of_the_persons_own_is_neither_measured_nor_replaced():
    timer = FakeTimer(channels_last=0.5)
    choice = settled(timer, overrides={"precision.channels_last": True, "precision.compute": "float32"})
    assert timer.asked == []
    assert choice["precision.channels_last"].reason == "set by you; the rule would have chosen False"
    assert choice["precision.channels_last"].measured is None


def test_a_number_format_of_the_persons_own_is_what_is_measured():
    timer = FakeTimer(channels_last=0.5)
    choices = settled(timer, overrides={"precision.compute": "float32"})
    ((_, ways, _),) = timer.asked
    assert {way.precision.compute for way in ways.values()} == {"float32"}
    assert choices["precision.channels_last"].value is True


def test_a_run_that_continues_keeps_what_it_has_measured():
    timer = FakeTimer(channels_last=0.5)
    choice = settled(timer, kept={"precision.channels_last": True, "backend.cudnn_benchmark": False})
    assert (choice["precision.channels_last"].value, choice["precision.channels_last"].reason) == (
        True,
        "as at the start of the run",
    )
    assert timer.asked == []


def test_a_gpu_also_tries_its_libraries_switches_where_the_user_asks_for_it():
    timer = FakeTimer(channels_last=1.0, cudnn_benchmark=0.8, tf32=1.5)
    choices = settled(timer, GPU, measures_again=True)
    ((_, ways, limit_s),) = timer.asked
    assert limit_s == 6.0
    assert [key for key in ways if key != "as planned"] == [
        "precision.channels_last",
        "backend.cudnn_benchmark",
        "precision.compute",
        "backend.tf32",
    ]
    assert ways["backend.cudnn_benchmark"].backend.cudnn_benchmark
    assert not ways["backend.tf32"].backend.tf32
    tried = choices["backend.cudnn_benchmark"]
    assert tried.value is True
    assert tried.reason.endswith("with algorithms tried as with algorithms guessed")
    assert (tried.changes_results, tried.changes_roundings) == (False, True)


def test_tf32_stays_on_with_its_gain_next_to_it():
    choice = settled(FakeTimer(tf32=0.5), GPU, measures_again=True)["backend.tf32"]
    assert (choice.value, choice.changes_results, choice.measured.decided) == (True, True, False)
    assert choice.measured.ratio == pytest.approx(2.0)
    assert "measured here: a step takes 2.00 times as long" in choice.reason
    assert choice.reason.endswith("--set backend.tf32=false turns it off")
    assert settled(None, GPU)["backend.tf32"].value is True


@pytest.mark.parametrize(
    ("budget_s", "options", "limit_s"),
    [
        (0.0, {}, 3.0 / CPU.num_cpus),
        (60.0, {}, min(0.6, 3.0 / CPU.num_cpus)),
        (1200.0, {}, 2.4),
        (1e5, {}, 3.0),
        (0.0, {"measures_again": True}, 3.0),
    ],
)
def test_measuring_on_a_cpu_takes_three_seconds_of_a_core_or_a_small_share_of_a_time_budget(budget_s, options, limit_s):
    timer = FakeTimer()
    settled(timer, budget_s=budget_s, **options)
    assert timer.asked[0][2] == pytest.approx(limit_s)


def test_a_run_to_a_target_on_a_cpu_takes_what_was_measured_before_and_measures_nothing():
    timer = FakeTimer()
    settled(timer, overrides={"train.target_dice": 0.9})
    assert timer.asked[0][2] == 0.0
    task, ways, _ = timer.asked[0]
    assert time_steps(task, ways, torch.device("cpu"), limit_s=0.0) == Times(
        seconds={}, why_not="the plan reserves no time for it"
    )


def test_channels_come_last_for_dynunet_on_a_cpu_in_float32_too():
    choice = settled(None, OLD_CPU, network="dynunet")["precision.channels_last"]
    assert (choice.value, choice.reason.partition(";")[0]) == (
        True,
        "faster for DynUNet on the CPUs where it was measured (docs/log)",
    )


@pytest.mark.parametrize(
    ("network", "overrides", "value", "reason"),
    [
        ("dynunet", {}, True, "our instance norm keeps it; --set backend.fused_norm=false turns that norm off"),
        ("unet", {}, True, "our instance norm keeps it"),
        ("dynunet", {"network.norm": "batch"}, True, "batch norms keep it"),
        ("segresnet", {"network.norm": "batch"}, True, "batch norms keep it"),
        ("segresnet", {}, True, "our instance norm keeps it"),
        ("dints", {}, False, "torch's instance norms, which dints uses, copy from and to channels_last_3d"),
        ("dynunet", {"backend.fused_norm": False}, False, "and backend.fused_norm is off"),
        ("dynunet", {"precision.compute": "float32"}, False, "torch's default"),
    ],
)
def test_on_a_gpu_channels_come_last_where_the_norm_keeps_them_there(network, overrides, value, reason):
    choice = settled(None, GPU, network=network, overrides=overrides)["precision.channels_last"]
    assert choice.value is value
    assert reason in choice.reason


def test_on_a_gpu_without_triton_instance_norms_keep_channels_first(monkeypatch):
    monkeypatch.setattr(precision_rule, "has_triton", lambda: False)
    choice = settled(None, GPU, network="dynunet")["precision.channels_last"]
    assert choice.value is False
    assert "Triton, for our own, is missing" in choice.reason


def test_the_step_that_is_measured_is_the_planned_one():
    timer = FakeTimer()
    settled(timer, overrides={"network.norm": "batch", "loss.name": "dice", "optimizer.momentum": 0.5})
    ((task, ways, _),) = timer.asked
    assert (task.num_channels, task.num_classes, task.patch_voxel, task.batch_size) == (2, 3, (16, 16, 16), 2)
    assert (task.network.norm, task.loss.name, task.optimizer.momentum) == ("batch", "dice", 0.5)
    assert ways["as planned"].precision.compute == "bfloat16"
    assert ways["as planned"].precision.channels_last


def test_the_measured_step_of_overlapping_classes_has_their_outputs():
    timer = FakeTimer()
    settled(timer, regions=("whole", "core", "enhancing", "edema"))
    ((task, _, _),) = timer.asked
    assert (task.num_classes, task.num_regions, task.num_outputs) == (3, 4, 4)


def test_compiled_code_is_not_made_for_measuring():
    timer = FakeTimer()
    choices = settled(timer, overrides={"precision.compile": "default"})
    assert timer.asked == []
    assert "not measured: each variant would have to be compiled first" in choices["precision.channels_last"].reason


@pytest.mark.parametrize(
    ("overrides", "patch"),
    [({"network.name": "dynunet"}, (16, 16, 16)), ({}, (17, 16, 16))],
)
def test_what_does_not_fit_together_is_left_to_the_check_of_the_plan(overrides, patch):
    timer = FakeTimer()
    choices = settled(timer, patch=patch, overrides=overrides)
    assert timer.asked == []
    assert choices["precision.channels_last"].measured is None


def test_the_step_is_timed_in_the_number_format_that_was_tuned():
    timer = FakeTimer()
    choices = settled(timer, tuned={"precision.compute": "float32"})
    _, ways, _ = timer.asked[0]
    assert ways["as planned"].precision.compute == "float32"
    assert choices["precision.compute"].value == "float32"


def expected(step_s, available_s=float("inf"), **changes):
    return Forecast(step_s=step_s, device_s=step_s, available_s=available_s, **changes)


def test_what_only_informs_is_not_timed_on_a_gpu():
    timer = FakeTimer()
    choices = settled(timer, GPU)
    ((_, ways, limit_s),) = timer.asked
    assert list(ways) == ["as planned", "precision.channels_last"]
    assert limit_s == 0.5
    assert choices["backend.tf32"].measured is None
    assert "voxelocity bench amp" in choices["precision.compute"].reason


@pytest.mark.parametrize(
    ("options", "limit_s"),
    [
        ({"budget_s": 41.0}, 0.0),
        ({"budget_s": 36_000.0}, 0.5),
        ({"overrides": {"train.target_dice": 0.9}}, 0.0),
        ({"forecast": expected(0.004)}, 0.5),
        ({"forecast": expected(0.212)}, 0.0),
        ({"forecast": expected(0.212), "measures_again": True}, 6.0),
    ],
)
def test_a_gpu_takes_what_was_measured_before_where_half_a_second_is_too_long_or_too_short(options, limit_s):
    timer = FakeTimer()
    settled(timer, GPU, **options)
    assert timer.asked[0][2] == limit_s


def test_cudnn_counts_the_steps_of_whichever_ends_the_run_first():
    settings = {"forecast": expected(0.1, 3600.0), "overrides": {"train.steps": 50}}
    choice = settled(None, GPU, **settings)["backend.cudnn_benchmark"]
    assert "in 50 steps" in choice.reason
    assert choice.value is False


@pytest.mark.parametrize(
    ("forecast", "is_on"),
    [
        (expected(0.1, 30.0), False),
        (expected(0.1, 100.0), True),
        (Forecast(step_s=0.02, device_s=0.001, available_s=500.0), False),
        (expected(0.004, 60.0, is_to_target=True), False),
        (None, False),
    ],
)
def test_cudnn_tries_its_algorithms_where_that_saves_more_than_it_takes(forecast, is_on):
    choice = settled(None, GPU, forecast=forecast)["backend.cudnn_benchmark"]
    assert choice.value is is_on
    assert forecast is None or "assumed, not measured" in choice.reason


def test_a_step_on_a_gpu_is_replayed_as_a_graph():
    choice = settled(None, GPU)["precision.step_graph"]
    assert choice.value is True
    assert not choice.changes_results
    assert choice.changes_roundings
    assert "--set precision.step_graph=false" in choice.reason


@pytest.mark.parametrize(
    ("on", "overrides", "network", "fact"),
    [
        (CPU, {}, "unet", "GPU"),
        (replace(GPU, num_ranks=2), {}, "unet", "ranks"),
        (replace(GPU, fast_bfloat16=False), {}, "unet", "float16"),
        (GPU, {"precision.compile": "default"}, "unet", "precision.compile=default"),
        (GPU, {"loss.boundary_weight": 0.01}, "unet", "boundary"),
        (GPU, {}, "custom", "own network"),
    ],
)
def test_a_step_is_not_replayed_where_a_graph_would_not_do_it(on, overrides, network, fact):
    choice = settled(None, on, overrides, network=network)["precision.step_graph"]
    assert choice.value is False
    assert fact in choice.reason


def test_trials_never_record_graphs():
    timer = FakeTimer()
    settled(timer, GPU, {"precision.step_graph": True})
    ((_, ways, _),) = timer.asked
    assert not any(way.precision.step_graph for way in ways.values())
