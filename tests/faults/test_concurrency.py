"""Several commands at once on one cache, one run and one folder of predictions; one of them stopped in mid-work."""

from __future__ import annotations

from pathlib import Path

import pytest

# The process stops itself, as after Ctrl-Z, when it writes its first entry: it holds the lock of that case.
_STOP_IN_AN_ENTRY = """
import os, re, signal, sys
def hear(event, values):
    global is_stopped
    if event == "open" and not is_stopped and re.search("cache/.*(tmp|part)", str(values[0])):
        is_stopped = True
        os.kill(os.getpid(), signal.SIGSTOP)
is_stopped = False
sys.addaudithook(hear)
"""
_WAIT_SHORTLY = "from voxelocity.data.cache import locks; locks._MAX_WAIT_S = 0.3"


@pytest.mark.parametrize("tier", ["disk", "memory", "lmdb"])
def test_trainings_at_once_on_one_cache_have_the_same_weights(
    launch, tiny_msd, often, tier_sets, undisturbed, digest, trials, tmp_path, tier
):
    sets = tier_sets(tier)
    if tier == "disk":
        # So that there is something to clear while the others use it.
        first = launch("train", tiny_msd, "-o", tmp_path / "first", "--device", "cpu", *often, *sets)
        assert first.ended().in_words().status == 0
    runs = [tmp_path / f"run-{number}" for number in range(trials.num(4))]
    started = [launch("train", tiny_msd, "-o", run, "--device", "cpu", *often, *sets) for run in runs]
    cleared = launch("cache", "clear", "--yes", tmp_path / "cache") if tier == "disk" else None
    for run, program in zip(runs, started, strict=True):
        with trials.one(f"{tier}, {run.name}"):
            ended = program.ended().in_words()
            assert ended.status == 0, ended.err
            assert digest(run) == undisturbed.weights
    if cleared is not None:
        with trials.one("clear"):
            assert cleared.ended().in_words().status == 0
    left = list((tmp_path / "shm").rglob("*.safetensors"))
    assert not left, f"memory is not given back: {left}"


def test_of_trainings_into_one_folder_one_runs_and_the_others_are_refused(
    launch, tiny_msd, often, undisturbed, digest, trials, tmp_path
):
    train = ("train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *often)
    with trials.one("three"):
        ended = [program.ended().in_words() for program in [launch(*train) for _ in range(3)]]
        assert sorted(program.status for program in ended) == [0, 2, 2], [program.err for program in ended]
        refused = " ".join(program.err for program in ended)
        assert "another process is training into" in refused or "already holds a finished run" in refused
        assert digest(tmp_path / "run") == undisturbed.weights


def test_predictions_at_once_into_one_folder_are_whole(launch, undisturbed, tiny_msd, files_of, trials, tmp_path):
    predict = ("predict", undisturbed.run, tiny_msd / "imagesTr", "-o", tmp_path / "out", "--device", "cpu")
    with trials.one("two"):
        for program in [launch(*predict, "--overwrite") for _ in range(2)]:
            ended = program.ended().in_words()
            assert ended.status == 0, ended.err
        assert files_of(tmp_path / "out") == undisturbed.predictions


def test_a_stopped_process_holds_up_nobody(launch, tiny_msd, often, tier_sets, undisturbed, digest, trials, tmp_path):
    sets = tier_sets("disk")
    with trials.one("disk"):
        first = launch(
            "train", tiny_msd, "-o", tmp_path / "stopped", "--device", "cpu", *often, *sets, script=_STOP_IN_AN_ENTRY
        )
        while not is_stopped(first.process.pid):
            first.process.join(0.05)
            assert first.process.exitcode is None, "it ended by itself"
        try:
            second = launch(
                "train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *often, *sets, script=_WAIT_SHORTLY
            )
            ended = second.ended().in_words()
        finally:
            first.process.kill()
            first.process.join()
        assert ended.status == 0, ended.err
        assert "stops waiting" in ended.out + ended.err
        assert digest(tmp_path / "run") == undisturbed.weights


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
