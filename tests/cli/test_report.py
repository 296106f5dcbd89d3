import json
import shutil

import pytest


@pytest.fixture
def two(finished_run, tmp_path):
    """Two folders of one finished run, with a validation on the way however busy the machine was."""
    folders = [shutil.copytree(finished_run, tmp_path / name) for name in ("before", "after")]
    validation = {"event": "validation", "time_s": 1.5, "step": 40, "seconds": 0.1, "mean_dice": 0.9, "dice": {}}
    for folder in folders:
        lines = (folder / "events.jsonl").read_text().splitlines()
        lines.insert(-1, json.dumps({**validation, "is_best": True}))
        (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folders


def test_two_runs_are_compared_on_a_page_and_in_short(voxelocity, two, tmp_path):
    page = tmp_path / "pages" / "c.html"
    told = voxelocity("report", *two, "-o", page, "--target", 0.85)
    assert told.status == 0, told.err
    assert "after reached Dice 0.85 in 1.5 s, before in 1.5 s" in told.out
    assert "Peak main memory" in told.out, "a run stores its peak"
    assert "95 % interval" in told.out
    assert f"see {page}" in told.out
    text = page.read_text()
    assert "before and after" in text
    assert "Where the time went" in text


def test_the_page_lies_in_the_current_folder_if_no_other_is_named(voxelocity, two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert voxelocity("report", *two).status == 0
    assert (tmp_path / "comparison.html").is_file()


def test_a_comparison_as_json_writes_a_page_only_where_asked(voxelocity, two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = voxelocity("report", *two, "--json", "--margin", 0.02, "--margin-mm", 3)
    assert told.status == 0, told.err
    record = json.loads(told.out)
    assert [run["label"] for run in record["runs"]] == ["before", "after"]
    assert record["accuracy"]["overall"]["margin"] == 0.02
    assert record["accuracy"]["structures"][-1]["margin"] == 3.0
    assert not (tmp_path / "comparison.html").exists()
    assert voxelocity("report", *two, "--json", "-o", tmp_path / "c.html").status == 0
    assert (tmp_path / "c.html").is_file()


def test_more_than_two_folders_are_refused(voxelocity, two):
    told = voxelocity("report", *two, two[0])
    assert told.status == 2
    assert "report: 3 folders were given; name one to render, or two to compare" in told.err


def test_options_of_a_comparison_are_refused_for_one_run(voxelocity, two):
    told = voxelocity("report", two[0], "--json", "--margin", 0.02)
    assert told.status == 2
    assert "report: --margin, --json is for comparing two runs, but one was given; name another" in told.err


@pytest.mark.parametrize("kind", ["monitor", "diagnosis"])
def test_a_folder_of_another_kind_is_named_as_what_it_is(voxelocity, two, tmp_path, kind):
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / f"{kind}.json").write_text("{}")
    told = voxelocity("report", two[0], folder)
    assert told.status == 2
    assert f"report: {folder} is the folder of a {kind}, not of a run; name what `train` wrote" in told.err


def test_a_folder_of_no_kind_is_refused_with_what_it_lacks(voxelocity, two, tmp_path):
    told = voxelocity("report", two[0], tmp_path / "none")
    assert told.status == 2
    assert "run.yaml" in told.err
