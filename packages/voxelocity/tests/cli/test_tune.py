"""`voxelocity tune`: what it prints and refuses. What it finds is tested in `tests/tuning`."""

from __future__ import annotations

import json
import shutil

import pytest

from shared.refused import assert_refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--for", "speed"], "choose throughput, memory or time-to-dice"),
        (["--memory-limit", "8"], "'8' is not an amount of memory; write it like 8GB"),
        (["--memory-limit", "0GB"], "not an amount"),
        (["--time-budget", "5"], "has no unit"),
        (["--only", "data.batch_size"], "use --for time-to-dice"),
        (["--only", "data.feed.threads"], "did you mean 'data.feed.num_threads'"),
        (["--set", "data.feed.num_threads=2", "--only", "data.feed.num_threads"], "your configuration sets it"),
    ],
)
def test_what_cannot_be_tuned_is_named_with_its_cure(voxelocity, tiny_msd, tiny_sets, tmp_path, options, words):
    ended = voxelocity("tune", tiny_msd, "-o", tmp_path / "tune", *options, *tiny_sets)
    assert ended.status == 2
    assert words in " ".join(ended.err.split())
    assert not (tmp_path / "tune").exists()


def test_a_folder_that_is_no_data_set_is_named(voxelocity, tmp_path):
    (tmp_path / "empty").mkdir()
    assert_refused(voxelocity("tune", tmp_path / "empty"), "empty")


def test_a_work_folder_is_tuned_by_one_process(voxelocity, tmp_path, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    ended = voxelocity("tune", tmp_path, "--undo")
    assert ended.status == 2
    assert "start it without launch" in " ".join(ended.err.split())


def test_code_in_a_folder_does_not_run_unless_the_command_says_so(voxelocity, tiny_msd, tmp_path):
    for name in ("work", "data"):
        folder = tmp_path / name
        if name == "data":
            shutil.copytree(tiny_msd, folder)
        (folder / "evil").mkdir(parents=True)
        (folder / "evil" / "__init__.py").touch()
        (folder / "evil" / "algo.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\nclass E: pass\n")
        (folder / "a_0").mkdir()
        described = {"_target_": "evil.algo.E", "template_path": str(folder), "_state_": {}}
        (folder / "a_0" / "algo_object.json").write_text(json.dumps(described))
    assert "run it with --auto3dseg" in " ".join(voxelocity("tune", tmp_path / "work").err.split())
    ended = voxelocity("tune", tmp_path / "data", "--only", "data.feed.threads")
    assert "did you mean" in ended.err, "a data set all the same"
    assert not (tmp_path / "ran").exists()


def test_a_plan_without_tuned_settings_says_so_in_its_record(voxelocity, tiny_msd, tiny_sets):
    ended = voxelocity("plan", tiny_msd, "--no-tuned", "--json", *tiny_sets)
    assert json.loads(ended.out)["plan"]["planner"]["use_tuned"] is False


@pytest.mark.nightly
def test_a_run_is_tuned_and_its_next_plan_takes_it(voxelocity, finished_run, tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = ("tune", finished_run, "-o", tmp_path / "tune", "--trials", "2", "--only", "data.feed.num_threads")
    ended = voxelocity(*command, "--memory-limit", "4GB").succeeded()
    assert "images/s" in ended.out
    page = (tmp_path / "tune" / "tune.html").read_text()
    # The run's own curves.
    assert "Validation Dice" in page or "Training loss" in page
    again = voxelocity(*command, "--memory-limit", "4GB")
    assert "images/s" not in again.out
