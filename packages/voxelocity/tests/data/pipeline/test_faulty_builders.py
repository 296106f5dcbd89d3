"""Builders of a cache that die, meet each other or find no space: for every tier, each ends as the design says."""

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.limits import HANGS_S
from shared.noted_cases import NotedCases, assert_whole, drawn, fill

COMPRESSED = [pytest.param(f"{tier} blosc2", marks=pytest.mark.nightly) for tier in ("disk", "lmdb")]
ON_DISK = ("disk", "lmdb", *COMPRESSED)
SHARED = ("memory", *ON_DISK)

pytestmark = pytest.mark.usefixtures("place")


# A builder dies, or two build at once


@pytest.mark.parametrize("tier", SHARED)
def test_of_two_builders_one_is_killed_while_the_other_waits_for_its_case(
    blob_refs, data_config, wanted, place, start_worker, tier
):
    config = data_config(tier)
    held = NotedCases(blob_refs, config)
    killed = start_worker()
    killed.ask(config, blob_refs, place, num_threads=1, stop_at="case_2")
    assert killed.hear() == {"stopped_at": "case_2"}
    cases = NotedCases(blob_refs, config)
    with ThreadPoolExecutor(1) as pool:
        facts = pool.submit(fill, cases)
        # Two threads: one waits for the killed one's case, the other has made the rest.
        while len(cases.prepared) < 2:
            assert not facts.done()
        assert sorted(cases.prepared) == ["case_3", "case_4"]
        killed.process.send_signal(signal.SIGKILL)
        assert facts.result(timeout=HANGS_S).num_found == 2
    assert sorted(cases.prepared) == ["case_2", "case_3", "case_4"]
    assert_whole(held, wanted)


@pytest.mark.parametrize("tier", SHARED)
def test_two_builders_at_once_prepare_each_case_once(blob_refs, data_config, wanted, place, two_workers, tier):
    config = data_config(tier)
    held = NotedCases(blob_refs, config)
    for worker in two_workers:
        worker.ask(config, blob_refs, place, num_threads=2)
    answers = [worker.hear() for worker in two_workers]
    assert sorted(answers[0]["prepared"] + answers[1]["prepared"]) == [f"case_{n}" for n in range(5)]
    assert [answer["num_kept"] for answer in answers] == [5, 5]
    assert_whole(held, wanted)
    assert held.prepared == []


# No space


# As `unshare --user --map-root-user --mount` does it.
_MOUNTS = """
import ctypes, os
from pathlib import Path
disk = {disk!r}
libc, user, group = ctypes.CDLL(None), os.getuid(), os.getgid()
assert libc.unshare(0x10000000 | 0x00020000) == 0
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {{user}} 1"), ("gid_map", f"0 {{group}} 1")):
    Path("/proc/self", name).write_text(text)
assert libc.mount(b"tiny", disk.encode(), b"tmpfs", 0, b"size=100k") == 0
Path(disk, "ballast").write_bytes(bytes(40960))
"""


@pytest.fixture
def tiny_disk(start_worker, tmp_path):
    """A folder on a file system of 100 KB that only its worker sees, 40 KB of it in the file `ballast`."""
    disk = tmp_path / "tiny"
    disk.mkdir()
    command = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tiny", disk]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {tried.stderr.strip()}")
    return disk, start_worker(_MOUNTS.format(disk=str(disk)))


@pytest.mark.parametrize("tier", ON_DISK)
def test_a_disk_that_gets_full_while_building_is_reported_once_and_keeps_what_it_holds(
    blob_refs, data_config, tiny_disk, place, tier
):
    disk, worker = tiny_disk
    # Without a budget for memory to continue in: `test_full.py` has that.
    config = data_config(tier, cache={"folder": str(disk / "cache"), "max_bytes": 0})
    worker.ask(config, blob_refs, place, num_threads=1)
    first = worker.hear()
    assert 0 < first["num_kept"] < 5
    (warning,) = first["warnings"]
    assert "no space" in warning
    assert "free some space or set data.cache.folder to another disk; continuing without more" in warning
    worker.ask(config, blob_refs, place, num_threads=1)
    again = worker.hear()
    assert again["num_found"] == first["num_kept"], "what was kept is whole"
    worker.ask(config, blob_refs, place, num_steps=6)
    assert worker.hear()["digests"] == drawn(NotedCases(blob_refs, data_config("none")), config)
    worker.ask(config, blob_refs[3:], place, num_threads=1, remove=str(disk / "ballast"))
    assert worker.hear()["num_kept"] > 0, "the cache continues where space is free again"


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_file_system_in_memory_that_gets_full_continues_behind_or_without_more(
    blob_refs, data_config, tiny_disk, has_folder
):
    disk, worker = tiny_disk
    config = data_config("memory", cache={} if has_folder else {"folder": ""})
    worker.ask(config, blob_refs, disk, num_threads=1)
    answer = worker.hear()
    (warning,) = answer["warnings"]
    if has_folder:
        assert answer["num_kept"] == 5
        assert f"the cache continues in the disk tier in {config.cache.folder}" in warning
    else:
        assert 0 < answer["num_kept"] < 5
        assert "cache.shared: no space for case" in warning
        assert "continuing without more" in warning
    worker.ask(config, blob_refs, disk, num_steps=6)
    assert worker.hear()["digests"] == drawn(NotedCases(blob_refs, data_config("none")), config)
