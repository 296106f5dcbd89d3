from __future__ import annotations

from dataclasses import replace

from voxelocity.diagnosis.doctor import Check
from voxelocity.diagnosis.doctor.seen import Driver, Torch
from voxelocity.diagnosis.doctor.verdict import verdict


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
