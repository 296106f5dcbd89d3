from __future__ import annotations

import pytest

from voxelocity.diagnosis.doctor.checks.limits import judge_limits
from voxelocity.diagnosis.doctor.seen import Limits


def blamed(**fields):
    return [check for check in judge_limits(Limits(**fields)) if check.level != "ok"]


def test_no_limits_are_fine():
    assert [check.found for check in judge_limits(Limits())] == ["no limit", "no limit", "no limit"]


@pytest.mark.parametrize(
    ("hard", "cure"),
    [
        (524_288, "ulimit -n 65536"),
        (8192, "ulimit -n 8192"),
        (None, "ulimit -n 4096"),
        (1024, "the hard limit is as low"),
    ],
)
def test_few_open_files_are_told_with_what_a_person_may_do(hard, cure):
    (check,) = blamed(open_files=1024, open_files_hard=hard)
    assert (check.level, check.found) == ("warning", "1,024 at a time")
    assert check.cure.startswith(cure)


@pytest.mark.parametrize(
    ("fields", "cure"),
    [
        ({"processes": 100_000, "group_processes": 512}, "docker run --pids-limit=-1"),
        ({"processes": 512}, "ulimit -u 8192"),
    ],
)
def test_few_processes_are_told_with_who_sets_the_limit(fields, cure):
    (check,) = blamed(**fields)
    assert check.found == "512 processes and threads"
    assert check.cure.startswith(cure)


def test_locked_memory_matters_only_beside_an_adapter_that_needs_it():
    assert blamed(locked_bytes=65_536) == []
    assert blamed(locked_bytes=None, has_rdma=True) == []
    (check,) = blamed(locked_bytes=65_536, has_rdma=True)
    assert check.found.startswith("64.0 KiB, with an InfiniBand")
