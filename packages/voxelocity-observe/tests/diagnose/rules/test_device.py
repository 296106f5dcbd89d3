"""The GPU and what goes to it: each fault planted in facts of a program on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity_observe.diagnose.facts import CallFacts, KernelGroup, ProfileFacts, SyncFacts
from voxelocity_observe.diagnose.judging import diagnose


def sync(call="Tensor.item", *, count=100, seconds=1.0, on_device=True, where="train.py:60"):
    return SyncFacts(
        call=call,
        where=where,
        line="total += loss.item()",
        count=count,
        num_steps=100,
        seconds=seconds,
        on_device=on_device,
    )


def profile(*, idle=0.3, **fields):
    groups = {"All kernels": KernelGroup(number=5000, cpu_ns=10**7, gpu_ns=25 * 10**6)}
    return ProfileFacts(
        groups=groups, operators=(), num_steps=5, wall_ns=10**9, launch_bound_ns=int(idle * 10**9), **fields
    )


def test_a_gpu_that_stands_idle_is_found(clean, find):
    facts = replace(clean, settings=replace(clean.settings, has_cuda=True))
    (found,) = find("VX201", facts)
    assert "Computing takes 10 s of 10 s on the CPU, while torch sees a GPU" in found.cause
    assert found.saves_s == pytest.approx(9.95 * 0.8)
    assert found.where == "train.py:42"
    assert find("VX201", clean) == ()


@pytest.mark.parametrize(("is_pinned", "code", "other"), [(False, "VX202", "VX203"), (True, "VX203", "VX202")])
def test_copies_that_show_are_told_by_whether_the_loader_pins(clean_gpu, make, find, is_pinned, code, other):
    facts = replace(
        clean_gpu,
        steps=make.steps({"copy": 0.025, "forward": 0.075}),
        loaders=[make.loader(num_workers=2, pin_memory=is_pinned)],
    )
    (found,) = find(code, facts)
    assert "Copying batches takes 2.5 s of 10 s (25 %)" in found.cause
    assert found.saves_s == pytest.approx(1.25)
    assert "non_blocking=True" in found.change
    assert find(other, facts) == find(code, clean_gpu) == ()


def test_a_blocking_copy_is_named_first_with_the_programs_own_lines(clean_gpu, make, find):
    """A guide's plain loop on a GPU: pageable memory, blocking copies, the loss read in each step."""
    line = 'inputs, labels = batch["image"].to(device), batch["label"].cuda()'
    call = {"call": "DataLoader(ds, batch_size=4)", "variable": "train_loader", "built": "train.py:46"}
    facts = replace(
        clean_gpu,
        steps=make.steps({"copy": 0.04, "forward": 0.02, "backward": 0.03, "other": 0.01}),
        loaders=[make.loader(num_workers=4, persistent_workers=True, **call)],
        stacks=[make.stack("copy", "other", 40, where="train.py:58", line=line)],
        syncs=[sync(where="train.py:65")],
        profile=profile(idle=0.05),
    )
    first = diagnose(facts).findings[0]
    assert (first.code, first.where) == ("VX202", "train.py:46")
    assert first.change.splitlines() == [
        "train_loader = DataLoader(ds, batch_size=4, pin_memory=True)",
        'inputs, labels = batch["image"].to(device, non_blocking=True), batch["label"].cuda(non_blocking=True)',
    ]
    assert first.evidence[0] == f"train.py:58: {line}"
    pinned = replace(facts, loaders=[make.loader(num_workers=4, persistent_workers=True, pin_memory=True, **call)])
    assert diagnose(pinned).findings[0].code == "VX203"


def test_a_wait_at_each_step_costs_what_the_gpu_stood_still(clean_gpu, find):
    facts = replace(clean_gpu, syncs=[sync()], profile=profile(idle=0.2))
    (found,) = find("VX204", facts)
    assert "Tensor.item waits in each step until the GPU has done all" in found.cause
    assert found.saves_s == pytest.approx(2.0)
    assert (found.where, found.is_cause) == ("train.py:60", True)
    assert found.evidence[0] == "train.py:60: total += loss.item()"
    assert find("VX204", replace(clean_gpu, syncs=[sync(count=3)])) == ()


def test_two_lines_that_wait_share_what_they_cost(clean_gpu, find):
    both = [sync(seconds=3.0), sync("Tensor.cpu", seconds=1.0, where="train.py:70")]
    found = find("VX204", replace(clean_gpu, syncs=both, profile=profile(idle=0.2)))
    assert [finding.where for finding in found] == ["train.py:60", "train.py:70"]
    assert [finding.saves_s for finding in found] == pytest.approx([1.5, 0.5])


def test_item_on_a_cpu_is_told_to_cost_nothing(clean, find):
    (found,) = find("VX204", replace(clean, syncs=[sync(on_device=False, seconds=0.001)]))
    assert "On a CPU this costs almost no time; on a GPU each call would wait" in found.cause
    assert (found.saves_s, found.is_cause) == (0.0, False)


def test_short_kernels_are_found_in_the_profile(clean_gpu, find):
    (found,) = find("VX205", replace(clean_gpu, profile=profile(idle=0.4)))
    assert "In 40 % of the profiled steps the GPU had nothing to do" in found.cause
    assert "5000 kernels, 5.0 µs each on average" in found.evidence
    assert found.saves_s == pytest.approx(0.4 * 9.95)
    assert find("VX205", replace(clean_gpu, profile=profile(idle=0.05))) == ()


def test_launch_blocking_is_found_in_the_environment(clean_gpu, find):
    settings = replace(clean_gpu.settings, environment={"CUDA_LAUNCH_BLOCKING": "1"})
    (found,) = find("VX206", replace(clean_gpu, settings=settings, profile=profile(idle=0.3)))
    assert found.evidence == ("CUDA_LAUNCH_BLOCKING=1",)
    assert found.saves_s == pytest.approx(3.0)
    off = replace(settings, environment={"CUDA_LAUNCH_BLOCKING": "0"})
    assert find("VX206", replace(clean_gpu, settings=off)) == ()


def test_emptying_the_cache_each_step_costs_its_calls(clean_gpu, clean, find):
    call = CallFacts(
        call="torch.cuda.empty_cache",
        where="train.py:61",
        line="torch.cuda.empty_cache()",
        count=100,
        num_steps=100,
        seconds=1.5,
    )
    (found,) = find("VX207", replace(clean_gpu, calls=[call]))
    assert (found.saves_s, found.basis, found.where) == (1.5, "measured", "train.py:61")
    assert "ran 100 times in 100 steps and took 1.5 s" in found.cause
    assert find("VX207", replace(clean_gpu, calls=[replace(call, count=2)])) == ()
    assert find("VX207", replace(clean, calls=[call])) == ()


def test_data_parallel_is_found_by_its_wrapper(clean_gpu, find):
    (found,) = find("VX208", replace(clean_gpu, network=replace(clean_gpu.network, wrapper="DataParallel")))
    assert found.evidence == ("network: DataParallel(UNet) at train.py:42",)
    wrapped = replace(clean_gpu.network, wrapper="DistributedDataParallel")
    assert find("VX208", replace(clean_gpu, network=wrapped)) == ()
