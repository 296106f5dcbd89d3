"""When a program that makes no steps is ended, and that one told to end is never torn out of its writing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from voxelocity_observe.diagnose.recorder import ending
from voxelocity_observe.diagnose.recorder.ending import Deadline


class Played:
    """A clock that sleeping moves, with a program that computes or waits."""

    def __init__(self, busy_until_s: float = 0.0) -> None:
        self.now_s = self.used_s = 0.0
        self.busy_until_s = busy_until_s
        self.ended: list[tuple[float, int]] = []

    def sleep(self, seconds: float) -> None:
        self.used_s += max(0.0, min(seconds, self.busy_until_s - self.now_s))
        self.now_s += seconds

    def wait(self, folder: Path) -> None:
        ending._wait_and_end(
            str(folder),
            sleep=self.sleep,
            clock=lambda: self.now_s,
            cpu_s=lambda: self.used_s,
            end=lambda status: self.ended.append((self.now_s, status)),
        )


@pytest.mark.parametrize(
    ("busy_until_s", "ends_s", "told"),
    [
        (0.0, 65.0, ""),
        (100.0, 105.0, "it still computes, so it is left alone; Ctrl-C ends it"),
        (1e9, 600.0, "computes"),
    ],
)
def test_a_program_that_hangs_is_ended_and_one_that_computes_is_given_time(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    busy_until_s: float,
    ends_s: float,
    told: str,
) -> None:
    # Other tests of this process may have left a file open.
    monkeypatch.setattr(ending, "files_open_for_writing", lambda folder: [])
    played = Played(busy_until_s)
    played.wait(tmp_path)
    assert played.ended == [(ends_s, 0)]
    error = capsys.readouterr().err
    assert told in error
    assert error.count("voxelocity:") == bool(told)


def test_a_program_that_has_closed_its_output_is_ended_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "files_open_for_writing", lambda folder: [])
    with (tmp_path / "output").open("w") as closed:
        pass
    monkeypatch.setattr(sys, "stdout", closed)
    played = Played()
    played.wait(tmp_path)
    assert len(played.ended) == 1


def test_a_file_that_is_open_for_writing_is_never_torn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [["/scratch/last.pt"]] * 200 + [[]]
    monkeypatch.setattr(ending, "files_open_for_writing", lambda folder: looks.pop(0))
    played = Played()
    played.wait(tmp_path)
    assert played.ended == [(60.0 + 201 * 5.0, 0)], "longer than the most that one that computes is given"
    assert capsys.readouterr().err == (
        "voxelocity: the program was asked to end and has not; it holds /scratch/last.pt open for writing, so it is "
        "left alone; Ctrl-C ends it\n"
    )


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not tell of open files")
def test_files_open_for_writing_are_found_by_their_names(tmp_path: Path) -> None:
    code = (
        "import os, sys, tempfile\n"
        "from voxelocity_observe.diagnose.recorder.ending import files_open_for_writing\n"
        "kept = [open('model.pt', 'wb'), open('log.csv', 'a'), open('read.txt'), tempfile.TemporaryFile()]\n"
        "kept += [open('recording/1.jsonl', 'w'), open('/dev/null', 'w'), open(os.dup(1), 'w')]\n"
        "print([os.path.basename(path) for path in files_open_for_writing('recording')])\n"
    )
    (tmp_path / "recording").mkdir()
    (tmp_path / "read.txt").write_text("")
    with (tmp_path / "out.txt").open("w") as out:
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=out, check=True)
    assert (tmp_path / "out.txt").read_text() == "['log.csv', 'model.pt']\n"


def deadline(now: list[float], *, optimizers: list[bool]) -> Deadline:
    return Deadline(30.0, lambda: now[0], lambda: optimizers.pop(0))


def test_a_program_without_steps_is_over_after_the_limit_from_its_first_call_on() -> None:
    now, optimizers = [100.0], [False]
    one = deadline(now, optimizers=optimizers)
    assert not one.is_over()
    one.begin()
    now[0] = 129.9
    one.begin()
    assert not one.is_over()
    now[0] = 130.0
    assert not one.is_over(grace_s=5.0)
    assert one.is_over()
    assert optimizers == []
    one.turn_off()
    assert not one.is_over()


def test_a_program_that_trains_or_may_do_so_is_given_five_minutes_at_least() -> None:
    now, optimizers = [0.0], [True]
    one = deadline(now, optimizers=optimizers)
    one.begin()
    now[0] = 299.9
    assert not one.is_over()
    now[0] = 300.0
    assert one.is_over()
    one.step_ended()
    now[0] = 599.9
    assert not one.is_over()
    now[0] = 600.0
    assert one.is_over()
