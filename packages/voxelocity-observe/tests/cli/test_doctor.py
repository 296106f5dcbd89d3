from __future__ import annotations

import json
from functools import partial

import pytest

from voxelocity_observe.cli.doctor import doctor
from voxelocity_observe.diagnose.doctor import disk, probes
from voxelocity_observe.diagnose.doctor.disk import probe_disk
from voxelocity_observe.diagnose.doctor.records import Torch


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """A torch that is not started, a disk that is hardly written to, a cache of its own."""
    monkeypatch.setattr(probes, "probe_torch", lambda: Torch(version="2.13.0+cpu", num_threads=1, import_s=1.5))
    monkeypatch.setattr(disk, "probe_disk", partial(probe_disk, file_bytes=4 * 2**20))


def test_it_tells_what_is_here_and_ends_well(voxelocity, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    told = voxelocity("doctor", "--folder", tmp_path)
    assert (told.status, told.err) == (0, "")
    assert told.out.startswith("Training runs on ")
    assert f"free below {tmp_path}" in " ".join(told.out.split())
    assert [line for line in told.out.splitlines() if line in ("GPU", "disk", "packages")] == [
        "GPU",
        "disk",
        "packages",
    ]


def test_json_holds_the_same_and_status_1_says_that_nothing_can_be_trained(voxelocity, tmp_path, monkeypatch):
    monkeypatch.setattr(probes, "probe_torch", lambda: Torch(error="ModuleNotFoundError: No module named 'torch'"))
    told = voxelocity("doctor", "--json", "--folder", tmp_path)
    facts = json.loads(told.out)
    assert (told.status, facts["can_train"]) == (1, False)
    assert facts["verdict"].startswith("Training cannot run here: torch, torch: it cannot be imported")
    assert any(check["stops_training"] for check in facts["checks"])


def test_the_disk_of_the_cache_is_looked_at_by_default(voxelocity, tmp_path, monkeypatch):
    (tmp_path / "voxelocity").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    facts = json.loads(voxelocity("doctor", "--json").out)
    room = next(check for check in facts["checks"] if (check["section"], check["name"]) == ("disk", "room"))
    assert room["found"].endswith(f"free below {tmp_path / 'voxelocity'}")


def test_a_reader_that_goes_away_is_not_taken_for_a_machine_that_cannot_train(tmp_path, monkeypatch):
    def gone(*arguments, **options):
        raise BrokenPipeError

    # What `main` makes status 141 of; written by rich, it would be status 1.
    monkeypatch.setattr("builtins.print", gone)
    for as_json in (False, True):
        with pytest.raises(BrokenPipeError):
            doctor(folder=tmp_path, as_json=as_json)


def test_a_folder_that_is_none_is_refused(voxelocity, tmp_path):
    told = voxelocity("doctor", "--folder", tmp_path / "typo")
    assert told.status == 2
    assert told.err == f"voxelocity: doctor: --folder {tmp_path / 'typo'} is not a folder; name one that exists\n"
