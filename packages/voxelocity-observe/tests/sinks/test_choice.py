import importlib.util
import os

import pytest

from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.sinks import TRACKERS, choose_sinks

PACKAGES = {name: tracker.package for name, tracker in TRACKERS.items() if tracker.package}


@pytest.fixture
def installed(monkeypatch):
    """Makes packages look installed, or not."""
    names = set(PACKAGES.values())
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: find("json") if name in names else None)
    return names


def test_sinks_are_chosen_by_name_in_the_order_given(installed):
    names = [*reversed(TRACKERS)]
    assert [sink.name for sink in choose_sinks(names)] == names
    assert choose_sinks([]) == []


def test_every_sink_can_be_given_a_place(installed):
    texts = ["tensorboard:logs", "wandb:offline", "mlflow:http://127.0.0.1:5000", "openmetrics:/tmp/v.prom"]
    assert [sink.name for sink in choose_sinks(texts)] == [*TRACKERS]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["tensorbord"], "'tensorbord' is not known; choose tensorboard, wandb, mlflow, openmetrics"),
        (["wandb:onlin"], "wandb:onlin is not known; write wandb:online, or wandb for a record on disk"),
        (["mlflow:"], "'mlflow:' has no address after the colon; add one, or write mlflow alone"),
        (["wandb", "wandb:offline"], "--log wandb is given 2 times; give it once"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_cure(installed, texts, message):
    with pytest.raises(ConfigError, match=message):
        choose_sinks(texts)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_told_with_the_extra_that_brings_it(installed, name):
    installed.discard(PACKAGES[name])
    with pytest.raises(ConfigError, match=rf"--log {name} needs the package .*; pip install 'voxelocity\[{name}\]'"):
        choose_sinks([name])


def test_a_sink_turns_usage_statistics_off_unless_a_person_turned_them_on(installed, monkeypatch):
    for variable in ("MLFLOW_DISABLE_TELEMETRY", "WANDB_ERROR_REPORTING"):
        monkeypatch.delenv(variable, raising=False)
    choose_sinks([*TRACKERS])
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    choose_sinks(["wandb"])
    assert os.environ["WANDB_ERROR_REPORTING"] == "true"
