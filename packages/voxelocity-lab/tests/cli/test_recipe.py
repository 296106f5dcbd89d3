"""`voxelocity recipe`: a complete example by one command."""

from pathlib import Path

import numpy as np
import pytest

from shared.refused import assert_refused
from voxelocity_lab.cli import recipe

SETS = {
    "network.num_points": 8,
    "network.num_waves": 4,
    "network.width": 8,
    "network.depth": 1,
    "fit.batch_size": 8,
    "fit.steps": 3,
    "sample.num_steps": 2,
    "sample.format": "tck",
}


def test_both_trains_and_makes_streamlines_and_is_not_repeated_by_accident(voxelocity, tmp_path):
    lines = np.cumsum(np.random.default_rng(0).random((20, 9, 3)), axis=1)
    np.savez(tmp_path / "lines.npz", points=lines)
    sets = [part for key, value in SETS.items() for part in ("--set", f"{key}={value}")]
    call = ("recipe", "tractography", "both", tmp_path / "lines.npz", "-o", tmp_path / "run", "--device", "cpu", *sets)
    told = voxelocity(*call).succeeded()
    assert "report.html" in told.out
    assert (tmp_path / "run" / "generated.tck").is_file()
    assert_refused(voxelocity(*call), "continue it with --resume, replace it with --overwrite")
    assert voxelocity(*call, "--resume").status == 0
    # As another program calls it.
    again = [{"both": "inference"}.get(word, word) for word in call]
    assert "report.html" in voxelocity(*again).succeeded().out


def test_without_arguments_recipes_are_listed_and_what_is_missing_is_named(voxelocity):
    told = voxelocity("recipe")
    assert told.status == 2
    assert "tractography  new streamlines" in told.out
    assert "predict       with the trained model; `inference` is the same" in told.out
    told = voxelocity("recipe", "spleen", "train")
    assert_refused(
        told, "missing: a data set, the folder of the run, -o; write voxelocity recipe spleen train DATA -o OUT"
    )


def test_a_terminal_asks_for_what_is_missing(monkeypatch, tmp_path):
    answers = iter(["lung", "tractography", "inference", "lines.trx", "run"])
    monkeypatch.setattr(recipe.typer, "prompt", lambda *_, **__: next(answers))
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(getattr(recipe.sys, stream), "isatty", lambda: True, raising=False)
    asked = recipe._complete(None, None, None, None)
    assert asked == ("tractography", "inference", Path("lines.trx"), Path("run"))
    assert recipe._complete("brain", "both", Path("a"), Path("b")) == ("brain", "both", Path("a"), Path("b"))


def test_wrong_words_are_answered_with_the_right_ones(voxelocity, tmp_path):
    told = voxelocity("recipe", "tractography", "train", tmp_path / "none.trk", "-o", tmp_path / "run")
    assert_refused(told, "none.trk does not exist; name a file or folder of streamlines")
    told = voxelocity("recipe", "tractography", "train", tmp_path, "-o", tmp_path / "run", "--set", "network.widht=8")
    assert_refused(told, "network.width")
    assert voxelocity("recipe", "spline", "train", tmp_path, "-o", tmp_path / "run").status == 2


def test_a_target_is_a_dice_and_only_for_those_that_segment(voxelocity, tmp_path):
    told = voxelocity("recipe", "tractography", "train", tmp_path, "-o", tmp_path / "run", "--target", "0.9")
    assert_refused(told, "--target 0.9", "only for brain and spleen; leave it out")
    told = voxelocity("recipe", "spleen", "train", tmp_path, "-o", tmp_path / "run", "--target", "95")
    assert_refused(told, "--target 95", "use a number above 0 and below 1")


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("spleen", "train", "--seeds", "2"), "--seeds 2: only for benchmark; leave it out"),
        (("spleen", "predict", "--time-budget", "1m"), "--time-budget 1m: only for train, both, benchmark; leave it"),
        (("pathology", "benchmark", "--time-budget", "1m"), "--time-budget 1m: only for train, both; leave it out"),
        (("brain", "benchmark", "--resume"), "--resume: only for train, both; leave it out"),
        (("tractography", "inference", "--log", "mlflow"), "--log mlflow: only for train, both; leave it out"),
    ],
)
def test_an_option_that_the_action_would_not_follow_is_refused(voxelocity, tmp_path, words, refused):
    name, action, *more = words
    assert_refused(voxelocity("recipe", name, action, tmp_path, "-o", tmp_path / "run", *more), refused)


def test_the_demo_takes_the_seconds_of_its_scripts_or_the_seeds_of_a_race(voxelocity, tmp_path):
    told = voxelocity("demo", "-o", tmp_path / "demo", "--seconds", "40", "--seeds", "2")
    assert_refused(told, "--seconds is for the demo of two minutes, --seeds for the race; leave one of them out")
