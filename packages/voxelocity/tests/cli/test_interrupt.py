from __future__ import annotations

import signal
import subprocess

import pytest

from shared.forked import run_python

# Some libraries catch whatever is raised while they are imported.
_WHILE_IMPORTING = """
import os, signal, sys
from voxelocity import training
from voxelocity_observe.cli.main import main
def interrupted(*args, **options):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
    except BaseException:
        pass
    print("went on", flush=True)
training.plan_run = interrupted
main()
"""
_WHILE_WRITING = """
import os, signal
from voxelocity import infer
from voxelocity_observe.cli.main import main
def interrupted(*args, **options):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
    finally:
        print("cleaned up", flush=True)
infer.predict_scans = interrupted
main()
"""


# Whoever runs the tests in the background of a shell has them start with the signal ignored.
_LISTEN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def run(script: str, *arguments: object, before: str = _LISTEN) -> subprocess.CompletedProcess[str]:
    return run_python(before + script, arguments)


def test_ctrl_c_before_anything_is_written_ends_at_once_and_cannot_be_swallowed(tiny_msd):
    ended = run(_WHILE_IMPORTING, "plan", tiny_msd)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "voxelocity: stopped by Ctrl-C\n"


def test_ctrl_c_while_writing_cleans_up_and_says_so(finished_run, tmp_path):
    ended = run(_WHILE_WRITING, "predict", finished_run, tmp_path, "-o", tmp_path / "out")
    assert (ended.returncode, ended.stdout) == (130, "cleaned up\n")
    assert ended.stderr.startswith("voxelocity: predict: stopped by Ctrl-C; 0 predictions of this command are in ")
    assert "--resume predicts the other scans" in ended.stderr


def test_a_watched_command_that_ends_with_this_status_is_not_taken_for_us(tmp_path):
    ended = run(
        "from voxelocity_observe.cli.main import main\nmain()",
        "monitor",
        "-o",
        tmp_path / "m",
        "--",
        "sh",
        "-c",
        "exit 130",
    )
    assert ended.returncode == 130
    assert "the command ended with status 130" in ended.stderr
    assert "stopped by Ctrl-C" not in ended.stderr


def test_a_program_told_to_ignore_ctrl_c_goes_on(tiny_msd):
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    ended = run(_WHILE_IMPORTING, "plan", tiny_msd, before=ignore)
    assert ended.stdout.startswith("went on")


def test_the_command_line_leaves_the_handler_as_it_was(voxelocity):
    before = signal.getsignal(signal.SIGINT)
    assert voxelocity("--version").status == 0
    assert signal.getsignal(signal.SIGINT) is before
    assert before is signal.default_int_handler or pytest.skip("the tests run with another handler")
