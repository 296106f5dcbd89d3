"""`voxelocity monitor` around real commands."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared.refused import assert_refused
from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.monitor import exposition, page, watch
from voxelocity_observe.monitor.files import read_monitor
from voxelocity_observe.monitor.monitor import Monitor


@pytest.fixture
def made(monkeypatch):
    """Pages, pictures and metrics that were made, instead of making them."""
    seen = SimpleNamespace(pages=[], pictures=[], metrics=[])

    def fake(module, function, into):
        def make(given, path):
            into.append((given, path))
            Path(path).write_text("x" * len(into))
            return path

        monkeypatch.setattr(module, function, make)

    fake(page, "render_monitor_page", seen.pages)
    fake(page, "render_monitor_png", seen.pictures)
    fake(exposition, "write_openmetrics", seen.metrics)
    return seen


@pytest.fixture
def monitor(voxelocity, made, tmp_path, tmp_path_factory):
    """The command with its record in `tmp_path/out`; `out` is all that went to stdout, the child's own included."""

    def call(*arguments):
        written = tmp_path_factory.mktemp("child") / "out"
        before = os.dup(1)
        with open(written, "w") as file:
            os.dup2(file.fileno(), 1)
        try:
            outcome = voxelocity("monitor", "-o", tmp_path / "out", *arguments)
        finally:
            os.dup2(before, 1)
            os.close(before)
        return SimpleNamespace(status=outcome.status, out=outcome.out + written.read_text(), err=outcome.err)

    return call


def until_sampled(table, end, *, num_bytes=0):
    """A command that waits until the table has two rows below its head (the file so many bytes), then ends so."""
    lines, enough = ("wc -c", num_bytes) if num_bytes else ("wc -l", 3)
    return ["sh", "-c", f'until [ -e "$0" ] && [ $({lines} < "$0") -ge {enough} ]; do sleep 0.02; done; {end}', table]


def test_the_command_keeps_its_output_and_its_status_and_its_record_is_made(monitor, made, tmp_path):
    command = until_sampled(tmp_path / "out" / "samples.csv", "echo mine; exit 42")
    told = monitor("--period", "0.1", "--", *command)
    assert (told.status, told.out) == (42, "mine\n")
    record = read_monitor(tmp_path / "out")
    assert record.status == 42
    assert record.command == tuple(map(str, command))
    assert len(record.samples) >= 2
    assert made.pages[0][1] == tmp_path / "out" / "monitor.html"
    assert made.pictures[0][1] == tmp_path / "out" / "monitor.png"
    assert made.pages[0][0].samples
    assert "voxelocity: the command ended with status 42 after" in told.err
    assert f"voxelocity: see {tmp_path / 'out' / 'monitor.html'}" in told.err.replace("\n ", " ")


def test_monitors_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    taken = []

    def prepare(place):
        if not taken:
            # Another one is quicker.
            taken.append(Monitor(place).prepare())
        return Monitor(place).prepare()

    place, monitor = watch._in_new_folder(prepare)
    assert place.name == f"{taken[0].folder.name}_2"
    for each in (monitor, *taken):
        each.discard()
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "monitor").write_text("a file")
    with pytest.raises(OutputError, match="monitor"):
        watch._in_new_folder(prepare)


