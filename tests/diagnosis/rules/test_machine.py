"""The machine: each fault planted in what was seen of the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.facts import CoreWait

GIB = 1024**3


@pytest.fixture
def on(clean, clean_gpu, find):
    """What a rule finds where the host was otherwise."""

    def look(code, *, gpu=False, status=0, **changes):
        facts = clean_gpu if gpu else clean
        return find(code, replace(facts, status=status, host=replace(facts.host, **changes)))

    return look


def test_swapping_is_a_cause_where_pages_come_back(on):
    (found,) = on("VX501", swap_out_bytes=GIB, swap_in_bytes=GIB)
    assert found.is_cause
    assert "1.00 GiB went to the swap space and 1.00 GiB came back" in found.cause
    (found,) = on("VX501", swap_out_bytes=GIB)
    assert not found.is_cause
    assert on("VX501", swap_out_bytes=1024) == ()


def test_memory_near_its_limit_is_a_cause_of_a_kill(on):
    (found,) = on("VX502", memory_bytes=63 * GIB)
    assert not found.is_cause
    assert "63.0 GiB of 64.0 GiB (98 %)" in found.cause
    (found,) = on("VX502", memory_bytes=63 * GIB, status=-9)
    assert found.is_cause
    assert "and the program was killed" in found.cause
    assert on("VX502", memory_bytes=10 * GIB) == ()


def test_a_quota_costs_the_time_in_which_all_stood_still(on):
    (found,) = on("VX503", throttled_share=0.3, num_threads=32)
    assert "In 30 % of the time" in found.cause
    assert found.saves_s == pytest.approx(3.0)
    assert on("VX503", throttled_share=0.01) == ()


def test_other_programs_are_told_only_where_no_core_is_left(on):
    (found,) = on("VX504", cpu_share=0.5, others_share=4.0)
    assert "Other programs kept 4.0 of 8 cores busy, this one 4.0" in found.cause
    assert found.saves_s == pytest.approx(5.0)
    assert on("VX504", cpu_share=0.3, others_share=2.0) == ()
    # A program that sleeps most of the time would do so on cores of its own, too.
    assert on("VX504", cpu_share=0.02, others_share=7.8) == ()


def test_other_programs_cost_no_more_than_the_time_in_which_a_core_was_wanted(clean, make, find):
    """One thread that had a core half of the time; all the rest of it, it waited for a late source."""
    waits = [replace(step, parts={"wait": 0.05, "forward": 0.05}) for step in clean.steps]
    late = [make.fetch(batch_s=0.05, cpu_share=0.0, worker=-1)]
    one = {"settings": replace(clean.settings, num_threads=1), "loaders": [make.loader(num_workers=0)]}
    facts = replace(clean, steps=waits, fetches=late, **one)
    busy = replace(clean.host, num_cpus=2, num_machine_cpus=2, others_share=1.75)
    (found,) = find("VX504", replace(facts, host=replace(busy, cpu_share=0.25)))
    assert found.saves_s == pytest.approx(0.0)
    (found,) = find("VX504", replace(facts, host=replace(busy, cpu_share=0.125)))
    assert found.saves_s == pytest.approx(2.5)


def test_other_programs_cost_what_the_thread_that_trains_waited_for_a_core(clean, make, find):
    host = replace(clean.host, cpu_share=0.5, others_share=4.0)
    facts = replace(clean, host=host, core_wait=CoreWait(seconds=0.5, of_s=5.0), loaders=[make.loader(num_workers=0)])
    (found,) = find("VX504", facts)
    assert found.saves_s == pytest.approx(1.0)
    assert found.evidence[-1] == "the thread that trains was ready and had no core in 10 % of the time"
    # Half of what it waited for workers, which had half of the cores, too.
    waits = [replace(step, parts={"wait": 0.02, "forward": 0.08}) for step in clean.steps]
    (found,) = find("VX504", replace(facts, steps=waits, loaders=[make.loader(num_workers=2)]))
    assert found.saves_s == pytest.approx(1.0 + 2.0 / 2)


def test_heat_is_a_cause_and_a_limit_on_power_worth_knowing(on):
    for name, is_cause in (("SwThermalSlowdown", True), ("SwPowerCap", False)):
        (found,) = on("VX505", gpu=True, gpu_throttle_reasons={name: 0.4, "GpuIdle": 0.5})
        assert found.is_cause is is_cause
        assert f"In 40 % of the samples the driver held the GPU's clocks back: {name}" in found.cause
    assert on("VX505", gpu=True, gpu_throttle_reasons={"GpuIdle": 0.9}) == ()
    assert on("VX505", gpu_throttle_reasons={"SwThermalSlowdown": 0.4}) == ()


def test_another_program_on_the_gpu_is_worth_knowing(on):
    (found,) = on("VX506", gpu=True, gpu_other_processes=2)
    assert "2 other programs held memory on the GPU" in found.cause
    assert not found.is_cause
    assert on("VX506", gpu=True) == ()


def test_a_full_gpu_is_worth_knowing(on):
    (found,) = on("VX507", gpu=True, gpu_memory_bytes=(79 * GIB,), gpu_memory_total_bytes=(80 * GIB,))
    assert "79.0 GiB of 80.0 GiB" in found.cause
    assert "expandable_segments:True" in found.change
    assert on("VX507", gpu=True, gpu_memory_bytes=(40 * GIB,), gpu_memory_total_bytes=(80 * GIB,)) == ()
