"""A training of too few steps has no headline score, wherever it is shown."""

import io
import json
import math
import warnings
from pathlib import Path

import pytest
import torch
from rich.console import Console
from training.test_resume import StopAfterSteps

import voxelocity as vx
from shared.page import Page
from voxelocity.infer.evaluation import pool_runs
from voxelocity.report import pair_runs, read_run
from voxelocity.report.summary import verdict
from voxelocity.training import train
from voxelocity_observe.core.errors import InterruptedRunError
from voxelocity_observe.core.events import read_events


@pytest.fixture
def trained(tiny_msd, tiny_plan, tmp_path):
    def call(name, steps, **options):
        said = io.StringIO()
        result = train(
            vx.open(tiny_msd), tmp_path / name, overrides={**tiny_plan, "train.steps": steps}, device="cpu",
            console=Console(file=said, width=400), **options,
        )  # fmt: skip
        return result, said.getvalue()

    return call


def finish_of(result):
    return [event for event in read_events(result.folder / "events.jsonl") if event["event"] == "run_finished"][-1]


def test_a_short_training_is_marked_everywhere_and_a_longer_one_is_not(trained):
    short, said = trained("short", 1)
    assert "warning: train: this training has no score: it made only 1 training step" in said
    assert short.mean_dice is None
    assert short.headline.startswith("No score")
    assert finish_of(short)["mean_dice"] is None
    assert finish_of(short)["unlearned"] == short.unlearned != ""
    scores = json.loads((short.folder / "scores.json").read_text())
    assert scores["unlearned"] == short.unlearned
    assert len(scores["cases"]) == 2, "what was measured stays"
    facts = read_run(short.folder)
    assert verdict(facts).startswith("No score, because this training is too short: it made only 1 training step")
    page = Page((short.folder / "report.html").read_text(encoding="utf-8"))
    assert "No score" in page.words
    assert "Mean Dice | n/a | too few training steps" in page.outline

    longer, said = trained("longer", 10)
    assert "has no score" not in said
    assert (longer.unlearned, finish_of(longer)["unlearned"]) == ("", "")
    assert longer.headline.startswith("Mean foreground Dice 0.")
    assert math.isclose(longer.mean_dice, finish_of(longer)["mean_dice"])

    pair = pair_runs(read_run(longer.folder), facts)
    assert pair.parity is None
    assert any("short has no score: it made only 1 training step" in notice for notice in pair.notices)
    assert pair.runs[1].last_dice is None
    assert list(pool_runs([short.folder]).unlearned) == [str(short.folder)]


def test_a_training_from_trained_weights_has_a_score_after_one_step_unless_these_have_none(trained):
    source, _ = trained("source", 10)
    tuned, _ = trained("tuned", 1, start_from=source.folder)
    assert tuned.unlearned == ""
    assert tuned.mean_dice is not None
    hardly, _ = trained("hardly", 1)
    again, _ = trained("again", 1, start_from=hardly.folder)
    assert "only 1 training step" in again.unlearned


def test_one_step_and_one_case_are_said_as_one(voxelocity, own_msd, tiny_sets, tmp_path):
    ended = voxelocity(
        "train", own_msd, "-o", tmp_path / "run", "--device", "cpu", *tiny_sets, "--set", "train.steps=1"
    ).succeeded()
    assert "(1 step); see" in " ".join(ended.out.split())
    assert "No score, because this training is too short" in " ".join(ended.out.split())


def test_predicting_with_it_warns(trained, tiny_msd, tmp_path):
    short, _ = trained("short", 2)
    scan = sorted((tiny_msd / "imagesTr").iterdir())[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vx.predict(short.folder, [scan], tmp_path / "out", device=torch.device("cpu"), num_threads=1)
    assert any("is too short to be scored: it made only 2 training steps" in str(warning.message) for warning in caught)


def test_a_stopped_training_names_the_page_of_what_there_is(trained, monkeypatch):
    with pytest.raises(InterruptedRunError) as caught:
        trained("stopped", 1000, stop=StopAfterSteps(2, monkeypatch))
    page = str(caught.value).split(" and ")[-1].removesuffix(" shows what there is")
    assert "Interrupted by SIGTERM at step 2" in Path(page).read_text()
