"""Requests: checked when they are made, with errors that name what was written."""

from __future__ import annotations

import inspect
import pickle
import typing
from dataclasses import replace
from pathlib import Path

import pytest

import voxelocity
from voxelocity.core.requests.evaluate import EvaluateOptions, EvaluateRequest
from voxelocity.core.requests.plan import PlanOptions, PlanRequest, RunPlanOptions, RunPlanRequest, plan_request
from voxelocity.core.requests.predict import PredictOptions, PredictRequest
from voxelocity.core.requests.train import FoldsOptions, TrainOptions, TrainRequest
from voxelocity.core.requests.tune import CustomizeOptions, CustomizeRequest, TuneOptions, TuneRequest
from voxelocity.data.pipeline.feed_request import FeedOptions, FeedRequest
from voxelocity.infer.files import PredictionHooks, PredictionOptions
from voxelocity.training.entry import RunOptions
from voxelocity.training.folds import FoldsCallOptions
from voxelocity.training.open_session import RunContext
from voxelocity.tuning.tune import TuneContext, TuningOptions
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.request import request_fields


def test_a_switch_of_other_programs_is_a_key_of_the_plan_in_its_own_words():
    assert PlanRequest(overrides={"amp": False, "seed": 3}).overrides == {"seed": 3, "precision.compute": "float32"}
    assert PlanRequest(overrides={"amp": True}).overrides == {"precision.compute": "auto"}
    with pytest.raises(ConfigError, match=r"amp is 'on'; write amp=true for precision.compute=auto, amp=false for"):
        PlanRequest(overrides={"amp": "on"})
    with pytest.raises(ConfigError, match=r"amp and precision\.compute set the same"):
        PlanRequest(overrides={"amp": True, "precision.compute": "float16"})


KEYWORDS = {
    PlanRequest: (PlanOptions, set()),
    RunPlanRequest: (RunPlanOptions, set()),
    TrainRequest: (TrainOptions, {"out", "folds"}),
    TuneRequest: (TuneOptions, {"out"}),
    CustomizeRequest: (CustomizeOptions, {"work_dir", "algos", "specs"}),
    PredictRequest: (PredictOptions, {"models", "inputs", "out"}),
    EvaluateRequest: (EvaluateOptions, {"predictions", "truth"}),
    FeedRequest: (FeedOptions, set()),
}
"""The keywords of the functions in Python, and what these functions name themselves."""


