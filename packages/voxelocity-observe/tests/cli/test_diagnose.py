"""The command around programs that are played: the recorder, the judge and the samplers have their own tests."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import types
from pathlib import Path

import pytest

from shared.diagnoses import with_facts
from shared.refused import assert_refused
from voxelocity.report import own_run
from voxelocity_observe.core.errors import InputError, OutputError
from voxelocity_observe.diagnose import session
from voxelocity_observe.diagnose.facts import Ending
from voxelocity_observe.diagnose.result import diagnosis_to_plain, read_diagnosis, write_diagnosis
from voxelocity_observe.diagnose.tracing import nsys
from voxelocity_observe.diagnose.watching import command as watching
from voxelocity_observe.monitor.samples import HostSample, Sample


class Play:
    """What stands in for the other rooms, and what they were asked."""

    def __init__(self, diagnosis):
        self.diagnosis = diagnosis
        self.status = 0
        self.records = True
        self.is_quiet = False
        self.trace = False
        self.bad_trace = False
        self.read_error = None
        self.said = ""
        self.calls = {}

    def names(self):
        """By module, what each function is replaced by."""
        return {
            watching: {
                "run_command": self.run_command,
                "Sampler": self.sampler,
                "recording_environment": self.recording_environment,
            },
            session: {
                "read_facts": self.read_facts,
                "profile_facts": self.profile_facts,
                "write_timeline": lambda facts, path: path.write_text("[]"),
                "diagnose": self.judge,
            },
            own_run: {"facts_of_run": self.facts_of_run},
        }

    def recording_environment(self, folder, **limits):
        self.calls["limits"] = limits
        return {"RECORD": str(folder)}

    def run_command(self, command, *, environment, on_start, tick, tick_s):
        self.calls["command"], self.calls["tick_s"] = list(command), tick_s
        recording = Path(environment["RECORD"])
        assert recording.is_absolute()
        if self.status == 127:
            return 127
        on_start(4711)
        os.write(1, self.said.encode())
        if self.is_quiet:
            tick()
            tick()
        if self.records:
            (recording / "events-1.jsonl").write_text("{}\n")
        if self.trace:
            (recording / "trace.json.gz").write_text("")
        return self.status

    def sampler(self, *, period_s, pid):
        samples = [Sample(time_s=9.0, period_s=period_s, host=HostSample(program_cores=1.0, num_threads=7))]
        self.calls["sampling"] = [pid]
        return types.SimpleNamespace(
            start=lambda: self.calls["sampling"].append("start"),
            stop=lambda: self.calls["sampling"].append("stop"),
            samples=samples,
            begin_s=0.0,
        )

    def read_facts(self, folder):
        if self.read_error:
            raise self.read_error
        return dataclasses.replace(self.diagnosis.facts, command=(), status=None, host=None, environment={})

    def profile_facts(self, path):
        assert path.name == "trace.json.gz"
        if self.bad_trace:
            raise InputError("trace: cut off")
        return self.calls["profile"]

    def judge(self, facts):
        self.calls["facts"] = facts
        return dataclasses.replace(self.diagnosis, facts=facts, not_measured=facts.not_measured)

    def facts_of_run(self, folder):
        self.calls["run"] = folder
        return self.diagnosis.facts


@pytest.fixture
def play(example_diagnosis, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    actor = Play(example_diagnosis("data-bound"))
    for module, members in actor.names().items():
        for name, member in members.items():
            monkeypatch.setattr(module, name, member)
    return actor


def test_a_command_is_watched_and_its_diagnosis_shown_and_written(voxelocity, play, tmp_path):
    shown = voxelocity("diagnose", "--", "python", "train.py", "--json", "-o", "x", "--", "y").succeeded()
    assert play.calls["command"] == ["python", "train.py", "--json", "-o", "x", "--", "y"], "its arguments are its own"
    assert play.calls["limits"] == {
        "seconds": 120.0,
        "whole": False,
        "experiments": True,
        "nsys": False,
        "keeps_saves": False,
    }
    assert play.calls["sampling"] == [4711, "start", "stop"]
    assert "1. Batches are made in the training's own thread, one after the other [VX101]" in shown.out
    assert "Page     diagnosis/diagnosis.html" in shown.out
    assert "Trace    diagnosis/timeline.json" in shown.out
    assert shown.err == (
        "voxelocity: watching python train.py --json -o x -- y; it is stopped once enough is recorded, after at most "
        "120 s of steps, and cannot write files while it is being stopped; press Ctrl-C to diagnose what is recorded "
        "so far\n"
    )
    stored = read_diagnosis(tmp_path / "diagnosis")
    assert stored.facts.command == ("python", "train.py", "--json", "-o", "x", "--", "y")
    assert stored.facts.host.num_threads == 7
    assert stored.facts.environment["torch"] == "2.13.0", "the program's version"
    assert "cpu" in stored.facts.environment
    assert "of the training time waiting for data" in (tmp_path / "diagnosis" / "diagnosis.html").read_text()


def test_limits_and_wishes_reach_the_recorder(voxelocity, play, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    options = ["--seconds", "5", "--whole", "--no-experiments", "--nsys", "--keep-saves", "-o", "out"]
    shown = voxelocity("diagnose", *options, "python", "train.py", "--whole")
    assert shown.status == 0
    limits = {"seconds": 5.0, "whole": True, "experiments": False, "nsys": False, "keeps_saves": True}
    assert play.calls["limits"] == limits
    assert play.calls["command"] == ["python", "train.py", "--whole"]
    assert "voxelocity: nsys is not on PATH: get Nsight Systems from https://" in shown.err
    assert "watching python train.py --whole to its own end; press Ctrl-C" in shown.err


@pytest.mark.parametrize(
    ("options", "has_driver", "devices", "is_used"),
    [([], True, "0", True), (["--no-nsys"], True, "0", False), ([], False, "0", False), ([], True, "", False)],
)
def test_nsight_records_where_it_and_a_gpu_are(
    voxelocity, play, monkeypatch, tmp_path, options, has_driver, devices, is_used
):
    executable = tmp_path / "bin" / "nsys"
    executable.parent.mkdir()
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    monkeypatch.setenv("PATH", str(executable.parent))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    monkeypatch.setattr(nsys, "_DRIVERS", (tmp_path if has_driver else tmp_path / "none",))
    shown = voxelocity("diagnose", *options, "python", "train.py")
    assert shown.status == 0
    assert play.calls["limits"]["nsys"] is is_used
    assert (play.calls["command"][0] == str(executable)) is is_used
    assert ("--no-nsys has torch.profiler record them" in shown.err) is is_used


@pytest.fixture
def python_raises_ctrl_c():
    """As in a terminal; what runs in the background of a shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_raises_ctrl_c")
