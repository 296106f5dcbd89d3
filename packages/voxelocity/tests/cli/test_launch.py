"""Several ranks by one command: what it prints, and the status it ends with."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from shared.limits import HANGS_S
from shared.refused import assert_refused
from voxelocity_observe.core.environment import python_path


def launch(*arguments, memory):
    environment = {**os.environ, "PYTHONPATH": python_path(), "XDG_CACHE_HOME": str(memory)}
    return subprocess.run(
        [sys.executable, "-m", "voxelocity", "launch", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )


@pytest.fixture
def sets(tiny_sets):
    return [*tiny_sets, "--set", "data.cache.tier=disk", "--set", "planner.measure=never"]


@pytest.mark.nightly
def test_two_ranks_train_and_one_of_them_prints(tiny_msd, sets, tmp_path):
    ended = launch("-n", 2, "train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *sets, memory=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("(6 steps)") == 1
    assert (tmp_path / "run" / "events-rank1.jsonl").exists()


@pytest.mark.nightly
def test_two_ranks_train_folds_and_one_of_them_prints_the_pooled_scores(tiny_msd, sets, tmp_path):
    options = ["-o", tmp_path / "cv", "--folds", "0,2", "--device", "cpu", *sets]
    ended = launch("-n", 2, "train", tiny_msd, *options, memory=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("over 4 cases") == 1
    assert (tmp_path / "cv" / "fold_2" / "events-rank1.jsonl").exists()


def test_a_wrong_input_ends_all_ranks_with_one_message_and_its_status(own_msd, sets, tmp_path):
    (own_msd / "imagesTr" / "case_3.nii.gz").write_bytes(b"no scan")
    ended = launch("-n", 2, "train", own_msd, "-o", tmp_path / "run", "--device", "cpu", *sets, memory=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.count("voxelocity: ") == 1, ended.stderr
    assert "case_3" in ended.stderr
    assert "Traceback" not in ended.stderr


# Whoever runs the tests in the background of a shell has them start with the signal ignored.
_LISTEN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from voxelocity_observe.cli.main import main
main()
"""


