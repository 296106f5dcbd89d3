"""Processes of a command that outlive it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from voxelocity.diagnosis.recorder.settings import VARIABLE, Settings
from voxelocity.diagnosis.watching.orphan_processes import orphan_processes, orphan_processes_text


def test_a_process_with_the_recording_in_its_environment_is_found_and_no_other(tmp_path):
    def start(value):
        code = "print(flush=True); input()"
        child = subprocess.Popen(
            [sys.executable, "-I", "-c", code], env={VARIABLE: value}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        return child

    values = [Settings(folder=str(tmp_path / name)).to_json() for name in ("mine", "other")]
    children = [start(value) for value in (*values, "no JSON")]
    try:
        assert orphan_processes(tmp_path / "mine") == [children[0].pid]
    finally:
        for child in children:
            child.communicate(b"\n", timeout=30)
    assert orphan_processes(tmp_path / "mine") == []


def test_they_are_told_with_what_to_do():
    assert orphan_processes_text([7], Path("out")) == (
        "the command has ended, but its process 7 still runs and is recorded: this report covers what was seen "
        "until now; "
        "start it in the foreground, or remove out/diagnosis.json when it has ended and run 'voxelocity diagnose out'"
    )
