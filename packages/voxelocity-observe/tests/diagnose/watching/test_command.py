"""Commands that cannot be watched, and processes of a command that outlive it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shared.limits import HANGS_S
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.diagnose.recorder.process import VARIABLE, Settings
from voxelocity_observe.diagnose.watching.command import (
    nothing_recorded_text,
    orphan_processes,
    orphan_processes_text,
    refuse_unwatchable,
)


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("python -I train.py", "I"),
        ("/usr/bin/python3.11 -u -S train.py", "S"),
        ("python -uE -m train", "E"),
        ("pypy3 -W ignore -I x.py", "I"),
        ("python3.13t -I x.py", "I"),
        ("python -Xdev -I x.py", "I"),
        ("python --check-hash-based-pycs always -I x.py", "I"),
        ("python -W ignore -X dev -bS", "S"),
    ],
)
def test_a_python_that_reads_no_start_up_files_is_refused_with_the_flag_to_leave_out(command, flag):
    with pytest.raises(InputError, match=f"leave out -{flag} while it is diagnosed") as error:
        refuse_unwatchable(command.split())
    assert command in str(error.value)


@pytest.mark.parametrize(
    "command",
    [
        "python train.py -I -S -E",
        "python -m train -I",
        "python -c pass -S",
        "python -cS",
        "python -W I x.py",
        "python -s -B -u x.py",
        "python --version",
        "python - -I",
        "bash -I run.sh",
        "pythonista -I",
        "",
    ],
)
def test_options_that_are_not_pythons_own_are_none_of_our_business(command):
    assert refuse_unwatchable(command.split()) is None


def test_nothing_recorded_names_the_command_and_what_to_do():
    assert "'sleep 3'" in nothing_recorded_text(["sleep", "3"], 0)
    assert "inside a container" in nothing_recorded_text(["docker", "run", "x"], 0)
    assert "ended with status 127" in nothing_recorded_text(["pyton"], 127)


def test_a_process_with_the_recording_in_its_environment_is_found_and_no_other(tmp_path):
    def start(value):
        code = "print(flush=True); input()"
        child = subprocess.Popen(
            [sys.executable, "-I", "-c", code], env={VARIABLE: value}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        child.stdout.readline()
        return child

    values = [Settings(folder=str(tmp_path / name)).to_json() for name in ("mine", "other")]
    children = [start(value) for value in (*values, "no JSON")]
    try:
        assert orphan_processes(tmp_path / "mine") == [children[0].pid]
    finally:
        for child in children:
            child.communicate(b"\n", timeout=HANGS_S)
    assert orphan_processes(tmp_path / "mine") == []


def test_they_are_told_with_what_to_do():
    assert orphan_processes_text([7], Path("out")) == (
        "the command has ended, but its process 7 still runs and is recorded: this report covers what was seen "
        "until now; start it in the foreground, or, when it has ended, run: "
        "rm out/diagnosis.json && voxelocity diagnose out"
    )


def test_a_folder_with_a_blank_is_quoted_for_the_shell():
    told = orphan_processes_text([7, 8], Path("my scans"))
    assert "processes 7, 8 still run" in told
    assert told.endswith("run: rm 'my scans/diagnosis.json' && voxelocity diagnose 'my scans'")