def start_long_training(dataset, sets, folder):
    """The launcher of two ranks that have saved a checkpoint."""
    run = folder / "run"
    more = ["--device", "cpu", *sets, "--set", "train.steps=100000", "--set", "train.checkpoint_every_s=1"]
    launcher = subprocess.Popen(
        [sys.executable, "-c", _LISTEN, "launch", "-n", "2", "train", dataset, "-o", run, *more],
        env={
            **os.environ,
            "PYTHONPATH": python_path(),
            "XDG_CACHE_HOME": str(folder),
        },
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end_s = time.monotonic() + HANGS_S
    while not any(run.glob("checkpoints/*.pt")):
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < end_s
        time.sleep(0.05)
    return launcher


@pytest.mark.nightly
def test_ctrl_c_stops_all_ranks_with_their_state_saved(tiny_msd, sets, tmp_path):
    launcher = start_long_training(tiny_msd, sets, tmp_path)
    # As a terminal does it.
    os.killpg(launcher.pid, signal.SIGINT)
    _, err = launcher.communicate(timeout=HANGS_S)
    assert launcher.returncode == 130
    assert err.count("\n") == 1, err
    assert "stopped by Ctrl-C at step" in err


@pytest.mark.nightly
def test_a_rank_that_is_killed_is_named_once(tiny_msd, sets, tmp_path):
    launcher = start_long_training(tiny_msd, sets, tmp_path)
    (second,) = [child for child in psutil.Process(launcher.pid).children() if child.environ().get("RANK") == "1"]
    second.kill()
    _, err = launcher.communicate(timeout=HANGS_S)
    assert launcher.returncode == 137
    assert err.count("\n") == 1, err
    assert "rank 1 was killed by SIGKILL, as Linux does when memory is full" in err


def test_only_a_training_runs_on_several_ranks(voxelocity):
    told = voxelocity("launch", "-n", 2, "predict", "RUN", "SCAN")
    assert_refused(told, "predict cannot run on several processes; write voxelocity launch -n 2 train DATASET -o RUN")
    assert "nothing cannot run" in voxelocity("launch", "-n", 2).err


def fake(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder of programs that stand for SLURM's: `sbatch` accepts, `srun` ends with status $SRUN_STATUS."""
    folder = tmp_path / "bin"
    folder.mkdir()
    fake(folder, "sbatch", 'echo "Submitted batch job 17"')
    fake(folder, "srun", f'echo "$@" >> {tmp_path}/srun.txt; exit $SRUN_STATUS')
    fake(folder, "scontrol", f'echo "$@" >> {tmp_path}/scontrol.txt')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_a_job_is_submitted_with_a_script_next_to_the_run(voxelocity, cluster, tmp_path):
    out = tmp_path / "a run"
    ended = voxelocity(
        "launch", "--slurm", "-N", 2, "-n", 4, "--time", "8h", "--sbatch=--partition=gpu", "--sbatch=--gres=gpu:4",
        "train", "data set", "-o", out, "--set", "seed=3",
    )  # fmt: skip
    assert ended.status == 0, ended
    assert "Submitted batch job 17" in ended.out
    script = tmp_path / "a run.sbatch"
    lines = script.read_text().splitlines()
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=4", "#SBATCH --time=480", "#SBATCH --requeue"} <= set(lines)
    assert {"#SBATCH --partition=gpu", "#SBATCH --gres=gpu:4", "#SBATCH --signal=TERM@180"} <= set(lines)
    assert "#SBATCH --job-name='a run'" in lines
    assert f"#SBATCH --output='{tmp_path}/a run.log'" in lines
    for status, is_requeued in ((143, True), (0, False), (2, False)):
        environment = {**os.environ, "SRUN_STATUS": str(status), "SLURM_JOB_ID": "17"}
        assert subprocess.run(["bash", script], env=environment, check=False).returncode == status
        asked = tmp_path / "scontrol.txt"
        assert asked.exists() == is_requeued
        if is_requeued:
            assert asked.read_text() == "requeue 17\n"
            asked.unlink()
    command = (tmp_path / "srun.txt").read_text().splitlines()[0]
    assert command == f"--kill-on-bad-exit=1 {sys.executable} -m voxelocity train data set -o {out} --set seed=3"


@pytest.mark.parametrize("option", ["--out=", "-o"])
def test_the_script_of_a_job_can_be_read_first(voxelocity, cluster, tmp_path, option):
    ended = voxelocity("launch", "--slurm", "--dry-run", "-n", 1, "train", "DATASET", f"{option}{tmp_path / '5%j'}")
    assert ended.status == 0, ended
    assert ended.out.startswith("#!/bin/bash")
    assert f"#SBATCH --output={tmp_path}/5%%j.log\n" in ended.out.replace("'", "")
    assert not (tmp_path / "5%j.sbatch").exists()


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (("--slurm", "-n", 2, "train", "DATASET"), ("the run's folder is missing", "-o after train DATASET")),
        (("--slurm", "-n", 2, "--time", "2m", "train", "D", "-o", "R"), ("--time is 120 s", "at least 5 min")),
        (("--slurm", "-n", 2, "train", "D", "-o", "R\nrm"), ("line break",)),
        (("--slurm", "-n", 2, "--sbatch=gpu", "train", "D", "-o", "R"), ("'gpu' is not an option", "--partition=gpu")),
        (("-N", 2, "-n", 2, "train", "D", "-o", "R"), ("--nodes", "add --slurm")),
    ],
)
def test_a_job_that_cannot_be_is_refused(voxelocity, cluster, options, texts):
    ended = voxelocity("launch", *options)
    assert ended.status == 2, ended
    assert all(text in ended.err for text in texts), ended.err


def test_a_refused_job_and_a_machine_without_slurm_are_said(voxelocity, cluster, tmp_path, monkeypatch):
    arguments = ("launch", "--slurm", "-n", 2, "train", "D", "-o", tmp_path / "run")
    fake(cluster, "sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    assert_refused(voxelocity(*arguments), "run.sbatch: sbatch: error: invalid partition")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert_refused(voxelocity(*arguments), f"sbatch is not installed on this machine; submit {tmp_path / 'run.sbatch'}")
