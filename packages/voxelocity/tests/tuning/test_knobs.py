"""Which keys of a plan are searched, with which values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.tuning.costs import PeakMemory, RunTime
from voxelocity.tuning.dice import candidates
from voxelocity.tuning.knobs import CHANGE_RESULTS, run_knobs
from voxelocity.tuning.trial import TrialOutcome
from voxelocity_observe.core.errors import ConfigError


@pytest.fixture
def on_gpu(planned):
    return replace(planned, machine=replace(planned.machine, device="cuda", num_cpus=8))


def choices(planned, **given):
    return {knob.name: knob.choices for knob in run_knobs(planned, **given)}


def test_nothing_that_changes_results_is_searched_by_speed(planned, on_gpu):
    for plan in (planned, on_gpu):
        assert not choices(plan).keys() & set(CHANGE_RESULTS)


@pytest.mark.parametrize("name", CHANGE_RESULTS)
def test_asking_for_what_changes_results_is_refused_with_the_way_to_do_it(planned, name):
    with pytest.raises(ConfigError, match=rf"{name}.*time-to-dice"):
        run_knobs(planned, names=[name])


def test_knobs_begin_at_the_plan_and_only_window_batches_grow_memory(planned):
    knobs = run_knobs(planned)
    growing = [knob.name for knob in knobs if knob.grows_memory]
    assert growing == ["window.batch_size"]
    default = {knob.name: knob.default for knob in knobs}
    assert default["data.feed.num_threads"] == planned.plan.data.feed.num_threads
    assert default["window.batch_size"] == planned.plan.window.batch_size


def test_a_gpu_has_its_own_settings(planned, on_gpu):
    own = {"backend.cudnn_benchmark", "window.sum_on", "backend.expandable_segments"}
    assert own <= choices(on_gpu).keys()
    assert not own & choices(planned).keys()
    assert 0 not in choices(on_gpu)["data.feed.num_threads"]


def test_what_the_user_has_set_is_not_searched(planned):
    assert "data.feed.num_threads" not in choices(planned, fixed=["data.feed.num_threads"])
    with pytest.raises(ConfigError, match=r"num_threads.*sets it"):
        run_knobs(planned, fixed=["data.feed.num_threads"], names=["data.feed.num_threads"])


def test_one_key_can_be_searched_alone(planned):
    assert choices(planned, names=["precision.channels_last"]) == {"precision.channels_last": (False, True)}
    with pytest.raises(ConfigError, match=r"did you mean 'precision\.channels_last'"):
        run_knobs(planned, names=["precision.channel_last"])


def outcome(rate, validation_s, peak):
    return TrialOutcome(
        kind="finished",
        seconds=1.0,
        peak_host_bytes=peak,
        measurements={"images_per_s": (rate,), "validation_s": (validation_s,)},
    )


def test_the_cost_is_the_time_of_the_run(planned):
    time = RunTime.of(planned)
    assert time.num_images == 6 * planned.plan.data.batch_size
    assert RunTime(num_images=100, num_validations=3)(outcome(10.0, 2.0, 0), None) == pytest.approx(16.0)


def test_memory_counts_only_where_speed_is_kept():
    cost = PeakMemory(time=RunTime(num_images=100, num_validations=0), margin=0.03, on_device=False)
    default = outcome(10.0, 0.0, 1000)
    assert cost(outcome(9.8, 0.0, 500), default) == 500.0
    assert cost(outcome(9.0, 0.0, 500), default) is None


def test_candidates_scale_the_learning_rate_with_the_square_root_of_the_batch(planned):
    plan = planned.plan
    first, *others = candidates(planned)
    assert first == {}
    doubled = next(other for other in others if other.get("data.batch_size") == 2 * plan.data.batch_size)
    assert doubled["optimizer.learning_rate"] == pytest.approx(2**0.5 * plan.optimizer.learning_rate, rel=1e-2)
