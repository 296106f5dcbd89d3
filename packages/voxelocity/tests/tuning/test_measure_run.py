"""The process of a trial, in this process: figures of a tiny training and its validation."""

from __future__ import annotations

import json
import pickle

import pytest

from voxelocity.core.batch import ImageFormat
from voxelocity.planning import model_spec
from voxelocity.planning.config import plan_with
from voxelocity.step import image_format
from voxelocity.tuning import measure_run
from voxelocity.tuning.learning_rate import measure as measure_rates
from voxelocity.tuning.task import MeasureTask, TrialScale, measure_task
from voxelocity_observe.core.errors import ConfigError


@pytest.fixture(scope="module")
def task(planned):
    return measure_task(planned, TrialScale(window_s=0.01, num_windows=2, num_cases=2, validation_s=60.0))


@pytest.fixture(autouse=True, scope="module")
def _no_warm_up():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure_run, "_WARM_UP_S", 0.0)
        yield


def test_a_trial_measures_the_feed_the_validation_and_the_memory(task, tmp_path):
    measure_run.measure(task, tmp_path / "answer")
    answer = json.loads((tmp_path / "answer").read_text())
    measured = answer["measurements"]
    assert len(measured["images_per_s"]) == len(measured["wait_share"]) == 2
    assert all(rate > 0.0 for rate in measured["images_per_s"])
    assert all(0.0 <= share <= 1.0 for share in measured["wait_share"])
    assert len(measured["validation_s"]) == 3
    assert answer["about"]["validated_share"] == 1.0
    assert answer["peak_host_bytes"] > 2**20
    # Two of four training cases and one of two others are prepared: three are left out, which a run keeps in memory.
    assert answer["about"]["unseen_host_bytes"] == task.rest_bytes > 3 * 20 * 22 * 18


def test_a_validation_that_takes_too_long_is_estimated_from_its_share(planned, tmp_path):
    scale = TrialScale(window_s=0.01, num_windows=1, num_cases=1, validation_s=1e-6)
    keys = {"window.batch_size": 1, "data.cache.tier": "disk"}
    one_by_one = measure_task(planned, scale).with_keys(keys, device_limit_bytes=0)
    measure_run.measure(one_by_one, tmp_path / "answer")
    answer = json.loads((tmp_path / "answer").read_text())
    assert 0.0 < answer["about"]["validated_share"] < 1.0
    assert len(answer["measurements"]["validation_s"]) == 1
    assert answer["about"]["unseen_host_bytes"] == 0, "cases on disk take no memory"


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


def test_trials_take_images_in_the_format_of_the_training(task, monkeypatch):
    asked = []
    monkeypatch.setattr(measure_run, "Feed", lambda *_, **given: asked.append(given["image_format"]))
    keys = {"precision.channels_last": True, "precision.compute": "bfloat16"}
    half = task.with_keys(keys, device_limit_bytes=0)
    plan = half.planned.plan
    measure_run.open_feed(half, [], model_spec(half.planned))
    assert asked == [image_format(plan.network, plan.precision, num_channels=1)]
    assert asked == [ImageFormat(dtype="bfloat16", channels_last=True)]


def test_a_range_test_has_a_loss_for_each_rate(task, tmp_path):
    measure_rates(task, tmp_path / "answer", num_steps=12)
    measured = json.loads((tmp_path / "answer").read_text())["measurements"]
    assert len(measured["learning_rate"]) == len(measured["loss"]) >= 4
    assert measured["learning_rate"][0] == 1e-6
