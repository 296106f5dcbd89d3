from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.doctor.checks.disk import judge_disk

GIB = 2**30


def blamed(disk):
    return [check for check in judge_disk(disk) if check.level != "ok"]


def test_a_sound_disk_is_described(disk):
    found = [check.found for check in judge_disk(disk)]
    assert found == ["500 GiB free below /scratch", "ext4", "reads 2.79 GiB/s, writes 1.86 GiB/s"]


def test_little_room_is_told_in_cases(disk):
    (check,) = blamed(replace(disk, free_bytes=3 * GIB))
    assert check.costs.startswith("about 16 prepared CTs")
    (check,) = blamed(replace(disk, free_bytes=2**20))
    assert check.costs.startswith("no prepared CTs")


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "cifs"])
def test_a_disk_on_the_network_is_told(disk, kind):
    (check,) = blamed(replace(disk, file_system=kind))
    assert (check.level, check.found) == ("warning", f"{kind}: on the network")
    assert "data.cache.folder" in check.cure


def test_memory_in_the_place_of_a_disk_is_told_and_its_speed_is_not_judged(disk):
    (check,) = blamed(replace(disk, file_system="tmpfs", read_bytes_per_s=5e7))
    assert (check.level, check.name) == ("note", "kind")


def test_a_disk_that_turns_is_told_where_it_is_as_slow_as_one(disk):
    (check,) = blamed(replace(disk, device="rotating", read_bytes_per_s=180e6))
    assert check.found == "ext4 on a rotating disk"
    assert blamed(replace(disk, device="rotating", read_bytes_per_s=830e6)) == []


@pytest.mark.parametrize(("read", "write"), [(40e6, 400e6), (400e6, 40e6)])
def test_a_slow_disk_is_told_in_seconds_a_case(disk, read, write):
    (check,) = blamed(replace(disk, read_bytes_per_s=read, write_bytes_per_s=write))
    assert (check.name, check.level) == ("speed", "warning")
    assert "of 192 MiB takes" in check.costs
    assert "5.0 s to" in check.costs


def test_a_speed_that_was_not_measured_says_why(disk):
    (check,) = blamed(replace(disk, read_bytes_per_s=None, write_bytes_per_s=None, not_measured="it is full"))
    assert (check.level, check.found) == ("note", "not measured: it is full")
    assert "--folder" in check.cure


def test_a_speed_of_the_page_cache_is_not_sold_as_that_of_the_disk(disk):
    (check,) = blamed(replace(disk, past_page_cache=False))
    assert check.found.endswith("through the page cache")
