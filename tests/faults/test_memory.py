"""Limited memory: one sentence, or the same result; never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from shared.limits import HANGS_S
from shared.trial import Ended, Trouble

_SPARE_MB = (1, 16, 64, 160)


def _is_reported_by_the_runtime(ended: Ended) -> bool:
    # A thread of C++ code that gets no memory ends the process, and so does LLVM while it compiles; Python has no say.
    return ended.status == -signal.SIGABRT and ("bad_alloc" in ended.err or "LLVM ERROR: out of memory" in ended.err)


@pytest.mark.parametrize("spare_mb", _SPARE_MB)
def test_a_run_with_little_memory_is_equal_or_ends_in_one_sentence(
    command, tiny_msd, often, undisturbed, digest, trials, tmp_path, spare_mb
):
    train = ("train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *often)
    with trials.one(f"{spare_mb} MB"):
        ended = command(*train, trouble=Trouble(spare_bytes=spare_mb * 2**20))
        assert ended.status in (0, 1, 2) or _is_reported_by_the_runtime(ended), f"status {ended.status}: {ended.err}"
        if ended.status != 0:
            again = command(*train)
            assert again.status == 0 or "already holds a finished run" in again.err, again.err
        # A batch that was cut sums in another order, which changes roundings, and the run says so.
        was_cut = "do not fit into the memory of the device" in " ".join(ended.out.split())
        assert was_cut or digest(tmp_path / "run") == undisturbed.weights


@pytest.mark.parametrize("spare_mb", _SPARE_MB)
def test_predictions_with_little_memory_are_whole_or_absent(
    command, undisturbed, tiny_msd, files_of, trials, tmp_path, spare_mb
):
    with trials.one(f"{spare_mb} MB"):
        out = tmp_path / "out"
        ended = command(
            "predict", undisturbed.run, tiny_msd / "imagesTr", "-o", out, "--device", "cpu",
            trouble=Trouble(spare_bytes=spare_mb * 2**20),
        )  # fmt: skip
        assert ended.status in (0, 1, 2) or _is_reported_by_the_runtime(ended), f"status {ended.status}: {ended.err}"
        found = files_of(out) if out.exists() else {}
        assert all(undisturbed.predictions[name] == content for name, content in found.items())
        assert ended.status != 0 or found == undisturbed.predictions


@pytest.mark.parametrize("limit_mb", [300, 1200])
def test_a_command_that_finds_no_memory_for_its_libraries_says_so(tiny_msd, trials, tmp_path, limit_mb):
    with trials.one(f"{limit_mb} MB in all"):
        limited = f'ulimit -v {limit_mb * 1024} && exec "$0" -m voxelocity train "$1" -o "$2" --device cpu'
        ended = subprocess.run(
            ["sh", "-c", limited, sys.executable, str(tiny_msd), str(tmp_path / "run")],
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=HANGS_S, check=False,
        )  # fmt: skip
        assert ended.returncode in (1, 2), ended
        Ended(ended.returncode, ended.stdout, ended.stderr).in_words()
