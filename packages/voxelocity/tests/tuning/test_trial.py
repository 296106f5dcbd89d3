"""Trials that succeed, run out of memory, crash, hang and leave processes behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from shared.limits import HANGS_S
from voxelocity.tuning.answer import memory_errors_answer, write_answer
from voxelocity.tuning.trial import TrialLimits, TrialOutcome, run_trial
from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.core.errors import OutputError

MIB = 2**20


@pytest.fixture
def trial(tmp_path):
    """Runs Python lines as a trial; `answer` is the file's path in them."""

    def run(lines: str, *, seconds: float = HANGS_S, clock=None, **limits) -> TrialOutcome:
        answer = tmp_path / "answer.json"
        code = (
            f"import json, os, pathlib, signal, subprocess, sys, time\nanswer = pathlib.Path({str(answer)!r})\n{lines}"
        )
        return run_trial(
            [sys.executable, "-I", "-S", "-c", code],
            answer=answer,
            log=tmp_path / "log",
            limits=TrialLimits(seconds=seconds, **limits),
            **({} if clock is None else {"clock": clock}),
        )

    return run


ANSWER = "answer.write_text(json.dumps({'measurements': {'seconds': [1.0, 2.0]}, 'about': {'word': 'a'}}))\n"


def test_measurements_and_peaks_are_read(trial):
    outcome = trial(f"held = bytearray({64 * MIB})\n{ANSWER}")
    assert outcome.kind == "finished"
    assert outcome.measurements == {"seconds": (1.0, 2.0)}
    assert outcome.about == {"word": "a"}
    assert outcome.reason == ""
    assert 0.0 < outcome.seconds < HANGS_S


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_more_main_memory_than_allowed_is_out_of_memory(trial):
    outcome = trial(f"held = bytearray({200 * MIB})\ntime.sleep(60)", host_bytes=100 * MIB)
    assert outcome.kind == "out_of_memory"
    assert outcome.peak_host_bytes > 100 * MIB
    assert "100 MiB" in outcome.reason
    assert outcome.seconds < HANGS_S


def test_a_peak_that_the_trial_reports_itself_counts_against_the_limit(trial):
    lines = f"answer.write_text(json.dumps({{'measurements': {{'s': [1.0]}}, 'peak_host_bytes': {300 * MIB}}}))"
    assert trial(lines, host_bytes=200 * MIB).kind == "out_of_memory"
    assert trial(lines, host_bytes=400 * MIB).kind == "finished"


@pytest.mark.parametrize(
    "lines",
    [
        "raise MemoryError",
        "sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB')",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "answer.write_text(json.dumps({'out_of_memory': 'no room for a patch'})); sys.exit(1)",
    ],
)
def test_running_out_of_memory_is_recognized(trial, lines):
    assert trial(lines).kind == "out_of_memory"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("print('the last thing'); sys.exit(3)", "status 3"),
        ("print('the last thing', flush=True); os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("print('the last thing')", "without finite measurements"),
        ("print('the last thing'); answer.write_text('{\"measurements\": ')", "without finite measurements"),
        ("print('the last thing'); answer.write_text('{\"measurements\": {\"s\": [NaN]}}')", "without finite"),
    ],
)
def test_a_crash_is_an_outcome_with_its_last_lines(trial, lines, words):
    outcome = trial(lines)
    assert outcome.kind == "crashed"
    assert words in outcome.reason
    assert "the last thing" in outcome.reason


def test_a_command_that_does_not_exist_is_a_crash(tmp_path):
    outcome = run_trial(
        [str(tmp_path / "no-such-program")],
        answer=tmp_path / "a",
        log=tmp_path / "log",
        limits=TrialLimits(seconds=HANGS_S),
    )
    assert outcome.kind == "crashed"
    assert "no-such-program" in outcome.reason or "No such file" in outcome.reason


def has_ended(pid):
    """Whether a process that was killed is gone within 10 s; nobody may ask for its status."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        psutil.wait_procs([process], timeout=10)
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def test_a_hang_is_ended_with_everything_that_it_started(trial, tmp_path):
    # A child in a session of its own, which a signal to the group does not reach.
    lines = f"""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
time.sleep(600)
"""
    outcome = trial(lines, seconds=1.5)
    assert outcome.kind == "hung"
    assert has_ended(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends it by prctl")
def test_a_trial_ends_with_the_program_that_started_it(tmp_path):
    writes = f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))"
    child = f"import os, pathlib, time; {writes}; time.sleep(600)"
    parent = f"""
