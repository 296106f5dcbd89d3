import dataclasses

import pytest

from voxelocity_observe.diagnose.facts import Facts, Pass, ProcessFacts, Step
from voxelocity_observe.diagnose.facts.host import host_facts, watched_stretch_s
from voxelocity_observe.monitor.samples import GpuSample, HostSample, Sample


def sample(time_s, *, period_s=1.0, gpus=(), **host):
    return Sample(time_s=time_s, period_s=period_s, host=HostSample(**host), gpus=tuple(gpus))


def facts_of(samples, **options):
    return host_facts(samples, num_cpus=4, memory_limit_bytes=100, **options)


def test_means_are_over_time_and_peaks_of_any_sample(tmp_path):
    samples = [
        sample(1.0, period_s=1.0, program_cores=1.0, program_memory_bytes=30, num_threads=9, core_shares=(0.5,) * 8),
        sample(4.0, period_s=3.0, program_cores=3.0, program_memory_bytes=20, num_processes=3, others_cores=0.4),
    ]
    facts = facts_of(samples, shm=tmp_path)
    assert facts.cpu_share == pytest.approx((1 * 1 + 3 * 3) / 4 / 4)
    assert (facts.num_cpus, facts.num_machine_cpus, facts.memory_limit_bytes) == (4, 8, 100)
    assert (facts.memory_bytes, facts.num_threads, facts.num_processes) == (30, 9, 3)
    assert facts.others_share == pytest.approx(0.4), "what could not be asked does not count as nothing"
    assert facts.shm_size_bytes > 0


def test_rates_of_the_swap_are_summed_to_bytes():
    samples = [
        sample(1.0, period_s=0.5, swap_in_bytes_per_s=100.0, swap_out_bytes_per_s=4.0),
        sample(2.0, period_s=2.0, swap_in_bytes_per_s=10.0),
    ]
    facts = facts_of(samples)
    assert (facts.swap_in_bytes, facts.swap_out_bytes) == (70, 2)


def test_means_are_of_the_watched_stretch_alone_and_peaks_are_not():
    samples = [
        sample(1.0, program_cores=0.0, program_memory_bytes=90),
        sample(5.0, program_cores=2.0, program_memory_bytes=50),
        sample(9.0, program_cores=4.0),
    ]
    facts = facts_of(samples, within_s=(4.0, 6.0))
    assert (facts.cpu_share, facts.memory_bytes) == (0.5, 90)
    nothing_within = facts_of(samples, within_s=(20.0, 30.0))
    assert nothing_within.cpu_share == pytest.approx(0.5), "all samples, where none lies within"


def test_devices_and_slices_are_told_apart_in_their_order():
    def gpus(busy):
        return [
            GpuSample(index=1, busy_share=busy, memory_used_bytes=7, memory_total_bytes=10, num_other_processes=2),
            GpuSample(index=0, slice=1, busy_share=None, memory_used_bytes=3),
            GpuSample(index=0, slice=0, busy_share=1.0, throttle_reasons=("heat",)),
        ]

    facts = facts_of([sample(1.0, gpus=gpus(0.2)), sample(2.0, gpus=gpus(0.4)), sample(3.0)])
    assert facts.gpu_busy == pytest.approx([1.0, 0.0, 0.3])
    assert list(facts.gpu_memory_bytes) == [0, 3, 7]
    assert list(facts.gpu_memory_total_bytes) == [0, 0, 10]
    assert facts.gpu_throttle_reasons == {"heat": 1.0}
    assert facts.gpu_other_processes == 2


def test_no_samples_leave_what_the_machine_is():
    facts = host_facts([])
    assert facts.num_cpus >= 1
    assert facts.num_machine_cpus >= facts.num_cpus
    assert facts.memory_limit_bytes > 0
    assert (facts.cpu_share, facts.gpu_busy, facts.num_processes, facts.file_system) == (0.0, [], 1, "")


def test_the_file_system_is_that_of_most_files(monkeypatch):
    kinds = {"/a": "nfs", "/b": "nfs", "/c": "ext4", "/d": ""}
    monkeypatch.setattr("voxelocity_observe.diagnose.facts.host.file_system_of", lambda path: kinds[path])
    assert facts_of([], files=["/a", "/b", "/c"]).file_system == "nfs"
    assert facts_of([], files=["/d"]).file_system == ""


def test_the_watched_stretch_runs_from_the_first_counted_step_to_the_last_pass():
    steps = [
        Step(start_s=1.0, seconds=1.0, parts={}, phase="warm-up"),
        Step(start_s=2.0, seconds=1.0, parts={}),
        Step(start_s=3.0, seconds=1.0, parts={}),
    ]
    passes = [Pass(kind="validation", start_s=4.0, seconds=5.0)]
    main = ProcessFacts(pid=1, parent_pid=0, role="main")
    facts = Facts(command=(), main=main, seconds=9.0, steps=steps, passes=passes)
    assert watched_stretch_s(facts) == (2.0, 9.0)
    assert watched_stretch_s(dataclasses.replace(facts, steps=steps[:1])) is None


def test_the_watched_stretch_is_told_from_when_sampling_began():
    main = ProcessFacts(pid=1, parent_pid=0, role="main", began_s=130.0)
    facts = Facts(command=(), main=main, seconds=9.0, steps=[Step(start_s=2.0, seconds=1.0, parts={})])
    assert watched_stretch_s(facts, sampled_from_s=100.0) == (32.0, 33.0), "a script did something else for 30 s"
    assert watched_stretch_s(facts) == (2.0, 3.0)
    untold = dataclasses.replace(facts, main=dataclasses.replace(main, began_s=None))
    assert watched_stretch_s(untold, sampled_from_s=100.0) == (2.0, 3.0)
