from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity_observe.diagnose.facts import CoreWait, ExperimentFacts, HostFacts

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
    assert found.evidence[-1] == "the thread that trains was ready but had no core in 10 % of the time"
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


def test_one_thread_beside_free_cores_is_told_with_the_variable_that_set_it(clean, find):
    settings = replace(clean.settings, num_threads=1, environment={"OMP_NUM_THREADS": "1"})
    (found,) = find("VX351", replace(clean, settings=settings))
    assert found.change == "export OMP_NUM_THREADS=8"
    assert "with 1 thread; 8 cores are free for it" in found.cause
    assert found.saves_s == pytest.approx(9.95 * (1 - (0.2 + 0.8 / 8)))
    unset = replace(settings, environment={})
    (found,) = find("VX351", replace(clean, settings=unset))
    assert found.change == "torch.set_num_threads(8)"


def test_a_thread_a_physical_core_is_enough_unless_somebody_set_it(clean, find):
    half = replace(clean.settings, num_threads=4)
    assert find("VX351", replace(clean, settings=half)) == ()
    (found,) = find("VX351", replace(clean, settings=replace(half, environment={"OMP_NUM_THREADS": "4"})))
    assert found.change == "export OMP_NUM_THREADS=8"


def test_ranks_on_one_machine_share_its_cores(clean, find):
    single = replace(clean.settings, num_threads=1, environment={"OMP_NUM_THREADS": "1"})
    eight = replace(clean, settings=single, main=replace(clean.main, world_size=8, num_local_ranks=8))
    assert find("VX351", eight) == ()
    two = replace(eight, main=replace(clean.main, world_size=2, num_local_ranks=2))
    assert find("VX351", two)[0].change == "export OMP_NUM_THREADS=4"


def test_cores_of_busy_workers_are_not_free(waiting, make, find, clean):
    settings = replace(clean.settings, num_threads=6)
    facts = waiting(0.1, make.loader(num_workers=2), make.fetch(batch_s=0.4), settings=settings)
    assert find("VX351", facts) == ()


def test_threads_beyond_the_cores_of_a_container_are_a_cause_when_they_are_many(clean, find):
    for count, is_cause in ((16, True), (5, False)):
        facts = replace(
            clean,
            settings=replace(clean.settings, num_threads=count),
            host=HostFacts(num_cpus=4, num_machine_cpus=64),
        )
        (found,) = find("VX352", facts)
        assert found.is_cause is is_cause
        assert found.change == "export OMP_NUM_THREADS=4"
        assert "of the machine: 64" in found.evidence[0]
    assert find("VX352", clean) == ()


def test_spinning_threads_are_found_by_the_step_alone(waiting, make, find, clean):
    """A step computes 0.1 s beside two workers, and 0.04 s alone."""
    facts = waiting(
        0.02,
        make.loader(num_workers=2),
        make.fetch(batch_s=0.05),
        host=HostFacts(num_cpus=2),
        settings=replace(clean.settings, num_threads=2),
        experiments=[ExperimentFacts(name="resident batch", unit="step", seconds=[0.04] * 5)],
    )
    (found,) = find("VX353", facts)
    assert "With 2 workers a step computes for 0.10 s, alone for 40 ms" in found.cause
    assert found.saves_s == pytest.approx(6.0, rel=0.01)
    assert found.change == "export OMP_WAIT_POLICY=PASSIVE"
    passive = replace(facts.settings, environment={"OMP_WAIT_POLICY": "passive"})
    assert find("VX353", replace(facts, settings=passive)) == ()
    assert find("VX353", replace(facts, host=HostFacts(num_cpus=8))) == ()