import os, signal, sys, threading, time
from pathlib import Path
from voxelocity.tuning.trial import TrialLimits, run_trial
def kill():
    while not (Path({str(tmp_path)!r}) / "pid").exists() or not (Path({str(tmp_path)!r}) / "pid").read_text():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=kill).start()
run_trial([sys.executable, "-c", {child!r}], answer=Path({str(tmp_path)!r}) / "a", log=Path({str(tmp_path)!r}) / "log",
          limits=TrialLimits(seconds=1500.0))
"""
    subprocess.run([sys.executable, "-c", parent], check=False, env=os.environ)
    assert has_ended(int((tmp_path / "pid").read_text()))


def test_time_is_counted_by_a_clock_that_never_goes_back(trial, monkeypatch):
    # An hour forward and a day back, as a wall clock that is set.
    jumps = iter([3600.0, -86400.0] * 10_000)
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    outcome = trial(ANSWER)
    assert outcome.kind == "finished"
    assert 0.0 < outcome.seconds < HANGS_S


def test_seconds_are_those_of_the_clock(trial):
    clock = FakeClock()
    assert trial(ANSWER, clock=clock).seconds == 0.0


def test_no_process_to_be_had_is_out_of_memory(trial, monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert trial(ANSWER).kind == "out_of_memory"


def test_a_log_that_cannot_be_written_names_the_file(tmp_path):
    log = tmp_path / "missing" / "log"
    with pytest.raises(OutputError, match=r"missing.*-o"):
        run_trial(["true"], answer=tmp_path / "a", log=log, limits=TrialLimits(seconds=1.0))


def test_a_trial_is_no_rank_of_the_program_that_started_it(trial, monkeypatch):
    ranks = ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    of_launchers = {*ranks, "TORCHELASTIC_RUN_ID", "SLURM_RESTART_COUNT"}
    for name in of_launchers:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("MY_VARIABLE", "kept")
    lines = "answer.write_text(json.dumps({'measurements': {'s': [1.0]}, 'about': dict(os.environ)}))"
    variables = trial(lines).about
    assert variables["MY_VARIABLE"] == "kept"
    assert not of_launchers & variables.keys()


def test_outcomes_survive_being_written():
    outcome = TrialOutcome(kind="finished", seconds=1.5, measurements={"s": (1.0, 2.0)}, about={"n": 1})
    assert TrialOutcome.from_plain(json.loads(json.dumps(outcome.to_plain()))) == outcome


def test_an_answer_has_the_peaks_and_what_was_not_seen(tmp_path):
    write_answer(tmp_path / "answer", {"s": [1.0]}, unseen_host_bytes=10**12, word="a")
    answer = json.loads((tmp_path / "answer").read_text())
    assert answer["measurements"] == {"s": [1.0]}
    assert answer["about"]["word"] == "a"
    assert answer["peak_host_bytes"] > 10**12


def test_errors_of_memory_become_an_answer_and_others_stay_errors(tmp_path):
    with pytest.raises(SystemExit), memory_errors_answer(tmp_path / "answer"):
        raise MemoryError("no room")
    assert json.loads((tmp_path / "answer").read_text())["out_of_memory"] == "no room"
    with pytest.raises(RuntimeError, match="broken"), memory_errors_answer(tmp_path / "other"):
        raise RuntimeError("broken")
    assert not (tmp_path / "other").exists()


@pytest.mark.gpu
def test_a_limit_on_a_device_is_its_allocators_error(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    code = """
import sys
from pathlib import Path
import torch
from voxelocity.tuning.answer import limit_device_memory, memory_errors_answer, write_answer
with memory_errors_answer(Path(sys.argv[1])):
    limit_device_memory(torch.device("cuda", 0), 2**29)
    held = torch.empty(2**int(sys.argv[2]), dtype=torch.uint8, device="cuda")
    write_answer(Path(sys.argv[1]), {"s": [1.0]})
"""
    kinds = {}
    for power in (28, 30):
        kinds[power] = run_trial(
            [sys.executable, "-c", code, str(tmp_path / "a"), str(power)],
            answer=tmp_path / "a",
            log=tmp_path / "log",
            limits=TrialLimits(seconds=100.0, device_bytes=2**29),
        )
    assert (kinds[28].kind, kinds[30].kind) == ("finished", "out_of_memory")
    assert kinds[28].peak_device_bytes >= 2**28
