import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from shared.limits import HANGS_S
from shared.refused import assert_refused
from voxelocity_observe.diagnose.result import write_diagnosis
from voxelocity_observe.monitor.files import MonitorFiles
from voxelocity_observe.monitor.record import MonitorRecord
from voxelocity_observe.monitor.samples import HostSample, Sample


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
    told = voxelocity("report", *two, "-o", page, "--target", 0.85).succeeded()
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
    told = voxelocity("report", *two, "--json", "--margin", 0.02, "--margin-mm", 3).succeeded()
    record = json.loads(told.out)
    assert [run["label"] for run in record["runs"]] == ["before", "after"]
    assert record["accuracy"]["overall"]["margin"] == 0.02
    assert record["accuracy"]["structures"][-1]["margin"] == 3.0
    assert not (tmp_path / "comparison.html").exists()
    assert voxelocity("report", *two, "--json", "-o", tmp_path / "c.html").status == 0
    assert (tmp_path / "c.html").is_file()


def test_more_than_two_folders_are_refused(voxelocity, two):
    told = voxelocity("report", *two, two[0])
    assert_refused(told, "report: 3 folders were given; name one to render, or two to compare")


def test_options_of_a_comparison_are_refused_for_one_run(voxelocity, two):
    told = voxelocity("report", two[0], "--json", "--margin", 0.02)
    assert_refused(told, "report: --margin, --json is for comparing two folders, but one was given; name a second one")


@pytest.fixture
def diagnoses(example_diagnosis, tmp_path):
    """Folders of a program that waits for data, and of the same program in which nothing is wrong any more."""
    folders = [tmp_path / "diagnosis", tmp_path / "diagnosis-2"]
    for folder, name in zip(folders, ("data-bound", "clean"), strict=True):
        folder.mkdir()
        write_diagnosis(example_diagnosis(name), folder)
    return folders


@pytest.fixture
def monitors(tmp_path):
    """Folders of two records: 12 samples of one core in two, and 6 of two cores."""
    folders = [tmp_path / "watched", tmp_path / "watched-2"]
    for folder, count, cores in zip(folders, (12, 6), ((1.0, 0.0), (1.0, 1.0)), strict=True):
        files = MonitorFiles(folder, pytest.fail)
        for second in range(1, count + 1):
            host = HostSample(core_shares=cores, program_cores=sum(cores), program_memory_bytes=2**30)
            files.add(Sample(time_s=second, period_s=1.0, host=host), [])
        record = MonitorRecord(command=("python", "train.py"), status=0, seconds=count, period_s=1.0)
        files.describe(record, begin_s=0.0, gpus=[], is_over=True)
        files.close()
    return folders


