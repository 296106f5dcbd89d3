"""Disks that get full and files that may not grow: the documented message, nothing lost, and the same weights later."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shared.trial import Trouble

# Where writing stops; what comes later finds no more space either.
_STOPS = {
    "first checkpoint": Trouble(file=r"step_0*0\.pt", max_bytes=9000, is_kill=False),
    "later checkpoint": Trouble(file=r"step_0*6\.pt", max_bytes=20_000, is_kill=False),
    "weights": Trouble(file=r"model\.safetensors", max_bytes=5000, is_kill=False),
    "page": Trouble(file=r"report\.html", max_bytes=20_000, is_kill=False),
}
_SIZES_KB = (40, 90, 140)


@pytest.mark.parametrize("where", _STOPS)
def test_a_run_that_may_not_write_on_says_so_and_ends_with_the_same_weights_later(
    command, tiny_msd, often, undisturbed, digest, trials, tmp_path, where
):
    train = ("train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *often)
    with trials.one(where):
        stopped = command(*train, trouble=_STOPS[where])
        assert stopped.status in (1, 2), f"status {stopped.status}: {stopped.err}"
        assert re.search("does not allow a file of this size|File too large", stopped.err), stopped.err
        assert not list(tmp_path.glob("run/**/.*.part"))
        again = command(*train)
        assert again.status == 0 or "already holds a finished run" in again.err, again.err
        assert digest(tmp_path / "run") == undisturbed.weights


@pytest.mark.parametrize("tier", ["disk", "lmdb"])
def test_a_cache_that_may_not_grow_costs_time_and_no_weights(
    command, tiny_msd, often, tier_sets, undisturbed, digest, trials, tmp_path, tier
):
    # For all files from the first entry on, so that the run's own stay below it.
    opened = "cache/.*(tmp|part)" if tier == "disk" else "cache"
    with trials.one(tier):
        cut = Trouble(file=opened, max_bytes=60_000 if tier == "disk" else 80_000, is_kill=False)
        sets = (*tier_sets(tier), "--set", "train.checkpoint_every_s=1000")
        ended = command("train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *often, *sets, trouble=cut)
        assert ended.status in (0, 2), ended.err
        # The page is larger too.
        assert ended.status == 0 or "report.html" in ended.err, ended.err
        assert digest(tmp_path / "run") == undisturbed.weights


def test_a_prediction_that_may_not_be_written_leaves_no_part_of_it(
    command, undisturbed, tiny_msd, files_of, trials, tmp_path
):
    predict = ("predict", undisturbed.run, tiny_msd / "imagesTr", "-o", tmp_path / "out", "--device", "cpu")
    with trials.one("case_2"):
        ended = command(*predict, trouble=Trouble(file=r"case_2\.nii\.gz", max_bytes=60, is_kill=False))
        assert ended.status in (1, 2)
        assert "case_2" in ended.err
        found = files_of(tmp_path / "out")
        assert "case_2.nii.gz" not in found
        assert all(undisturbed.predictions[name] == content for name, content in found.items())
        assert not list((tmp_path / "out").glob(".*.part"))


class SmallDisk:
    """A file system in memory with few bytes, in a namespace that one process of ours holds and commands enter."""

    def __init__(self, folder: Path, *, size_kb: int) -> None:
        folder.mkdir()
        mount = 'mount -t tmpfs -o size="$1"k small "$0" && echo ready && exec cat'
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", mount, str(folder), str(size_kb)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if self._holder.stdout.readline() != "ready\n":
            pytest.skip(f"no file system can be mounted here: {self._holder.communicate()[1].strip()}")
        self.folder = folder
        # Python has os.setns from 3.12 on.
        self.script = (
            "import ctypes, os\n"
            f"namespace = os.open('/proc/{self._holder.pid}/ns/mnt', os.O_RDONLY)\n"
            "assert ctypes.CDLL(None).setns(namespace, 0) == 0\n"
            "os.close(namespace)\n"
        )

    def seen_from_outside(self, path: Path) -> Path:
        return Path(f"/proc/{self._holder.pid}/root") / path.relative_to("/")

    def grow(self) -> None:
        command = ["nsenter", "--mount", "--target", str(self._holder.pid), "mount", "-o", "remount,size=64m"]
        subprocess.run([*command, str(self.folder)], check=True)

    def end(self) -> None:
        self._holder.communicate("")


@pytest.fixture
def small_disk(tmp_path):
    """Makes file systems of this many kilobytes; they go with the test."""
    made = []
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("nsenter"):
        pytest.skip("mounting a small file system needs Linux and root")

    def make(size_kb):
        made.append(SmallDisk(tmp_path / f"disk-{size_kb}", size_kb=size_kb))
        return made[-1]

    yield make
    for disk in made:
        disk.end()


@pytest.mark.parametrize("size_kb", _SIZES_KB)
def test_a_run_on_a_full_disk_continues_when_there_is_room_again(
    command, tiny_msd, often, undisturbed, digest, trials, small_disk, size_kb
):
    disk = small_disk(size_kb)
    run = disk.folder / "run"
    train = ("train", tiny_msd, "-o", run, "--device", "cpu", *often)
    with trials.one(f"{size_kb} KB"):
        full = command(*train, script=disk.script)
        assert full.status in (1, 2), f"status {full.status}: {full.err}"
        assert re.search("no space left|No space left", full.err), full.err
        disk.grow()
        again = command(*train, script=disk.script)
        assert again.status == 0 or "already holds a finished run" in again.err, again.err
        assert digest(disk.seen_from_outside(run)) == undisturbed.weights


@pytest.mark.parametrize("tier", ["disk", "lmdb"])
def test_a_cache_on_a_full_disk_continues_elsewhere_with_the_same_weights(
    command, tiny_msd, often, tier_sets, undisturbed, digest, trials, small_disk, tmp_path, tier
):
    disk = small_disk(100)
    with trials.one(tier):
        sets = tier_sets(tier, folder=disk.folder / "cache")
        train = ("train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *often, *sets)
        ended = command(*train, script=disk.script)
        assert ended.status == 0, ended.err
        assert digest(tmp_path / "run") == undisturbed.weights


def test_predictions_onto_a_full_disk_are_whole_or_absent(command, undisturbed, tiny_msd, files_of, trials, small_disk):
    disk = small_disk(8)
    with trials.one("8 KB"):
        out = disk.folder / "out"
        ended = command(
            "predict", undisturbed.run, tiny_msd / "imagesTr", "-o", out, "--device", "cpu", script=disk.script
        )
        assert ended.status in (1, 2), f"status {ended.status}: {ended.err}"
        found = files_of(disk.seen_from_outside(out))
        assert all(undisturbed.predictions[name] == content for name, content in found.items())
        assert not list(disk.seen_from_outside(out).glob(".*.part"))
