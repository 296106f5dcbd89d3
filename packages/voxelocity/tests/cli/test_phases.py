"""What commands tell the monitor that watches them."""

from __future__ import annotations

import atexit
import gc
import json
import os

import pytest

from voxelocity_observe.spans import span
from voxelocity_observe.spans.scope import LISTENERS


@pytest.fixture
def phases(tmp_path, monkeypatch):
    """A function that gives the phases that commands have told of, as a monitor finds them."""
    folder = tmp_path / "watched"
    folder.mkdir()
    monkeypatch.setenv("VOXELOCITY_SPANS", str(folder))
    LISTENERS.forget()
    with span("ours"):
        (file,) = LISTENERS.now

    def told():
        file.flush()
        lines = (folder / f"spans-{os.getpid()}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    yield told
    file.close()
    LISTENERS.forget()


def test_planning_is_a_phase_after_the_start_up(voxelocity, tiny_msd, tiny_sets, phases):
    assert voxelocity("plan", tiny_msd, "--device", "cpu", *tiny_sets).status == 0
    start, plan = phases()
    assert (start["name"], plan["name"]) == ("start-up", "plan")
    # What is told afterwards lies before what comes next.
    assert start["start_s"] + start["seconds"] <= plan["start_s"] + 0.05


def test_predicting_is_a_phase_after_the_start_up(voxelocity, finished_run, tiny_msd, tmp_path, phases):
    scan = tiny_msd / "imagesTr" / "case_0.nii.gz"
    voxelocity("predict", finished_run, scan, "-o", tmp_path / "out", "--device", "cpu").succeeded()
    assert [line["name"] for line in phases()] == ["start-up", "predict"]


def test_the_last_collection_of_a_command_passes_over_what_the_system_frees_anyway(voxelocity, monkeypatch):
    registered = []
    monkeypatch.setattr(atexit, "register", registered.append)
    assert voxelocity("--version").status == 0
    assert gc.freeze in registered