def test_ctrl_c_while_the_command_runs_ends_neither_us_nor_the_diagnosis(voxelocity, play, monkeypatch):
    handlers = []
    monkeypatch.setattr(play, "sampler", lambda **_: handlers.append(signal.getsignal(signal.SIGINT)))
    play.status = 130
    run = play.run_command

    def run_command(command, *, on_start, **others):
        handlers.append(signal.getsignal(signal.SIGINT))
        return run(command, on_start=lambda pid: None, **others)

    monkeypatch.setattr(watching, "run_command", run_command)
    play.diagnosis = with_facts(play.diagnosis, ended=Ending(reason="program", time_s=1.0))
    shown = voxelocity("diagnose", "--", "python", "train.py")
    assert handlers == [signal.default_int_handler], "it can be caught, where `main` would end at once"
    assert shown.status == 130
    assert play.calls["facts"].status == 130


def test_each_diagnosis_has_its_own_folder(voxelocity, play, tmp_path):
    for _ in range(3):
        assert voxelocity("diagnose", "--", "python", "train.py").status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["diagnosis", "diagnosis-2", "diagnosis-3"]


def test_json_is_all_that_stands_on_standard_output(play, capfd, monkeypatch):
    from voxelocity_observe.cli.main import main

    play.said = "the program's words\n"
    monkeypatch.setattr("sys.argv", ["voxelocity", "diagnose", "--json", "--", "python", "train.py"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    told = capfd.readouterr()
    plain = json.loads(told.out)
    assert plain["version"] == 1
    assert plain["findings"][0]["code"] == "VX101"
    assert "the program's words" in told.err


def test_evidence_is_printed_where_asked_for(voxelocity, play):
    assert "LoadImaged" not in voxelocity("diagnose", "--", "python", "a.py").out.split("Page ")[1]
    assert "Transforms, costliest first" in voxelocity("diagnose", "--evidence", "--", "python", "a.py").out


@pytest.mark.parametrize(
    ("status", "reason", "ends"), [(0, "limit", 0), (1, "limit", 0), (3, "error", 3), (137, None, 137)]
)
def test_the_status_is_the_programs_own_unless_it_was_ended_by_us(voxelocity, play, status, reason, ends):
    play.status = status
    ending = None if reason is None else Ending(reason=reason, time_s=1.0)
    play.diagnosis = with_facts(play.diagnosis, ended=ending, profile=None)
    shown = voxelocity("diagnose", "--", "python", "train.py")
    assert shown.status == ends
    assert "61 % of the training time" in shown.out, "what was seen is diagnosed all the same"
    assert play.calls["facts"].status == status


def test_a_program_that_runs_to_its_own_end_has_its_own_status(voxelocity, play):
    # It went on after the last step that is watched, and failed then.
    play.status = 3
    play.diagnosis = with_facts(play.diagnosis, ended=Ending(reason="limit", time_s=1.0), profile=None)
    assert voxelocity("diagnose", "--whole", "--", "python", "train.py").status == 3


def test_a_stderr_that_cannot_be_written_costs_nothing(voxelocity, play, monkeypatch):
    def full(text, err=False, **_):
        assert err
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("voxelocity_observe.cli.diagnose.typer.echo", full)
    shown = voxelocity("diagnose", "--", "python", "train.py")
    assert (shown.status, shown.err) == (0, "")
    assert "61 % of the training time" in shown.out


def test_a_command_may_have_the_name_of_a_folder(voxelocity, play, tmp_path):
    (tmp_path / "python").mkdir()
    assert voxelocity("diagnose", "--", "python", "train.py").status == 0
    assert play.calls["command"] == ["python", "train.py"]


def test_diagnoses_that_begin_at_the_same_moment_share_no_folder(voxelocity, play, tmp_path, monkeypatch):
    # As if another one made the folder just after this one has looked for it.
    monkeypatch.setattr(Path, "exists", lambda path, **_: path.name != "diagnosis" and os.path.exists(path))
    (tmp_path / "diagnosis" / "recording").mkdir(parents=True)
    assert voxelocity("diagnose", "--", "python", "train.py").status == 0
    assert [*(tmp_path / "diagnosis" / "recording").iterdir()] == []


def test_a_program_that_starts_no_python_is_told_with_the_cure_and_leaves_nothing(voxelocity, play, tmp_path):
    play.records = False
    shown = voxelocity("diagnose", "--", "sleep", "3")
    assert shown.status == 2
    assert "nothing was recorded of 'sleep 3': it started no Python that could be watched" in shown.err
    assert "leave out Python's -I, -E and -S" in shown.err
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_removes_the_folder_of_its_recording_is_told_that_nothing_is_left(
    voxelocity, play, monkeypatch, tmp_path
):
    def run_command(command, *, environment, **others):
        shutil.rmtree(Path(environment["RECORD"]).parent)
        return 0

    monkeypatch.setattr(watching, "run_command", run_command)
    shown = voxelocity("diagnose", "-o", tmp_path / "gone", "--", "python", "train.py")
    assert_refused(shown, "nothing was recorded of 'python train.py'", most_lines=2)
    assert not (tmp_path / "gone").exists()


def test_a_command_of_which_nothing_is_recorded_for_a_while_is_told_once_while_it_runs(voxelocity, play):
    play.is_quiet = True
    shown = voxelocity("diagnose", "--", "sh", "run.sh")
    told = (
        "voxelocity: no Python that can be watched has started within 20 s; if it is already training, press Ctrl-C\n"
    )
    assert shown.err.count(told) == 1
    assert play.calls["tick_s"] == 20.0
    assert shown.status == 0


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, "torchrun"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "4"}, "srun"),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
          "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "mpirun"),
    ],
)  # fmt: skip
def test_a_diagnosis_of_each_rank_is_refused_with_the_cure(voxelocity, play, monkeypatch, variables, launcher):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    shown = voxelocity("diagnose", "--", "python", "a.py")
    assert shown.status == 2
    assert f"{launcher} starts it 4 times" in shown.err
    assert f"voxelocity diagnose -- {launcher} ..." in shown.err


