"""A command as a child: its status, its streams, its signals."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shared.limits import HANGS_S
from voxelocity_observe.core import command as module
from voxelocity_observe.core.command import run_command, signal_name, watch_command
from voxelocity_observe.core.environment import python_path
from voxelocity_observe.core.errors import CommandError


@pytest.fixture(params=["descriptor", "looking"])
def way(request, monkeypatch):
    """Both ways to wait for the end: by a descriptor of the process, and where the system has none."""
    if request.param == "looking":
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.delattr(os, "waitid")
    return request.param


@pytest.mark.parametrize("status", [0, 1, 42, 255])
def test_the_status_is_the_commands_own(way, status):
    assert run_command(["sh", "-c", f"exit {status}"]) == status


def test_a_signal_that_ends_the_command_is_reported_as_shells_do_and_raw(way):
    kill = ["sh", "-c", "kill -9 $$"]
    assert run_command(kill) == 137
    assert watch_command(kill) == -9


def test_a_signal_has_its_name_and_one_that_is_unknown_its_number():
    assert (signal_name(15), signal_name(99)) == ("SIGTERM", "signal 99")


def test_streams_and_arguments_are_passed_as_they_are(capfd, tmp_path):
    given = tmp_path / "input"
    given.write_text("line\n")
    before = os.dup(0)
    with open(given) as file:
        os.dup2(file.fileno(), 0)
        try:
            assert run_command(["sh", "-c", 'cat; echo "$1" >&2', "sh", "a  b; $(c)"]) == 0
        finally:
            os.dup2(before, 0)
            os.close(before)
    assert capfd.readouterr() == ("line\n", "a  b; $(c)\n")


def test_descriptors_that_a_shell_opened_for_the_command_stay_open(capfd):
    read, write = os.pipe()
    os.write(write, b"through\n")
    os.close(write)
    os.set_inheritable(read, True)
    try:
        assert run_command(["cat", f"/dev/fd/{read}"]) == 0
    finally:
        os.close(read)
    assert capfd.readouterr().out == "through\n"


def test_variables_are_added_to_those_there_are(capfd, monkeypatch):
    monkeypatch.setenv("ONE", "1")
    run_command(["sh", "-c", "echo $ONE $TWO"], environment={"TWO": "2"})
    assert capfd.readouterr().out == "1 2\n"


def test_the_start_is_reported_with_the_process_id_and_ticks_come_while_it_runs(way, tmp_path):
    go, seen = tmp_path / "go", []

    def tick():
        seen.append("tick")
        if len(seen) == 4:
            go.touch()

    def end():
        # Not reaped yet: the kernel still has its figures.
        seen.append(Path(f"/proc/{seen[0]}/stat").read_text().rpartition(")")[2].split()[0])

    wait = ["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.01; done"]
    assert watch_command(wait, on_start=seen.append, tick=tick, tick_s=0.01, on_end=end) == 0
    assert isinstance(seen[0], int)
    assert seen[1:4] == ["tick"] * 3
    assert seen[-1] == "Z"


def test_an_error_in_a_tick_is_raised_when_the_command_has_ended(tmp_path):
    done = tmp_path / "done"

    def tick():
        raise ZeroDivisionError("made up")

    with pytest.raises(ZeroDivisionError, match="made up"):
        run_command(["sh", "-c", f"sleep 0.1; touch {done}"], tick=tick, tick_s=0.01)
    assert done.exists()


def test_it_can_run_in_another_thread(capfd):
    statuses = []
    thread = threading.Thread(target=lambda: statuses.append(run_command(["sh", "-c", "exit 3"])))
    thread.start()
    thread.join(HANGS_S)
    assert statuses == [3]


def _file(path, text, mode):
    path.write_text(text)
    path.chmod(mode)
    return path


_READ, _RUN = stat.S_IRUSR, stat.S_IRUSR | stat.S_IXUSR


@pytest.mark.parametrize(
    ("make", "status", "words"),
    [
        (lambda folder: "no-such-command", 127, "not found; give its path, or check its name and PATH"),
        (lambda folder: folder / "none", 127, "not found"),
        (lambda folder: folder, 126, "is a folder; name a program in it"),
        (lambda folder: _file(folder / "a.sh", "#!/bin/sh\n", _READ), 126, "not executable; chmod +x it"),
        (lambda folder: _file(folder / "b", "#!/no/such\n", _RUN), 126, "names an interpreter in its first line"),
        (lambda folder: _file(folder / "c", "echo\n", _RUN), 126, "has no '#!' line; name its interpreter"),
    ],
    ids=["name", "path", "folder", "mode", "interpreter", "format"],
)
def test_what_cannot_be_started_says_so_with_the_status_of_shells(tmp_path, make, status, words):
    name = str(make(tmp_path))
    with pytest.raises(CommandError) as caught:
        run_command([name, "argument"])
    assert caught.value.status == status
    assert str(caught.value).startswith(f"command '{name}': ")
    assert words in str(caught.value)


@pytest.mark.parametrize(("name", "cure"), [("train.py", ": python train.py"), ("run.sh", "write ./run.sh")])
def test_a_file_of_this_folder_is_no_command_without_its_path(tmp_path, monkeypatch, name, cure):
    monkeypatch.chdir(tmp_path)
    _file(tmp_path / name, "echo\n", _RUN)
    with pytest.raises(CommandError, match="not found") as caught:
        run_command([name])
    assert caught.value.status == 127
    assert str(caught.value).endswith(cure)


def test_handlers_are_as_before_afterwards():
    before = [signal.getsignal(number) for number in (*module._WAITED_OUT, *module._PASSED_ON, signal.SIGCHLD)]
    run_command(["true"])
    assert before == [signal.getsignal(n) for n in (*module._WAITED_OUT, *module._PASSED_ON, signal.SIGCHLD)]


_LISTEN = """
import os, signal, sys
sys.path[:0] = sys.argv[1].split(os.pathsep)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
    signal.signal(number, signal.SIG_DFL)
if "ignores the ends" in sys.argv:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from voxelocity_observe.core.command import run_command
child = '''
count=0
trap 'count=$((count+1)); echo got $count' INT TERM
echo ready
while [ $count -lt 1 ]; do sleep 0.02; done
sleep 0.1; echo bye $count; exit 7
'''
print("status", run_command(["sh", "-c", child]), flush=True)
"""


def _listener(*more):
    arguments = [sys.executable, "-c", _LISTEN, python_path(), *more]
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout.readline() == "ready\n"
    return child


def test_ctrl_c_reaches_the_command_once_and_its_own_end_is_waited_for():
    child = _listener()
    os.killpg(child.pid, signal.SIGINT)
    out, _ = child.communicate(timeout=HANGS_S)
    assert (out, child.returncode) == ("got 1\nbye 1\nstatus 7\n", 0)


@pytest.mark.parametrize("more", [[], ["ignores the ends"]])
def test_sigterm_to_us_is_passed_on_also_where_our_parent_ignores_the_ends_of_children(more):
    child = _listener(*more)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=HANGS_S)
    assert (out, child.returncode) == ("got 1\nbye 1\nstatus 7\n", 0)
