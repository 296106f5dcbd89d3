from __future__ import annotations

from dataclasses import replace
from functools import partial

from voxelocity.diagnosis.doctor import examine, judge, look, visit
from voxelocity.diagnosis.doctor.disk import see_disk
from voxelocity.diagnosis.doctor.seen import Driver, Limits, Memory, Packages, Processor, Torch


def test_a_machine_without_fault_gets_no_word_of_blame(seen):
    check_up = judge(seen)
    assert {check.level for check in check_up.checks} == {"ok"}
    assert check_up.verdict.endswith("Nothing to fix.")
    assert not any(check.costs for check in check_up.checks)


def test_sections_stand_together_in_the_order_of_reading(seen):
    sections = [check.section for check in judge(seen).checks]
    order = ["GPU", "torch", "CPU", "memory", "disk", "limits", "variables", "packages"]
    assert sections == sorted(sections, key=order.index)
    assert set(sections) == set(order)


def test_whatever_is_not_ok_says_what_it_costs(seen):
    bare = replace(
        seen,
        driver=Driver(num_cards=1),
        torch=Torch(error="ImportError: no"),
        processor=Processor(),
        memory=Memory(machine_bytes=2**30, total_bytes=2**30, available_bytes=2**29, overcommit=2),
        disk=replace(seen.disk, free_bytes=2**30, file_system="nfs4", read_bytes_per_s=None, not_measured="full"),
        limits=Limits(open_files=256, processes=100),
        packages=Packages(python="3.11.7", wanted=seen.packages.wanted),
        environ={"OMP_WAIT_POLICY": "ACTIVE"},
    )
    blamed = [check for check in judge(bare).checks if check.level != "ok"]
    assert {check.section for check in blamed} == {check.section for check in judge(seen).checks}
    assert all(check.costs and check.cure for check in blamed)
    assert not judge(bare).can_train


def test_a_machine_of_many_cores_is_not_asked_for_room_for_as_many_workers(seen):
    many = replace(seen.processor, num_cores=256, num_affine=256, num_budget=256)
    little = replace(seen.memory, shm_bytes=2 * 2**30, shm_free_bytes=2 * 2**30)
    assert judge(replace(seen, processor=many, memory=little)).verdict.endswith("Nothing to fix.")


def test_this_machine_is_looked_at_and_judged(tmp_path, monkeypatch):
    planted = Torch(version="2.13.0", num_threads=1)
    monkeypatch.setattr(visit, "see_torch", lambda: planted)
    monkeypatch.setattr(visit, "see_disk", partial(see_disk, file_bytes=4 * 2**20))
    seen = look(tmp_path, environ={"OMP_NUM_THREADS": "1"})
    assert seen.torch == planted
    assert seen.disk.folder == str(tmp_path)
    assert seen.environ == {"OMP_NUM_THREADS": "1"}
    assert seen.packages.versions
    assert examine(tmp_path, environ={}).can_train
