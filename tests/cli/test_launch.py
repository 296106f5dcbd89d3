"""Several ranks by one command: what it prints, and the status it ends with."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import voxelocity as package


def launch(*arguments, memory):
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1]), "XDG_CACHE_HOME": str(memory)}
    return subprocess.run(
        [sys.executable, "-m", "voxelocity", "launch", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def sets(tiny_sets):
    return [*tiny_sets, "--set", "data.cache.tier=disk", "--set", "planner.measure=never"]


@pytest.mark.nightly
def test_two_ranks_train_and_one_of_them_prints(tiny_msd, sets, tmp_path):
    ended = launch("-n", 2, "train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *sets, memory=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("mean foreground Dice") == 1
    assert (tmp_path / "run" / "events-rank1.jsonl").exists()


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
from voxelocity.cli.main import main
main()
"""


@pytest.mark.nightly
def test_ctrl_c_stops_all_ranks_with_their_state_saved(tiny_msd, sets, tmp_path):
    run = tmp_path / "run"
    more = ["--device", "cpu", *sets, "--set", "train.steps=100000", "--set", "train.checkpoint_every_s=1"]
    launcher = subprocess.Popen(
        [sys.executable, "-c", _LISTEN, "launch", "-n", "2", "train", tiny_msd, "-o", run, *more],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(package.__file__).parents[1]),
            "XDG_CACHE_HOME": str(tmp_path),
        },
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end_s = time.monotonic() + 90.0
    while not any(run.glob("checkpoints/*.pt")):
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < end_s
        time.sleep(0.05)
    # As a terminal does it.
    os.killpg(launcher.pid, signal.SIGINT)
    _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    assert err.count("\n") == 1, err
    assert "stopped by Ctrl-C at step" in err


def test_only_a_training_runs_on_several_ranks(voxelocity):
    told = voxelocity("launch", "-n", 2, "predict", "RUN", "SCAN")
    assert told.status == 2
    assert "predict cannot run on several processes; write voxelocity launch -n 2 train DATASET -o RUN" in told.err
    assert "nothing cannot run" in voxelocity("launch", "-n", 2).err
