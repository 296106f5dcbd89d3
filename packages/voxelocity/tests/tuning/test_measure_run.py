"""The process of a trial, in this process: figures of a tiny training and its validation."""

from __future__ import annotations

import json
import pickle

import pytest

from voxelocity.planning.config import plan_with
from voxelocity.tuning.learning_rate import measure as measure_rates
from voxelocity.tuning.measure_run import measure
from voxelocity.tuning.task import MeasureTask
from voxelocity.tuning.tune import TrialScale, measure_task
from voxelocity_observe.core.errors import ConfigError


@pytest.fixture
def task(planned):
    return measure_task(planned, TrialScale(window_s=0.01, num_windows=2, num_cases=2, validation_s=60.0))


def answer_of(task, tmp_path):
    measure(task, tmp_path / "answer")
    return json.loads((tmp_path / "answer").read_text())


def test_a_trial_measures_the_feed_the_validation_and_the_memory(task, tmp_path):
    answer = answer_of(task, tmp_path)
    measured = answer["measurements"]
    assert len(measured["images_per_s"]) == len(measured["wait_share"]) == 2
    assert all(rate > 0.0 for rate in measured["images_per_s"])
    assert all(0.0 <= share <= 1.0 for share in measured["wait_share"])
    assert len(measured["validation_s"]) == 3
    assert answer["about"]["validated_share"] == 1.0
    assert answer["peak_host_bytes"] > 2**20


def test_cases_that_a_trial_leaves_out_count_where_a_run_keeps_them_in_memory(task, tmp_path):
    # Two of four training cases and one of two others are prepared: three are left out.
    in_memory = answer_of(task, tmp_path)["about"]["unseen_host_bytes"]
    assert in_memory == task.rest_bytes > 3 * 20 * 22 * 18
    on_disk = task.with_keys({"data.cache.tier": "disk"}, device_limit_bytes=0)
    assert answer_of(on_disk, tmp_path)["about"]["unseen_host_bytes"] == 0


def test_a_validation_that_takes_too_long_is_estimated_from_its_share(planned, tmp_path):
    scale = TrialScale(window_s=0.01, num_windows=1, num_cases=1, validation_s=1e-6)
    one_by_one = measure_task(planned, scale).with_keys({"window.batch_size": 1}, device_limit_bytes=0)
    answer = answer_of(one_by_one, tmp_path)
    assert 0.0 < answer["about"]["validated_share"] < 1.0
    assert len(answer["measurements"]["validation_s"]) == 1


def test_the_largest_case_of_the_validation_is_measured(planned, task):
    held = {ref.case_id for ref in planned.cases.split(0).validation}
    assert task.validated.case_id in held
    assert len(task.training) == 2
    assert not held & {ref.case_id for ref in task.training}


def test_a_task_reaches_another_process(task, tmp_path):
    task.write(tmp_path / "task")
    assert MeasureTask.read(tmp_path / "task") == task
    assert pickle.loads((tmp_path / "task").read_bytes()).planned.plan == task.planned.plan


def test_keys_that_do_not_fit_the_plan_are_refused(planned):
    assert plan_with(planned.plan, {"data.batch_size": 7}, where="tune").data.batch_size == 7
    with pytest.raises(ConfigError, match="batch_size"):
        plan_with(planned.plan, {"data.batch_size": 0}, where="tune")


def test_a_range_test_has_a_loss_for_each_rate(task, tmp_path):
    measure_rates(task, tmp_path / "answer", num_steps=12)
    measured = json.loads((tmp_path / "answer").read_text())["measurements"]
    assert len(measured["learning_rate"]) == len(measured["loss"]) >= 4
    assert measured["learning_rate"][0] == 1e-6
