"""Who makes the batches: each fault planted in facts, each finding with its figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity_observe.diagnose.facts import ExperimentFacts, HostFacts


@pytest.fixture
def two_cores(clean):
    """The machine and the threads of a program on two cores."""
    return {"host": HostFacts(num_cpus=2), "settings": replace(clean.settings, num_threads=2)}


def test_own_thread_is_found_and_saves_the_wait_where_cores_are_free(waiting, clean, make, find):
    facts = waiting(0.06, make.loader(num_workers=0), make.fetch(batch_s=0.06, worker=-1))
    (found,) = find("VX101", facts)
    assert "the network spends 6.0 s of 16 s (38 %) waiting for data" in found.cause
    assert found.saves_s == pytest.approx(6.0, rel=0.05)
    assert found.change == "DataLoader(..., num_workers=1, persistent_workers=True)"
    assert found.where == "train.py:40"
    assert found.speedup == pytest.approx(1.6, rel=0.05)
    assert any(line.startswith("DataLoader(num_workers=0) at train.py:40") for line in found.evidence)
    assert find("VX101", replace(clean, loaders=[make.loader(num_workers=0)])) == ()


def test_calls_of_the_network_with_one_sample_each_are_not_taken_for_batches(waiting, clean, make, find):
    loader = make.loader(num_workers=0)
    one = waiting(0.06, loader, make.fetch(batch_s=0.06, worker=-1))
    optimizer = replace(clean.optimizer, forwards_per_step=4.0, batches_per_step=1.0)
    by_sample = replace(one, optimizer=optimizer)
    assert find("VX101", by_sample) == find("VX101", one)
    accumulated = replace(one, optimizer=replace(optimizer, batches_per_step=4.0))
    assert find("VX101", accumulated)[0].evidence != find("VX101", one)[0].evidence


def test_the_change_is_the_programs_own_call(waiting, make, find):
    made = make.loader(num_workers=0, built="train.py:30", call="DataLoader(train_ds, 2)", variable="train_loader")
    (found,) = find("VX101", waiting(0.06, made, make.fetch(batch_s=0.06, worker=-1)))
    assert found.change == "train_loader = DataLoader(train_ds, 2, num_workers=1, persistent_workers=True)"
    assert found.where == "train.py:30"


def test_the_queue_takes_the_workers_and_not_its_loader(waiting, make, find):
    """TorchIO forbids workers in the loader of a queue; those of the queue change the order of the patches."""
    parts = {"call": "DataLoader(queue, 4)", "variable": "patches", "dataset_variable": "queue"}
    queue = make.loader(
        num_workers=0, queue_workers=0, dataset="Queue", dataset_call="tio.Queue(subjects, 99, 3)", **parts
    )
    facts = waiting(0.06, queue, make.fetch(batch_s=0.06, worker=-1))
    (found,) = find("VX101", facts)
    assert found.change.splitlines() == [
        "queue = tio.Queue(subjects, 99, 3, num_workers=1)",
        "patches = DataLoader(queue, 4, num_workers=0)  # stays 0: the queue has the workers",
    ]
    assert found.risk == "changes results"
    assert "With num_workers=0 in the queue" in found.cause
    assert find("VX101", replace(facts, loaders=[replace(queue, queue_workers=2)])) == ()


def test_own_thread_saves_half_where_two_cores_both_compute_and_make(waiting, make, find, two_cores):
    """Of 0.1 s on two cores and 0.06 s on one, a step cannot take less than (0.2 + 0.06) / 2."""
    facts = waiting(0.06, make.loader(num_workers=0), make.fetch(batch_s=0.06, worker=-1), **two_cores)
    (found,) = find("VX101", facts)
    assert found.saves_s == pytest.approx(100 * 0.03, rel=0.07)
    # Three threads on two cores: those that wait must not spin.
    assert found.change.splitlines()[1].startswith("# and start it with OMP_WAIT_POLICY=PASSIVE")
    passive = replace(facts.settings, environment={"OMP_WAIT_POLICY": "PASSIVE"})
    assert len(find("VX101", replace(facts, settings=passive))[0].change.splitlines()) == 1


def test_own_thread_that_only_waits_for_a_disk_saves_all_on_two_cores(waiting, make, find, two_cores):
    facts = waiting(0.06, make.loader(num_workers=0), make.fetch(batch_s=0.06, cpu_share=0.0, worker=-1), **two_cores)
    (found,) = find("VX101", facts)
    assert found.saves_s == pytest.approx(6.0, rel=0.05)


def test_a_pinning_loader_is_proposed_on_a_gpu(waiting, make, find, clean_gpu):
    facts = waiting(0.06, make.loader(num_workers=0), make.fetch(batch_s=0.06, worker=-1), settings=clean_gpu.settings)
    (found,) = find("VX101", facts)
    assert found.change.endswith("pin_memory=True)")


def test_reading_in_the_loop_is_found_by_its_stacks(clean, make, find):
    parts = {"forward": 0.04, "backward": 0.06, "other": 0.1}
    facts = replace(
        clean,
        steps=make.steps(parts),
        loaders=[],
        fetches=[],
        experiments=[],
        stacks=[
            make.stack("other", "gunzip", 80, where="train.py:12", line="image = nibabel.load(path)"),
            make.stack("other", "other", 20),
        ],
    )
    (found,) = find("VX102", facts)
    assert found.where == "train.py:12"
    assert "The loop spends 8.0 s of 20 s (40 %)" in found.cause
    assert found.saves_s == pytest.approx(8.0, rel=0.01)
    assert found.evidence[0] == "100 % of the samples, train.py:12: image = nibabel.load(path)"


def test_one_worker_for_a_fast_network_is_too_few(waiting, make, find):
    facts = waiting(0.2, make.loader(num_workers=1), make.fetch(batch_s=0.3))
    (found,) = find("VX103", facts)
    assert "1 worker makes a batch every 0.30 s, the network takes one every 99 ms" in found.cause
    # Three would just keep up; a fourth makes up for a batch that is late.
    assert "num_workers=4" in found.change
    # Eight cores compute 6 x 0.099 s and make a batch of 0.3 s: 0.112 s in place of 0.3 s.
    assert found.saves_s == pytest.approx(18.8, rel=0.01)
    facts = waiting(0.2, make.loader(num_workers=1), make.fetch(batch_s=0.3), host=HostFacts(num_cpus=1))
    assert find("VX103", facts) == ()


def test_sixteen_workers_on_two_cores_are_too_many(waiting, make, find, two_cores):
    """Batches of 20 ms of CPU time take 0.3 s by the clock, as sixteen workers take turns."""
    facts = waiting(
        0.0,
        make.loader(num_workers=16),
        make.fetch(batch_s=0.3, cpu_share=0.02 / 0.3),
        steps=make.steps({"wait": 0.05, "forward": 0.1, "backward": 0.1}),
        **two_cores,
        passes=[make.between("epoch start", 4.0, at=50)],
    )
    (found,) = find("VX104", facts)
    assert "16 workers share 2 cores" in found.cause
    assert "num_workers=1," in found.change
    # Steps go from 0.25 s to (2 x 0.099 + 0.02) / 2, and workers that are kept are not started again.
    assert found.saves_s == pytest.approx(100 * (0.25 - 0.109) + 4.0, rel=0.01)
    assert find("VX104", waiting(0.1, make.loader(num_workers=8), make.fetch(batch_s=0.3))) == ()


def test_batches_that_too_many_workers_make_before_an_epoch_count_as_work(waiting, make, find, two_cores):
    """Of each second before an epoch 0.3 s start workers; in the rest they make batches that steps then do not need."""
    facts = waiting(
        0.0,
        make.loader(num_workers=16),
        replace(make.fetch(batch_s=0.3, cpu_share=0.02 / 0.3), starts_s=(0.3, 0.2, 0.4)),
        steps=make.steps({"wait": 0.0, "forward": 0.05, "backward": 0.05}),
        **two_cores,
        passes=[make.between("epoch start", 1.0, at=at) for at in (20, 40, 60)],
    )
    (found,) = find("VX104", facts)
    started_s, early_s = 3 * 0.3, 3 * (1.0 - 0.3 - 0.02)
    assert found.saves_s == pytest.approx(started_s + early_s + 100 * (0.1 - 0.109), rel=0.01)
    (restarted,) = find("VX105", facts)
    assert restarted.saves_s == pytest.approx(started_s)


def test_workers_started_at_each_epoch_cost_what_the_starts_took(clean, make, find):
    facts = replace(
        clean,
        loaders=[make.loader(num_workers=2)],
        passes=[make.between("epoch start", 1.5, at=20), make.between("epoch start", 0.5, at=60)],
    )
    (found,) = find("VX105", facts)
    assert (found.saves_s, found.basis) == (2.0, "measured")
    assert "took 1.0 s on average, at 2 epoch starts" in found.cause
    assert find("VX105", replace(facts, loaders=[make.loader(num_workers=2, persistent_workers=True)])) == ()


def test_first_batches_of_epochs_are_not_counted_as_starting_workers(clean, make, find):
    facts = replace(
        clean,
        loaders=[make.loader(num_workers=2)],
        fetches=[replace(make.fetch(batch_s=0.05), starts_s=(0.6, 0.7, 0.5))],
        passes=[make.between("epoch start", 1.5, at=20), make.between("epoch start", 0.5, at=60)],
    )
    (found,) = find("VX105", facts)
    assert found.saves_s == pytest.approx(0.6 + 0.5)
    assert "epoch starts: 2.0 s in all, the first batches included" in found.evidence


def test_late_batches_are_told_from_slow_ones(waiting, make, find):
    late = replace(make.fetch(batch_s=0.1), batch_s=[0.05] * 90 + [1.0] * 10)
    (found,) = find("VX106", waiting(0.02, make.loader(num_workers=2), late))
    assert "Half of the batches take 50 ms or less, one in twenty 1.0 s or more" in found.cause
    assert "prefetch_factor=7" in found.change
    slow = replace(make.fetch(batch_s=0.6), batch_s=[0.6] * 100)
    assert find("VX106", waiting(0.2, make.loader(num_workers=2), slow)) == ()


def test_a_loader_of_threads_that_waits_is_told_of_the_lock(waiting, make, find):
    facts = waiting(0.06, make.loader(kind="ThreadDataLoader"), make.fetch(batch_s=0.06, worker=-1))
    (found,) = find("VX107", facts)
    assert found.change == "torch.utils.data.DataLoader(..., num_workers=1, persistent_workers=True)"
    assert find("VX101", facts) == ()


def test_a_loop_that_stands_still_within_its_own_calls_is_told_of_the_lock(clean, make, find):
    alone = ExperimentFacts(name="resident batch", unit="step", seconds=[0.05])
    facts = replace(
        clean,
        loaders=[make.loader(kind="ThreadDataLoader")],
        fetches=[make.fetch(batch_s=0.06, worker=-1)],
        experiments=[alone],
    )
    (found,) = find("VX107", facts)
    assert "in a thread of the program itself" in found.cause
    assert found.saves_s == pytest.approx(100 * 0.05)
    assert find("VX107", replace(facts, experiments=clean.experiments)) == ()
    little = replace(facts, fetches=[make.fetch(batch_s=0.02, worker=-1)])
    assert find("VX107", little)[0].saves_s == pytest.approx(100 * 0.0205), "no longer than the thread works"
    assert find("VX107", replace(facts, fetches=[make.fetch(batch_s=0.0002, worker=-1)])) == ()


def test_more_work_than_cores_is_told_without_promising_anything(waiting, make, find, two_cores):
    facts = waiting(0.1, make.loader(num_workers=2), make.fetch(batch_s=0.2), **two_cores)
    (found,) = find("VX108", facts)
    assert "need 0.40 s of CPU time together; on 2 cores that is 0.20 s a step" in found.cause
    assert found.saves_s is None
    assert found.is_cause


def test_our_own_feed_is_told_of_its_threads_and_of_no_loader(waiting, make, find):
    facts = waiting(0.06, make.loader(kind="Feed", num_workers=1), make.fetch(batch_s=0.06))
    (found,) = find("VX109", facts)
    assert found.change == "voxelocity train ... --set data.feed.num_threads=8"
    assert found.risk == "safe"
    for code in ("VX101", "VX103", "VX104", "VX105", "VX106"):
        assert find(code, facts) == ()


def test_workers_of_batches_that_take_no_time_are_needless(waiting, make, find):
    made = make.loader(num_workers=4, kind="ThreadDataLoader", call="ThreadDataLoader(ds, num_workers=4)", variable="x")
    starts = [make.between("epoch start", 0.5, at=at) for at in (20, 60)]
    facts = waiting(0.0, made, make.fetch(batch_s=0.004), passes=starts)
    (found,) = find("VX119", facts)
    assert "takes 4 ms to make, and the step computes for 99 ms. With 4 workers it takes 0.10 s" in found.cause
    assert found.change == "x = ThreadDataLoader(ds, num_workers=0)"
    assert found.saves_s == pytest.approx(1.0, rel=0.01)
    assert find("VX107", facts) == ()
    assert find("VX119", waiting(0.0, made, make.fetch(batch_s=0.06), passes=starts)) == ()
    assert find("VX119", waiting(0.0, made, make.fetch(batch_s=0.004))) == ()
