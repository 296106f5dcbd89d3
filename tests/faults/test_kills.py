"""Commands killed at seeded moments and inside of their writes: given again, they end with the undisturbed result."""

from __future__ import annotations

import random
import signal

import pytest

from shared.trial import Trouble
from voxelocity.data.cache import DiskTier
from voxelocity.data.cache.contents import CacheContents

# Bytes of a write that are done when the process dies. Each file named is larger.
_WRITES = {
    "first checkpoint": Trouble(file=r"step_0*0\.pt", max_bytes=9000),
    "third checkpoint": Trouble(file=r"step_0*3\.pt", max_bytes=20_000),
    "whole checkpoint, not yet moved": Trouble(file=r"step_0*6\.pt", at_move=True),
    "record": Trouble(file=r"run\.yaml", max_bytes=700),
    "weights": Trouble(file=r"model\.safetensors", max_bytes=5000),
    "whole weights, not yet moved": Trouble(file=r"model\.safetensors", at_move=True),
    "description of the model": Trouble(file=r"model\.json", max_bytes=100),
    "scores": Trouble(file=r"scores\.json", max_bytes=50),
    "page": Trouble(file=r"report\.html", max_bytes=3000),
    "events": Trouble(file=r"events\.jsonl", max_bytes=5000),
}


@pytest.fixture
def finish(command, tiny_msd, often, undisturbed, digest):
    """Gives the command again until the run is done; its weights must be the undisturbed ones."""

    def run_again(run, *sets):
        ended = command("train", tiny_msd, "-o", run, "--device", "cpu", *often, *sets)
        # The kill may have come after the last event.
        assert ended.status == 0 or "already holds a finished run" in ended.err, ended.err
        assert digest(run) == undisturbed.weights
        left = [path.name for path in run.rglob(".*") if path.name.endswith(".part") and "report" not in path.name]
        assert not left, f"left by a killed writer: {left}"

    return run_again


@pytest.mark.parametrize("where", _WRITES)
def test_a_run_killed_inside_a_write_ends_with_the_undisturbed_weights(
    command, finish, tiny_msd, often, trials, tmp_path, where
):
    with trials.one(where):
        killed = command("train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *often, trouble=_WRITES[where])
        assert killed.was_killed, f"status {killed.status}: the write was not reached"
        finish(tmp_path / "run")


@pytest.mark.parametrize("tier", ["disk", "memory", "lmdb"])
def test_a_run_killed_at_any_moment_ends_with_the_undisturbed_weights(
    command, finish, tiny_msd, often, tier_sets, undisturbed, trials, tmp_path, tier
):
    moments = random.Random(f"kills {tier}")
    for number in range(trials.num(3)):
        run, sets = tmp_path / f"run-{number}", tier_sets(tier, folder=tmp_path / f"cache-{number}")
        for how in (signal.SIGKILL, moments.choice((signal.SIGKILL, signal.SIGTERM))):
            cpu_s = moments.uniform(0.02, 1.0) * undisturbed.train_cpu_s
            with trials.one(f"{how.name} after {cpu_s:.2f} CPU seconds"):
                trouble = Trouble(cpu_s=cpu_s, signal_number=how)
                ended = command("train", tiny_msd, "-o", run, "--device", "cpu", *often, *sets, trouble=trouble)
                is_refused = "already holds a finished run" in ended.err
                assert ended.was_killed or ended.status in (0, 143) or is_refused, ended.err
        with trials.one(f"run {number} to its end"):
            finish(run, *sets)


@pytest.mark.parametrize("format", ["raw", "blosc2"])
def test_a_run_killed_inside_a_commit_of_lmdb_ends_with_the_undisturbed_weights(
    command, finish, tiny_msd, often, tier_sets, trials, tmp_path, format
):
    # Six entries of some 25 KB: pages of the first to the fourth of them, and the page that makes them valid.
    sizes = random.Random(f"commits {format}")
    for number in range(trials.num(3)):
        num_bytes = sizes.randrange(4096, 90_000 if format == "raw" else 60_000)
        run, sets = tmp_path / f"run-{number}", tier_sets("lmdb", format, tmp_path / f"cache-{number}")
        with trials.one(f"{format} at {num_bytes} bytes"):
            trouble = Trouble(max_bytes=num_bytes)
            ended = command("train", tiny_msd, "-o", run, "--device", "cpu", *often, *sets, trouble=trouble)
            assert ended.was_killed, f"status {ended.status}: {num_bytes} bytes were not reached"
            finish(run, *sets)


@pytest.mark.parametrize("format", ["raw", "blosc2"])
def test_a_run_killed_inside_an_entry_on_disk_leaves_whole_entries(
    command, finish, tiny_msd, often, tier_sets, trials, tmp_path, format
):
    for number in (1, 4):
        run, cache = tmp_path / f"run-{number}", tmp_path / f"cache-{number}"
        sets = tier_sets("disk", format, cache)
        with trials.one(f"entry {number}"):
            trouble = Trouble(file=rf"cache-{number}/.*(tmp|part)", number=number, max_bytes=6000)
            ended = command("train", tiny_msd, "-o", run, "--device", "cpu", *often, *sets, trouble=trouble)
            assert ended.was_killed, f"status {ended.status}: the entry was not reached"
            assert {entry.state for entry in CacheContents(cache).entries(full=True)} <= {"whole"}
            finish(run, *sets)
            assert len(DiskTier(cache).keys()) == 6


@pytest.mark.parametrize("trouble", [
    Trouble(file=r"case_0\.nii\.gz", max_bytes=60), Trouble(file=r"case_3\.nii\.gz", max_bytes=200),
    Trouble(file=r"case_5\.nii\.gz", at_move=True),
])  # fmt: skip
def test_predictions_killed_inside_a_write_are_whole_or_absent_and_made_again(
    command, undisturbed, tiny_msd, files_of, trials, tmp_path, trouble
):
    predict = ("predict", undisturbed.run, tiny_msd / "imagesTr", "-o", tmp_path / "out", "--device", "cpu")
    with trials.one(trouble):
        assert command(*predict, trouble=trouble).was_killed
        found = files_of(tmp_path / "out")
        assert trouble.file.replace("\\", "") not in found
        assert all(undisturbed.predictions[name] == content for name, content in found.items())
        again = command(*predict, "--overwrite")
        assert again.status == 0, again.err
        assert files_of(tmp_path / "out") == undisturbed.predictions