def test_a_job_of_slurm_with_one_task_is_watched(voxelocity, play, monkeypatch):
    # As in a job's script: the tasks are those of the job, and no step has started.
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert voxelocity("diagnose", "--", "python", "a.py").status == 0


@pytest.mark.parametrize("status", [1, 127])
def test_a_command_that_fails_at_once_ends_with_its_own_status(voxelocity, play, status):
    play.records, play.status = False, status
    shown = voxelocity("diagnose", "--", "pyton", "train.py")
    assert shown.status == status
    assert f"ended with status {status} before Python started" in shown.err


@pytest.mark.parametrize(("command", "status"), [("no-such-command", 127), ("/dev/null", 126)])
def test_a_command_that_cannot_be_started_leaves_no_folder(voxelocity, monkeypatch, tmp_path, command, status):
    monkeypatch.chdir(tmp_path)
    told = voxelocity("diagnose", "--", command, "train.py")
    assert told.status == status, told.err
    assert list(tmp_path.iterdir()) == []


def test_a_recording_that_says_nothing_is_told_in_the_readers_words(voxelocity, play):
    play.read_error = InputError("diagnose: no process trained; cure")
    shown = voxelocity("diagnose", "--", "python", "a.py")
    assert (shown.status, shown.out) == (2, "")
    assert "voxelocity: diagnose: no process trained; cure" in shown.err


