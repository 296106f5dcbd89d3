"""Of several models, a run starts from the one that a few steps improve most."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import yaml
from rich.console import Console

import voxelocity as vx
from voxelocity.report import read_run
from voxelocity.training import start_choice, train
from voxelocity_observe.core.errors import InputError

HARDLY = {"train.steps": 1, "optimizer.learning_rate": 1e-9, "data.cache.tier": "memory"}


@pytest.fixture(scope="module")
def sources(tiny_msd, tiny_plan, tmp_path_factory):
    """Two finished runs: one of 60 steps, and one of a single step."""
    folder = tmp_path_factory.mktemp("sources")
    for name, steps in (("learned", 60), ("hardly", 1)):
        plan = {**tiny_plan, "train.steps": steps, "optimizer.learning_rate": 0.02}
        train(vx.open(tiny_msd), folder / name, overrides=plan, device="cpu", console=Console(quiet=True))
    return folder


@pytest.fixture
def tune(tiny_msd, tmp_path):
    def call(*names, out=tmp_path / "tuned", **options):
        options = {"overrides": HARDLY, **options}
        return train(
            vx.open(tiny_msd), out, start_from=names, device="cpu", console=Console(quiet=True), **options
        ).folder

    return call


def test_the_model_that_has_learned_the_task_is_chosen_and_the_losses_are_kept(sources, tune, monkeypatch, tmp_path):
    monkeypatch.setattr(start_choice, "NUM_STEPS", 6)
    monkeypatch.chdir(tmp_path)
    tuned = tune("scratch", sources / "hardly", sources / "learned")
    start = yaml.safe_load((tuned / "run.yaml").read_text())["start"]
    assert start["folder"] == str((sources / "learned").resolve())
    losses = start["tried"]
    assert list(losses) == ["new weights", str(sources / "hardly"), str(sources / "learned")]
    assert min(losses, key=losses.get) == str(sources / "learned")
    reason = next(choice.reason for choice in read_run(tuned).choices if choice.key == "start")
    assert reason.startswith(
        f"lowest loss after 6 steps on the same batches: new weights {losses['new weights']:.3g}, "
    )
    # The same batches and the same weights give the same losses.
    again = tune(sources / "hardly", sources / "learned", out=tmp_path / "again")
    assert yaml.safe_load((again / "run.yaml").read_text())["start"]["tried"].items() <= losses.items()


def test_a_run_that_was_stopped_continues_from_what_was_chosen(sources, tune, monkeypatch, tmp_path):
    monkeypatch.setattr(start_choice, "first_loss", lambda source, planned, *, batch_size: float(source is not None))
    monkeypatch.chdir(tmp_path)
    tuned = tune("scratch", sources / "learned")
    record = yaml.safe_load((tuned / "run.yaml").read_text())
    assert record["start"] == {"tried": {"new weights": 0.0, str(sources / "learned"): 1.0}}
    reason = next(choice for choice in read_run(tuned).choices if choice.key == "start")
    assert reason.value == "new weights"
    weights = json.loads((tuned / "model.json").read_text())["weights_sha256"]
    for name in ("model.safetensors", "model.json", "scores.json", "events.jsonl"):
        (tuned / name).unlink()
    shutil.rmtree(tuned / "checkpoints")
    # Nothing is tried again.
    monkeypatch.setattr(start_choice, "first_loss", None)
    tune("scratch", sources / "learned")
    assert json.loads((tuned / "model.json").read_text())["weights_sha256"] == weights
    for name in ("events.jsonl", "scores.json"):
        (tuned / name).unlink()
    shutil.rmtree(tuned / "checkpoints")
    with pytest.raises(InputError, match=r"was started from new weights, not from .*learned"):
        tune(sources / "learned")


def test_models_whose_loss_is_not_finite_are_not_chosen(sources, tune, monkeypatch):
    losses = {"learned": math.inf, "hardly": 3.0}
    monkeypatch.setattr(start_choice, "first_loss", lambda source, planned, *, batch_size: losses[source.folder.name])
    tuned = tune(sources / "learned", sources / "hardly")
    assert yaml.safe_load((tuned / "run.yaml").read_text())["start"]["folder"].endswith("hardly")
    losses["hardly"] = math.inf
    with pytest.raises(InputError, match=r"the loss of none of .* is finite after"):
        tune(sources / "learned", sources / "hardly", overwrite=True)
