"""Threads of the CPU: each fault planted in facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.facts import ExperimentFacts, HostFacts


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
