from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

from voxelocity.diagnosis.doctor import Check, CheckUp, disk, examine, judge, probe, probes
from voxelocity.diagnosis.doctor.disk import probe_disk
from voxelocity.diagnosis.doctor.records import Driver, Limits, Memory, Packages, Processor, Torch
from voxelocity.diagnosis.doctor.run import verdict


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
    monkeypatch.setattr(probes, "probe_torch", lambda: planted)
    monkeypatch.setattr(disk, "probe_disk", partial(probe_disk, file_bytes=4 * 2**20))
    seen = probe(tmp_path, environ={"OMP_NUM_THREADS": "1"})
    assert seen.torch == planted
    assert seen.disk.folder == str(tmp_path)
    assert seen.environ == {"OMP_NUM_THREADS": "1"}
    assert seen.packages.versions
    assert examine(tmp_path, environ={}).can_train


def line(level, **fields):
    return Check(section="torch", name="torch", level=level, found="it is away", **fields)


def test_a_machine_without_fault_has_nothing_to_mend(seen):
    assert verdict(seen, [line("ok")]) == (
        "Training runs on NVIDIA H100 80GB HBM3, with 16 CPU cores to make batches. Nothing to fix."
    )


def test_gpus_of_one_kind_are_counted(seen, driver, gpu, torch):
    several = replace(driver, gpus=(gpu, gpu, replace(gpu, name="NVIDIA L4")))
    named = "on 2 x NVIDIA H100 80GB HBM3 and NVIDIA L4"
    assert f"{named}, with" in verdict(replace(seen, driver=several, torch=replace(torch, num_gpus=3)), [])
    assert f"{named} (1 of these available), with" in verdict(replace(seen, driver=several), [])


def test_what_is_to_be_looked_at_is_counted_by_weight(seen):
    levels = ["note", "warning", "problem", "note", "ok"]
    assert verdict(seen, [line(level) for level in levels]).endswith("To look at: 1 problem, 1 warning, 2 notes.")


def test_without_a_gpu_the_cores_are_named(seen):
    without = replace(seen, driver=Driver(), torch=Torch(version="2.13.0"))
    assert verdict(without, []).startswith("Training runs on 16 CPU cores; there is no GPU.")


def test_a_gpu_that_lies_idle_is_named(seen, torch):
    blind = replace(seen, torch=replace(torch, sees_cuda=False))
    assert "on 16 CPU cores, and not on the GPU of this machine." in verdict(blind, [])


def test_a_gpu_without_a_driver_that_tells_of_it_is_used_all_the_same(seen):
    assert "on a GPU that its driver does not describe" in verdict(replace(seen, driver=Driver()), [])


def test_what_makes_training_impossible_comes_alone(seen):
    stop = line("problem", stops_training=True)
    assert verdict(seen, [line("warning"), stop]) == "Training cannot run here: torch, torch: it is away."
    assert verdict(seen, [stop, stop]).endswith(" And 1 more thing must be fixed.")


FINE = Check(section="disk", name="room", level="ok", found="much")
STOP = Check(section="torch", name="torch", level="problem", found="none", stops_training=True)


def test_one_line_that_stops_training_is_enough_to_stop_it():
    assert CheckUp(verdict="", checks=[FINE]).can_train
    assert not CheckUp(verdict="", checks=[FINE, STOP]).can_train


def test_plain_form_counts_levels_and_survives_json():
    plain = CheckUp(verdict="none", checks=[FINE, STOP, FINE]).to_plain()
    assert plain["counts"] == {"ok": 2, "note": 0, "warning": 0, "problem": 1}
    assert json.loads(json.dumps(plain)) == plain
    assert plain["checks"][1]["found"] == "none"