def test_a_python_that_shuts_recorders_out_is_refused_before_it_runs(voxelocity, play, tmp_path):
    shown = voxelocity("diagnose", "--", "python3", "-I", "train.py")
    assert shown.status == 2
    assert "leave out -I while it is diagnosed" in shown.err
    assert "watching" not in shown.err
    assert "command" not in play.calls
    assert list(tmp_path.iterdir()) == []


def test_a_profile_is_taken_in_and_its_files_are_named(voxelocity, play, example_diagnosis):
    play.trace = True
    play.calls["profile"] = example_diagnosis("on a GPU").facts.profile
    shown = voxelocity("diagnose", "--", "python", "train.py")
    assert "Trace    diagnosis/recording/trace.json.gz" in shown.out
    assert "Kernels  diagnosis/kernels.json" in shown.out
    assert "Tensor-core kernels" in json.loads(Path("diagnosis/kernels.json").read_text())
    assert read_diagnosis(Path("diagnosis")).facts.profile.num_steps == 3
    page = Path("diagnosis/diagnosis.html")
    assert "<code>recording/trace.json.gz</code>" in page.read_text()
    again = voxelocity("diagnose", "-o", "elsewhere", "diagnosis")
    assert "Trace    diagnosis/recording/trace.json.gz" in again.out
    assert "<code>../diagnosis/recording/trace.json.gz</code>" in Path("elsewhere/diagnosis.html").read_text()


def test_a_trace_that_cannot_be_read_loses_nothing_else(voxelocity, play):
    play.trace = play.bad_trace = True
    shown = voxelocity("diagnose", "--", "python", "train.py")
    assert shown.status == 0
    assert "- kernels and operators: trace: cut off" in shown.out
    assert "VX101" in shown.out