@pytest.mark.parametrize(
    ("request_class", "keywords"), KEYWORDS.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_a_call_takes_every_field_of_its_request_and_nothing_else(request_class, keywords):
    options, named = keywords
    fields = {name: known for name, known in request_fields(request_class).items() if name != "origin"}
    short = {known.short_name for known in fields.values() if known.option is not None}
    taken = set(typing.get_type_hints(options))
    assert taken >= fields.keys() - named
    assert taken <= fields.keys() | short


@pytest.mark.parametrize(
    ("options", "context", "refused"),
    [
        (RunOptions, RunContext, set()),
        (FoldsCallOptions, RunContext, {"clock", "stop", "sinks", "shared"}),
        (TuningOptions, TuneContext, set()),
        (PredictionOptions, PredictionHooks, set()),
    ],
)
def test_a_call_takes_what_programs_hand_over(options, context, refused):
    handed_over = request_fields(context).keys()
    assert typing.get_type_hints(options).keys() & handed_over == handed_over - refused
    assert not [name for name, known in request_fields(context).items() if not known.text]


def test_folds_take_what_a_training_takes_and_which_they_are():
    taken = typing.get_type_hints(FoldsOptions).keys() - {"folds"}
    assert taken == typing.get_type_hints(TrainOptions).keys() - {"resume"}


@pytest.mark.parametrize("request_class", KEYWORDS, ids=lambda value: value.__name__)
def test_every_field_has_a_text(request_class):
    assert [name for name, known in request_fields(request_class).items() if not known.text] == ["origin"]


def test_a_value_that_is_out_of_range_is_named_as_it_was_written():
    for given, said in (
        ({"seed": -1}, "vx.train(seed=-1): give a whole number from 0"),
        ({"time_budget": "soon"}, "vx.train(time_budget='soon'): 'soon' is not a duration; write it like 90s, 5m"),
        ({"resume": True, "overwrite": True}, "vx.train(resume=True, overwrite=True): the first keeps"),
        ({"fold": 1, "folds": [0, 2]}, "vx.train(fold=1, folds=[0, 2]): the first trains one fold"),
        ({"sed": 1}, "vx.train(sed=...): there is no such option; did you mean 'seed'?"),
        ({"origin": None}, "vx.train(origin=...): there is no such option"),
    ):
        with pytest.raises(ConfigError) as error:
            TrainRequest.of_call(given, out="run")
        assert str(error.value).startswith(said)
    with pytest.raises(ConfigError, match=r"^TuneRequest\(goal='speed'\): .*choose throughput, memory or time-to-dice"):
        TuneRequest(out=Path("tune"), goal="speed")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"only": ("learning-rate", "data.feed.num_threads")}, "search data.feed.num_threads in another call"),
        ({"only": ("learning-rate",), "train_s": 1.0}, r"\(train_s=1\.0, only=\('learning-rate',\)\): a range test"),
        ({"goal": "time-to-dice", "fold": "all"}, r"\(fold='all', goal='time-to-dice'\): a Dice of cases that were"),
        ({"goal": "time-to-dice", "train_s": 1.0}, r"\(train_s=1\.0, goal='time-to-dice'\): curves"),
        ({"goal": "time-to-dice", "only": ("data.batch_size",)}, "single keys are searched only by speed or memory"),
        ({"memory_limit_bytes": -1}, "must be above 0; write it as in 8GB"),
    ],
)
def test_goals_of_a_tuning_that_exclude_each_other_are_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        TuneRequest.of_call(given, out="tune")


def test_a_text_stands_for_a_value_under_the_name_that_the_command_line_has():
    request = TuneRequest.of_call({"time_budget": "5m", "memory_limit": "2GB"}, out="tune")
    assert (request.time_budget_s, request.memory_limit_bytes, request.out) == (300.0, 2 * 10**9, Path("tune"))
    assert TuneRequest.of_call({"time_budget": 90}, out="tune").time_budget_s == 90


def test_values_are_kept_in_one_form():
    request = PredictRequest(models="run", inputs=["a", Path("b")], out="out")
    assert (request.models, request.inputs, request.out) == ((Path("run"),), (Path("a"), Path("b")), Path("out"))
    assert PlanRequest(overrides=None).overrides == {}
    assert TrainRequest(out="run", folds=[1, 0], log=["wandb"]).folds == (1, 0)


def test_a_changed_request_is_checked_again_and_knows_what_was_written():
    request = TrainRequest.of_call({"seed": 3}, out="run")
    assert request.is_given("seed")
    assert not request.is_given("fold")
    assert replace(request, resume=True).spelled("seed") == "seed=3"
    with pytest.raises(ConfigError, match="give one of them"):
        replace(request, resume=True, overwrite=True)
    assert plan_request(request) == PlanRequest(seed=3)


def test_a_request_travels_to_other_processes():
    request = TrainRequest.of_call({"overrides": {"train.steps": 3}, "time_budget": "5m"}, out="run")
    again = pickle.loads(pickle.dumps(request))
    assert again == request
    assert again.origin == request.origin


def test_help_in_python_lists_every_option_with_its_text():
    parameters = inspect.signature(voxelocity.train).parameters
    assert list(parameters)[:3] == ["cases", "out", "fold"]
    assert parameters["device"].default == "auto"
    assert {"console", "sinks", "start_from"} <= parameters.keys()
    assert not {"origin", "folds", "options"} & parameters.keys()
    text = inspect.getdoc(voxelocity.train)
    assert "\n    seed: Seed of weights, order, patches and augmentation." in text
    assert "\nRaises:\n" in text


@pytest.mark.parametrize("name", ["train", "train_folds", "plan", "predict", "evaluate", "tune"])
def test_help_in_python_shows_no_address_of_a_callback(name):
    assert "<" not in str(inspect.signature(getattr(voxelocity, name)))