def test_without_a_stderr_the_status_is_still_the_commands(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    command = ["sh", "-c", "exit 3"]
    assert watch.watch(command, folder=tmp_path / "out", is_live=True, has_page=False) == 3


def test_options_after_the_commands_name_are_the_commands(monitor):
    assert monitor("--no-page", "echo", "--live", "-o", "x", "--help").out == "--live -o x --help\n"


def test_a_command_that_is_killed_leaves_a_whole_record_that_says_so(monitor, made, tmp_path):
    told = monitor("--period", "0.1", "--", *until_sampled(tmp_path / "out" / "samples.csv", "kill -9 $$"))
    assert told.status == 137
    assert "the command was ended by SIGKILL" in told.err
    record = read_monitor(tmp_path / "out")
    assert record.status == -9
    assert record.samples
    assert not [line for line in record.missing if "the end" in line]
    assert len(made.pages) == 1


@pytest.mark.parametrize(
    ("command", "status", "words"), [("no-such-command", 127, "not found"), ("/", 126, "is a folder")]
)
def test_a_command_that_cannot_start_leaves_nothing_behind(monitor, tmp_path, command, status, words):
    told = monitor("--", command)
    assert told.status == status
    assert f"voxelocity: command '{command}':" in told.err
    assert words in told.err
    assert not (tmp_path / "out").exists()


def test_without_a_page_only_facts_are_written(monitor, made, tmp_path):
    told = monitor("--no-page", "true")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["monitor.json", "samples.csv"]
    assert made.pages == made.pictures == []
    assert f"voxelocity: see {tmp_path / 'out'}\n" in told.err


def test_the_newest_sample_lies_in_the_file_for_openmetrics(monitor, made, tmp_path):
    metrics = tmp_path / "metrics.prom"
    monitor("--period", "0.1", "--openmetrics", metrics, "--", *until_sampled(metrics, "exit", num_bytes=2))
    assert made.metrics[-1][1] == metrics
    assert made.metrics[-1][0].time_s > 0


def test_metrics_and_pages_that_cannot_be_written_are_told_and_change_no_status(monitor, monkeypatch, tmp_path):
    def fail(*_):
        raise OutputError("report: cannot write 'there': No space left on device; free the path or choose another")

    monkeypatch.setattr(page, "render_monitor_png", fail)
    monkeypatch.setattr(exposition, "write_openmetrics", fail)
    command = until_sampled(tmp_path / "out" / "samples.csv", "exit 5")
    told = monitor("--period", "0.1", "--openmetrics", tmp_path / "m", "--", *command)
    assert told.status == 5
    assert told.err.count("voxelocity: openmetrics: report: cannot write 'there'") == 1
    assert "voxelocity: the page could not be made (report: cannot write" in told.err
    assert len(read_monitor(tmp_path / "out").samples) >= 2


def test_a_fault_of_our_own_while_drawing_leaves_the_record_and_the_commands_status(monitor, monkeypatch, tmp_path):
    def broken(*_):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(page, "render_monitor_page", broken)
    told = monitor("--period", "0.1", "--", "sh", "-c", "exit 7")
    assert told.status == 7
    assert "the page could not be made (ZeroDivisionError: division by zero); the record is complete" in told.err
    assert read_monitor(tmp_path / "out").status == 7


def test_a_disk_that_fills_is_told_once_and_changes_no_status(monitor, monkeypatch, made, tmp_path):
    write = os.write
    monkeypatch.setattr("voxelocity_observe.monitor.files.os.write", lambda fd, line: write(fd, line[:5]))
    metrics = tmp_path / "metrics.prom"
    command = until_sampled(metrics, "exit 6", num_bytes=2)
    told = monitor("--period", "0.1", "--openmetrics", metrics, "--", *command)
    assert told.status == 6
    assert told.err.count("samples are kept in memory") == 1
    assert any("samples are kept in memory" in line for line in made.pages[0][0].missing)
    assert len(made.pages[0][0].samples) >= 2


def test_live_without_a_terminal_says_so_in_a_line_and_goes_on(monitor):
    told = monitor("--live", "--no-page", "--", "echo", "mine")
    assert (told.status, told.out) == (0, "mine\n")
    assert "voxelocity: --live shows nothing: stderr is not a terminal\n" in told.err


def test_a_folder_with_a_record_and_a_wrong_period_are_refused_before_the_command_runs(monitor, tmp_path):
    monitor("--no-page", "true")
    assert_refused(monitor("--no-page", "--", "touch", tmp_path / "ran"), "holds a record already; name another folder")
    (tmp_path / "notes").touch()
    told = monitor("-o", tmp_path / "notes", "touch", tmp_path / "ran")
    assert_refused(told, f"monitoring: {tmp_path / 'notes'} is a file; name a folder for the record")
    assert_refused(monitor("--period", "0", "--", "touch", tmp_path / "ran"), "choose 0.1 to 60 s")
    assert not (tmp_path / "ran").exists()


def test_without_a_folder_one_is_made_by_date_and_time(voxelocity, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert voxelocity("monitor", "--no-page", "true").status == 0
    assert voxelocity("monitor", "--no-page", "true").status == 0
    folders = list((tmp_path / "monitor").iterdir())
    assert len(folders) == 2
    assert all(json.loads((folder / "monitor.json").read_text())["is_over"] for folder in folders)


def test_the_command_gets_its_own_variables_and_the_place_for_phases(monitor, monkeypatch, tmp_path):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    told = monitor("--no-page", "--", "sh", "-c", 'echo "${OMP_WAIT_POLICY-unset} $VOXELOCITY_SPANS"')
    assert told.out == f"unset {tmp_path / 'out'}\n"


def test_phases_that_the_command_marked_are_in_the_record(monitor, made):
    span = """import json, os, time
place = os.environ["VOXELOCITY_SPANS"]
with open(f"{place}/spans-{os.getpid()}.jsonl", "w") as file:
    print(json.dumps({"name": "fit", "start_s": time.perf_counter(), "seconds": 0.01}), file=file)
"""
    monitor("--", sys.executable, "-S", "-c", span)
    (mark,) = made.pages[0][0].phases
    assert mark.name == "fit"
    assert abs(mark.start_s) < 60


@pytest.mark.parametrize(
    ("own", "seen"), [({}, ("PASSIVE", "10000")), ({"OMP_WAIT_POLICY": "ACTIVE"}, ("ACTIVE", None))]
)
def test_other_commands_let_waiting_threads_sleep_soon_unless_told_otherwise(
    voxelocity, monkeypatch, tmp_path, own, seen
):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        # Set first, so that the variable that the command sets is taken back after the test.
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    voxelocity("report", tmp_path / "none")
    assert (os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT")) == seen


@pytest.mark.parametrize("words", [("bench", "none"), ("demo", "--seeds", "none")])
def test_scripts_of_a_race_wait_as_the_users_do_and_send_no_statistics(voxelocity, monkeypatch, words):
    for name in ("OMP_WAIT_POLICY", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    voxelocity(*words)
    assert "OMP_WAIT_POLICY" not in os.environ
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_nobody_who_listens_is_no_reason_to_fail(made, tmp_path):
    class Closed:
        encoding = "utf-8"

        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            raise BrokenPipeError

        def isatty(self):
            return False

    assert watch.watch(["sh", "-c", "exit 4"], folder=tmp_path / "out", is_live=True, stream=Closed()) == 4
