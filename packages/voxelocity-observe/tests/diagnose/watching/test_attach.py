"""Having a program recorded: what is handed to it, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import voxelocity
from voxelocity.training import train
from voxelocity_observe.core.errors import ConfigError, OutputError
from voxelocity_observe.diagnose.facts import read_facts
from voxelocity_observe.diagnose.recorder.process import VARIABLE, Settings
from voxelocity_observe.diagnose.watching.attach import record_here, recording_environment


def test_environment_names_the_folder_and_puts_the_recorder_first_on_the_path(tmp_path: Path) -> None:
    before = {"PYTHONPATH": "/own/code", "HOME": "/home"}
    chosen = recording_environment(tmp_path / "made", seconds=30, experiments=False, environment=before)
    site, own = chosen["PYTHONPATH"].split(os.pathsep)
    assert (Path(site) / "sitecustomize.py").is_file()
    assert (own, chosen["HOME"]) == ("/own/code", "/home")
    settings = Settings.from_json(chosen[VARIABLE])
    assert (settings.folder, settings.seconds, settings.experiments) == (str(tmp_path / "made"), 30, False)
    assert before == {"PYTHONPATH": "/own/code", "HOME": "/home"}
    assert recording_environment(tmp_path, environment=chosen)["PYTHONPATH"] == chosen["PYTHONPATH"]


@pytest.mark.parametrize(("before", "kept"), [(":/lib", ["", "/lib"]), ("/lib:", ["/lib", ""]), ("", [])])
def test_an_empty_entry_of_the_path_remains_the_current_folder(before: str, kept: list[str], tmp_path: Path) -> None:
    chosen = recording_environment(tmp_path, environment={"PYTHONPATH": before.replace(":", os.pathsep)})
    assert chosen["PYTHONPATH"].split(os.pathsep)[1:] == kept


def test_settings_of_another_version_are_read_as_far_as_they_are_known() -> None:
    assert Settings.from_json('{"folder": "/f", "whole": true, "color": 3}') == Settings(folder="/f", whole=True)
    with pytest.raises(ValueError, match=r"VOXELOCITY_RECORD='\{\}' names no folder; start the program by"):
        Settings.from_json("{}")


def test_limits_out_of_range_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seconds=0; give a time above 0"):
        recording_environment(tmp_path, seconds=0)
    refused = "no limit is called 'minutes'; there are experiment_seconds, experiments, "
    with pytest.raises(ConfigError, match=refused), record_here(tmp_path / "new", minutes=3):
        pass
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot make the folder .*file.folder \(Not a directory\); choose one"):
        recording_environment(tmp_path / "file" / "folder")


def test_recording_of_a_block_without_training_holds_the_process(tmp_path: Path) -> None:
    with record_here(tmp_path):
        pass
    (file,) = tmp_path.glob("*.jsonl")
    events = [json.loads(line)["event"] for line in file.read_text().splitlines()]
    assert events == ["process", "process", "process", "end"], "at its begin, once torch is there, and at its end"


def test_our_own_training_reaches_its_steps_on_resident_batches(
    tiny_msd: Path, tiny_plan: dict[str, Any], tmp_path: Path
) -> None:
    plan = {**tiny_plan, "train.steps": 4000, "precision.channels_last": True}
    short = {"min_steps": 4, "min_seconds": 0.0, "seconds": 0.2, "experiment_seconds": 0.1}
    with record_here(tmp_path / "recording", whole=False, experiments=True, **short):
        train(voxelocity.open(tiny_msd), tmp_path / "run", overrides=plan, device="cpu", console=Console(quiet=True))
        pytest.fail("the recorder has not seen enough")
    facts = read_facts(tmp_path / "recording")
    assert facts.ended.reason == "limit"
    assert {step.phase for step in facts.steps} >= {"watched", "resident"}
    assert facts.network.memory_format == "channels_last_3d"