def test_two_diagnoses_are_compared_on_a_page_and_in_short(voxelocity, diagnoses, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = voxelocity("report", *diagnoses).succeeded()
    assert told.out.startswith("After the change the program")
    assert "Batches are made in the training's own thread" in told.out
    assert told.out.endswith("see comparison.html\n")
    assert "Voxelocity diagnosis comparison" in (tmp_path / "comparison.html").read_text()


@pytest.mark.parametrize("width", [60, 100])
def test_a_comparison_on_a_terminal_breaks_no_figure_from_its_unit(voxelocity, diagnoses, tmp_path, monkeypatch, width):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = voxelocity("report", *diagnoses).out.splitlines()
    assert max(len(line) for line in lines) <= width
    assert not [line for line in lines if re.fullmatch(r"(s|ms|%|times)\b.*", line.strip())]
    assert any(line.startswith("VX101") for line in lines)


def test_two_folders_as_json_are_plain_data_and_no_page(voxelocity, diagnoses, monitors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = json.loads(voxelocity("report", *diagnoses, "--json").out)
    assert (found["format"], found["version"]) == ("voxelocity diagnosis comparison", 1)
    assert found["gone"][0]["code"] == "VX101"
    assert found["achieved"] == pytest.approx(found["gone"][0]["achieved"])
    found = json.loads(voxelocity("report", *monitors, "--json").out)
    assert (found["format"], found["version"]) == ("voxelocity monitor comparison", 1)
    assert found["figures"]["cpu_busy_share"] == {"before": 0.5, "after": 1.0}
    assert not (tmp_path / "comparison.html").exists()


def test_two_monitors_are_compared_on_a_page_and_in_short(voxelocity, monitors, tmp_path):
    told = voxelocity("report", *monitors, "-o", tmp_path / "both.html").succeeded()
    words = "It took 6.0 s (before: 12 s); cores were busy 100.0 % (before: 50.0 %)."
    assert told.out.startswith(words)
    assert told.out.endswith(f"see {tmp_path / 'both.html'}\n")
    assert words.replace(" s ", "\N{NO-BREAK SPACE}s ")[:8] in (tmp_path / "both.html").read_text()


def test_a_comparison_is_told_on_a_terminal_that_knows_ascii_alone(diagnoses, tmp_path):
    command = [sys.executable, "-m", "voxelocity", "report", *map(str, diagnoses), "-o", str(tmp_path / "c.html")]
    told = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=HANGS_S, check=False
    )
    assert (told.returncode, told.stderr) == (0, b"")
    assert told.stdout.isascii()
    assert re.search(rb"\d+(\.\d+)?x", told.stdout), "a factor, whose sign is none of ASCII"


@pytest.mark.parametrize(("kind", "name"), [("diagnoses", "diagnosis.html"), ("monitors", "monitor.html")])
def test_the_page_of_one_folder_is_drawn_again_in_it_or_elsewhere(voxelocity, request, tmp_path, kind, name):
    folder = request.getfixturevalue(kind)[0]
    told = voxelocity("report", folder)
    assert (told.status, told.out) == (0, f"{folder / name}\n")
    told = voxelocity("report", folder, "-o", tmp_path / "pages" / "mine.html")
    assert (told.status, told.out) == (0, f"{tmp_path / 'pages' / 'mine.html'}\n")
    assert (tmp_path / "pages" / "mine.html").read_text() == (folder / name).read_text()


def test_folders_of_two_kinds_are_named_as_what_they_are(voxelocity, two, diagnoses, monitors):
    told = voxelocity("report", two[0], diagnoses[0])
    assert told.status == 2
    assert (
        f"report: {two[0]} is the folder of a run, {diagnoses[0]} that of a diagnosis; name two of one kind" in told.err
    )
    assert "name two of one kind" in voxelocity("report", diagnoses[0], monitors[0]).err


def test_a_folder_that_is_none_of_ours_is_not_called_a_run(voxelocity, diagnoses, tmp_path):
    told = voxelocity("report", diagnoses[0], tmp_path / "gone")
    assert told.status == 2
    assert (
        f"report: {tmp_path / 'gone'} does not exist; name a folder that 'voxelocity train', "
        "'monitor' or 'diagnose' wrote" in told.err
    )
    (tmp_path / "other").mkdir()
    told = voxelocity("report", tmp_path / "other", diagnoses[0])
    assert f"report: {tmp_path / 'other'} holds nothing that can be compared; name a folder" in told.err


@pytest.mark.parametrize(("kind", "word"), [("diagnoses", "diagnosis"), ("monitors", "monitor")])
def test_options_of_runs_are_refused_for_other_kinds(voxelocity, request, kind, word):
    folders = request.getfixturevalue(kind)
    told = voxelocity("report", *folders, "--target", 0.8, "--margin-mm", 2)
    assert told.status == 2
    assert (
        f"report: --target, --margin-mm is for comparing two runs, but {folders[0]} and {folders[1]} hold a {word} "
        "each; leave it out"
    ) in told.err


def test_a_folder_of_no_kind_is_refused_with_what_it_lacks(voxelocity, two, tmp_path):
    assert_refused(voxelocity("report", two[0], tmp_path / "none"), "does not exist")
