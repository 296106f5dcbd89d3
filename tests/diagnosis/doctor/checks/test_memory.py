from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.doctor.checks.memory import judge_memory

GIB = 2**30


def blamed(memory, *, num_workers=8):
    return [check for check in judge_memory(memory, num_workers=num_workers) if check.level != "ok"]


def test_a_sound_memory_is_described(memory):
    found = [check.found for check in judge_memory(memory, num_workers=8)]
    assert found == [
        "128 GiB, 120 GiB free",
        "none; a program that takes too much memory is killed",
        "64.0 GiB of 64.0 GiB free",
    ]


def test_a_limit_of_the_control_group_is_named_with_its_cure(memory):
    (check,) = blamed(replace(memory, total_bytes=4 * GIB, available_bytes=3 * GIB))
    assert check.found == "4.00 GiB, 3.00 GiB free; the control group allows 4.00 GiB of 128 GiB"
    assert "docker run --memory" in check.cure


def test_memory_that_others_took_is_to_be_freed(memory):
    (check,) = blamed(replace(memory, available_bytes=2 * GIB))
    assert "end programs that use it" in check.cure


def test_swap_counts_only_where_much_of_it_is_used(memory):
    assert blamed(replace(memory, swap_bytes=64 * GIB, swap_used_bytes=GIB)) == []
    (check,) = blamed(replace(memory, swap_bytes=64 * GIB, swap_used_bytes=20 * GIB))
    assert (check.level, check.found) == ("warning", "20.0 GiB of 64.0 GiB used")


def test_the_64_mib_of_docker_are_less_than_its_loaders_need(memory):
    (check,) = blamed(replace(memory, shm_bytes=64 * 2**20, shm_free_bytes=64 * 2**20))
    assert (check.name, check.level, check.found) == ("/dev/shm", "warning", "64.0 MiB of 64.0 MiB free")
    assert "with 8 workers keeps about 480 MiB" in check.costs
    assert "docker run --shm-size=8g" in check.cure


def test_what_loaders_need_grows_with_their_workers(memory):
    little = replace(memory, shm_bytes=64 * 2**20, shm_free_bytes=64 * 2**20)
    assert blamed(little, num_workers=1) == []


def test_a_shared_memory_that_is_full_is_to_be_looked_into(memory):
    (check,) = blamed(replace(memory, shm_free_bytes=0))
    assert check.cure == "see what is there: du -sh /dev/shm/*"


@pytest.mark.parametrize("missing", ["shm_bytes", "shm_free_bytes"])
def test_without_shared_memory_that_is_told(memory, missing):
    (check,) = blamed(replace(memory, **{missing: None}))
    assert check.found == "none, or it is not in memory"


def test_a_kernel_that_counts_reserved_memory_as_taken_is_told(memory):
    assert blamed(replace(memory, overcommit=1)) == []
    (check,) = blamed(replace(memory, overcommit=2))
    assert check.cure == "as administrator: sysctl vm.overcommit_memory=0"


def test_what_a_killed_run_left_in_memory_is_named_with_its_cure(memory):
    (check,) = blamed(replace(memory, left_folders=("/dev/shm/voxelocity-1000",), left_bytes=30 * GIB))
    assert check.level == "warning"
    assert "30.0 GiB of prepared cases in /dev/shm/voxelocity-1000" in check.found
    assert check.cure == "voxelocity cache clear --memory"
