"""`train` in a folder that holds an unfinished run: what may differ, what is refused, and in which words."""

from __future__ import annotations

import shutil
import sys

import pytest
import yaml

from shared.refused import assert_refused
from voxelocity.step import TrainingStep
from voxelocity_observe.cli.main import main


@pytest.fixture(scope="module")
def stopped(tiny_msd, tiny_sets, tmp_path_factory):
    """The folder of a run that stopped at step 3 of 6, with seed 2, fold 1 and a budget of an hour."""
    step, num_steps = TrainingStep.__call__, 0

    def interrupted(training, batch, learning_rate):
        nonlocal num_steps
        num_steps += 1
        if num_steps == 4:
            raise KeyboardInterrupt
        return step(training, batch, learning_rate)

    run = tmp_path_factory.mktemp("stopped") / "run"
    often = ("--set", "train.checkpoint_every_s=1e-9", "--set", "train.validate_every_steps=1")
    more = ("--seed", "2", "--fold", "1", "--time-budget", "1h", "--set", "planner.measure=never")
    words = ["voxelocity", "train", str(tiny_msd), "-o", str(run), "--device", "cpu", *tiny_sets, *often, *more]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", words)
        patched.setattr(TrainingStep, "__call__", interrupted)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 130
    assert (run / "checkpoints" / "step_000000003.pt").exists()
    return run


@pytest.fixture
def unfinished(stopped, tmp_path):
    """A copy of it."""
    return shutil.copytree(stopped, tmp_path / "run")


def test_resume_takes_what_is_left_out_from_the_run(voxelocity, tiny_msd, unfinished):
    voxelocity("train", tiny_msd, "-o", unfinished, "--resume").succeeded()
    record = yaml.safe_load((unfinished / "run.yaml").read_text())
    assert (record["seed"], record["dataset"]["fold"], record["plan"]["train"]["time_budget_s"]) == (2, 1, 3600.0)


@pytest.mark.parametrize("named", ["alone", "by -o"])
def test_resume_needs_the_folder_of_the_run_alone(voxelocity, tiny_msd, unfinished, named):
    place = [unfinished] if named == "alone" else ["-o", unfinished]
    voxelocity("train", "--resume", *place).succeeded()
    assert (unfinished / "report.html").exists()


def test_resume_says_what_is_missing(voxelocity, tiny_msd, tmp_path):
    assert_refused(voxelocity("train", "--resume", tiny_msd), "holds no run to resume", "-o")
    assert_refused(voxelocity("train", "--resume"), "DATASET is missing")
    assert_refused(voxelocity("train", tiny_msd), "the run's folder is missing", "-o")
    assert_refused(voxelocity("train", "-o", tmp_path / "run"), "DATASET is missing")


def test_resume_takes_options_that_repeat_the_run(voxelocity, tiny_msd, tiny_sets, unfinished):
    same = ("--seed", 2, "--fold", 1, "--time-budget", "60m", *tiny_sets, "--config", unfinished / "run.yaml")
    voxelocity("train", tiny_msd, "-o", unfinished, "--resume", "--device", "cpu", *same).succeeded()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--fold", "0"], "--fold 0 where 1 is stored"),
        (["--fold", "all"], "--fold all where 1 is stored"),
        (["--seed", "0"], "--seed 0 where 2 is stored"),
        (["--time-budget", "10s"], "--time-budget 10s where 1 h is stored"),
        (["--set", "train.steps=7"], "train.steps=7 where 6 is stored"),
        (["--epochs", "9"], "--epochs 9 where 6 steps are stored"),
        (
            ["--time-budget", "10s", "--fold", "3", "--seed", "4"],
            "--fold 3 where 1 is stored; --seed 4 where 2 is stored; --time-budget 10s where 1 h is stored;",
        ),
    ],
)
def test_resume_refuses_an_option_that_differs(voxelocity, tiny_msd, unfinished, options, text):
    before = (unfinished / "events.jsonl").read_bytes()
    ended = voxelocity("train", tiny_msd, "-o", unfinished, "--resume", *options)
    assert_refused(ended, text, str(unfinished), "as it was started", "leave out what differs", "-o", "--overwrite")
    assert (unfinished / "events.jsonl").read_bytes() == before


def test_another_data_set_is_refused(voxelocity, tiny_msd, own_msd, unfinished):
    ended = voxelocity("train", own_msd, "-o", unfinished, "--resume")
    assert_refused(ended, "another data set", f"path: {tiny_msd.resolve()} -> {own_msd.resolve()}", "-o", "--overwrite")


def test_a_page_of_an_unfinished_run_leaves_it_unfinished(voxelocity, tiny_msd, unfinished):
    assert voxelocity("report", unfinished).status == 0
    assert (unfinished / "report.html").exists()
    voxelocity("train", tiny_msd, "-o", unfinished, "--resume").succeeded()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"seed: \xff\xfe", "utf-8"),
        (b"plan: 3\ndataset: {fold: 0}", "'plan' is 3"),
        (b"dataset: [1]", "'dataset' is [1]"),
        (b"seed: x", ""),
    ],
)
def test_a_damaged_record_is_named_by_every_command(voxelocity, tiny_msd, unfinished, content, text):
    (unfinished / "run.yaml").write_bytes(content)
    record = str(unfinished / "run.yaml")
    for more in ([], ["--resume"]):
        assert_refused(voxelocity("train", tiny_msd, "-o", unfinished, *more), record, text, "--overwrite")
    assert_refused(voxelocity("report", unfinished), record, text, "restore it or train again")
