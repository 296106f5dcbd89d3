from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

from voxelocity_observe.diagnose.doctor import Check, CheckUp, disk, examine, judge, probe, probes
from voxelocity_observe.diagnose.doctor.disk import probe_disk
from voxelocity_observe.diagnose.doctor.records import Driver, Memory, Packages, Processor, ResourceLimits, Torch
from voxelocity_observe.diagnose.doctor.run import verdict


def test_a_sound_machine_has_nothing_to_fix(machine):
    check_up = judge(machine)
    assert {check.level for check in check_up.checks} == {"ok"}
    assert not any(check.costs for check in check_up.checks)
    assert check_up.verdict == "Training runs on NVIDIA H100, with 16 CPU cores to make batches. Nothing to fix."


def test_each_section_is_in_one_piece_and_in_reading_order(machine):
    sections = [check.section for check in judge(machine).checks]
    order = ["GPU", "torch", "CPU", "memory", "disk", "limits", "variables", "packages"]
    assert sections == sorted(sections, key=order.index)
    assert set(sections) == set(order)


def test_all_that_is_not_ok_has_a_cost_and_a_remedy(machine):
    bare = replace(
        machine,
        driver=Driver(num_cards=1),
        torch=Torch(error="ImportError: no"),
        processor=Processor(),
        memory=Memory(machine_bytes=2**30, total_bytes=2**30, available_bytes=2**29, overcommit=2),
        disk=replace(machine.disk, free_bytes=2**30, file_system="nfs4", read_bytes_per_s=None, not_measured="full"),
        limits=ResourceLimits(open_files=256, processes=100),
        packages=Packages(python="3.11.7", wanted=machine.packages.wanted),
        environ={"OMP_WAIT_POLICY": "ACTIVE"},
    )
    faults = [check for check in judge(bare).checks if check.level not in ("ok", "missing")]
    assert {check.section for check in faults} == {check.section for check in judge(machine).checks}
    assert all(check.costs and check.cure for check in faults)
    assert not judge(bare).can_train


def test_a_machine_of_many_cores_does_not_need_room_for_that_many_workers(machine):
    many = replace(machine.processor, num_cores=256, num_affine=256, num_budget=256)
    little = replace(machine.memory, shm_bytes=2 * 2**30, shm_free_bytes=2 * 2**30)
    assert judge(replace(machine, processor=many, memory=little)).verdict.endswith("Nothing to fix.")


def test_this_machine_is_probed_and_judged(tmp_path, monkeypatch):
    planted = Torch(version="2.13.0", num_threads=1)
    monkeypatch.setattr(probes, "probe_torch", lambda: planted)
    monkeypatch.setattr(disk, "probe_disk", partial(probe_disk, file_bytes=4 * 2**20))
    found = probe(tmp_path, environ={"OMP_NUM_THREADS": "1"})
    assert found.torch == planted
    assert found.disk.folder == str(tmp_path)
    assert found.environ == {"OMP_NUM_THREADS": "1"}
    assert found.packages.versions
    assert examine(tmp_path, environ={}).can_train


@pytest.mark.parametrize(
    ("names", "torch", "place"),
    [
        (["A", "A", "B"], {"num_gpus": 3}, "on 2 x A and B, with 16 CPU cores"),
        (["A", "A", "B"], {"num_gpus": 1}, "on 2 x A and B (1 of these available), with"),
        ([], {"num_gpus": 0}, "on 16 CPU cores; there is no GPU."),
        (["A"], {"num_gpus": 0}, "on 16 CPU cores, and not on the GPU of this machine."),
        ([], {"num_gpus": 1}, "on a GPU that its driver does not describe, with"),
    ],
)
def test_the_verdict_names_where_training_runs(machine, gpu, names, torch, place):
    driver = Driver(gpus=tuple(replace(gpu, name=name) for name in names))
    found = replace(machine, driver=driver, torch=replace(machine.torch, **torch))
    assert verdict(found, []).startswith(f"Training runs {place}")


FINE = Check("disk", "room", "much")
STOP = Check("torch", "torch", "none").problem("it is slow", stops_training=True)


def test_the_verdict_counts_by_level_and_the_worst_comes_first(machine):
    checks = [FINE.note(""), FINE.warning(""), FINE.problem(""), FINE.note(""), FINE]
    assert verdict(machine, checks).endswith("To look at: 1 problem, 1 warning, 2 notes.")


def test_what_stops_training_is_the_whole_verdict(machine):
    assert verdict(machine, [FINE.warning(""), STOP]) == "Training cannot run here: torch, torch: none."
    assert verdict(machine, [STOP, STOP]).endswith(" And 1 more thing must be fixed.")
    assert CheckUp(verdict="", checks=[FINE, FINE.problem("")]).can_train
    assert not CheckUp(verdict="", checks=[FINE, STOP]).can_train


def test_an_item_keeps_its_level_unless_the_condition_holds():
    assert FINE.note("costs", when=False) == FINE.warning("costs", when=False) == FINE
    assert (STOP.section, STOP.found, STOP.level, STOP.costs) == ("torch", "none", "problem", "it is slow")


def test_plain_form_counts_levels_and_survives_json():
    plain = CheckUp(verdict="none", checks=[FINE, STOP, FINE]).to_plain()
    assert plain["counts"] == {"ok": 2, "missing": 0, "note": 0, "warning": 0, "problem": 1}
    assert json.loads(json.dumps(plain)) == plain
    assert plain["checks"][1]["found"] == "none"