def test_a_disk_that_fills_costs_the_files_and_not_the_diagnosis(voxelocity, play, monkeypatch):
    def full(path, content):
        raise OutputError(f"report: cannot write '{path}': No space left on device")

    monkeypatch.setattr("voxelocity_observe.diagnose.result.write_whole", full)
    shown = voxelocity("diagnose", "--", "python", "train.py")
    assert shown.status == 1
    assert "1. Batches are made in the training's own thread, one after the other [VX101]" in shown.out
    assert "Page " not in shown.out
    assert "No space left on device; the diagnosis is only on standard output" in shown.err


def test_the_folder_of_a_run_is_diagnosed_from_its_events(voxelocity, play, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text("{}")
    shown = voxelocity("diagnose", "run").succeeded()
    assert play.calls["run"] == Path("run")
    assert (tmp_path / "run" / "diagnosis" / "diagnosis.html").exists()
    again = voxelocity("diagnose", "run")
    assert again.out == shown.out


def test_a_run_of_someone_else_does_not_choose_where_its_diagnosis_is_written(voxelocity, play, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text("{}")
    (tmp_path / "other").mkdir()
    (tmp_path / "run" / "diagnosis").symlink_to(tmp_path / "other")
    assert_refused(voxelocity("diagnose", "run"), "run/diagnosis is a link to")
    assert [*(tmp_path / "other").iterdir()] == []


def test_the_folder_of_a_diagnosis_is_rendered_again_without_running_anything(voxelocity, play, tmp_path):
    write_diagnosis(play.diagnosis, tmp_path / "old")
    shown = voxelocity("diagnose", "--json", "old")
    assert json.loads(shown.out) == diagnosis_to_plain(play.diagnosis)
    assert "of the training time waiting for data" in (tmp_path / "old" / "diagnosis.html").read_text()
    assert "command" not in play.calls
    assert voxelocity("diagnose", "-o", "new", "old").status == 0
    assert (tmp_path / "new" / "diagnosis.html").exists()


def test_a_recording_that_was_cut_off_before_its_diagnosis_is_diagnosed_from_its_folder(voxelocity, play, tmp_path):
    (tmp_path / "cut" / "recording").mkdir(parents=True)
    voxelocity("diagnose", "cut").succeeded()
    assert "command" not in play.calls
    assert play.calls["facts"].steps == play.diagnosis.facts.steps
    assert (tmp_path / "cut" / "diagnosis.html").exists()
    assert read_diagnosis(tmp_path / "cut").verdict == play.diagnosis.verdict


@pytest.mark.parametrize(("status", "is_told"), [(0, True), (137, False)])
def test_processes_that_a_command_leaves_running_are_told_with_the_cure(voxelocity, play, monkeypatch, status, is_told):
    play.status = status
    monkeypatch.setattr(session, "orphan_processes", lambda recording: [11, 12])
    shown = voxelocity("diagnose", "--", "sh", "-c", "python train.py &")
    told = "the command has ended, but its processes 11, 12 still run and are recorded: this report covers what"
    assert (told in shown.err) == is_told
    cure = "run: rm diagnosis/diagnosis.json && voxelocity diagnose diagnosis"
    assert (cure in shown.err) == is_told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing to diagnose; give a command: voxelocity diagnose -- python train.py"),
        (["empty"], "empty holds neither a run (run.yaml) nor a diagnosis (diagnosis.json)"),
        (["empty", "--json"], "'--json' follows the folder empty; put options before it"),
        (["--seconds", "3", "--nsys", "empty"], "--seconds 3.0 and --nsys: empty is already recorded; leave it out"),
        (["-o", "full", "--", "python", "a.py"], "full is not empty; remove it, or choose another folder with -o"),
        (["-o", "full/file/x", "--", "python", "a.py"], "cannot make full/file/x/recording (Not a directory)"),
    ],
)
def test_what_makes_no_sense_is_told_with_the_cure(voxelocity, play, tmp_path, words, told):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    shown = voxelocity("diagnose", *words)
    assert shown.status == 2
    assert told in shown.err
    assert "command" not in play.calls
