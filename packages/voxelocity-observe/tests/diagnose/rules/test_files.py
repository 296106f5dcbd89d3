"""Where the data comes from: each fault planted in facts, each finding with its figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity_observe.diagnose.facts import ExperimentFacts, FileFacts, HostFacts

MB = 10**6


def storage(name, bytes_per_s):
    return ExperimentFacts(name=name, unit="byte", seconds=[1.0 / bytes_per_s] * 3)


@pytest.fixture
def read(waiting, make, clean):
    """One worker, 0.3 s a batch, which reads 20 MB."""
    files = FileFacts(kinds={".npy": 200}, num_opens=200, num_files=200, read_bytes=2000 * MB)
    return lambda **fields: waiting(
        0.2, make.loader(num_workers=1), make.fetch(batch_s=0.3), **{"files": files, **fields}
    )


def test_slow_storage_is_found_by_reading_again(read, clean, find):
    known = [*clean.experiments, storage("storage", 100 * MB), storage("storage, page cache", 5000 * MB)]
    (found,) = find("VX121", read(experiments=known, host=replace(clean.host, file_system="nfs4")))
    assert "A batch reads 19.1 MiB from nfs4, a network file system, at 95.4 MiB a second" in found.cause
    assert found.basis == "measured"
    # 0.2 of 0.3 s are reading; without it the worker is as fast as the network.
    assert found.saves_s == pytest.approx(19.7, rel=0.03)
    assert find("VX121", read(experiments=[*clean.experiments, storage("storage", 2000 * MB)])) == ()


def test_files_that_memory_keeps_are_read_from_the_storage_once(read, clean, find):
    """Ten uses of each file: one from the storage, nine from the page cache."""
    known = [*clean.experiments, storage("storage", 100 * MB), storage("storage, page cache", 5000 * MB)]
    again = FileFacts(kinds={".npy": 200}, num_opens=200, num_files=20, read_bytes=2000 * MB, num_uses=200)
    assert find("VX121", read(experiments=known, files=again)) == ()
    small = replace(clean.host, memory_limit_bytes=300 * MB)
    (found,) = find("VX121", read(experiments=known, files=again, host=small))
    assert "A batch reads 19.1 MiB" in found.cause


def test_a_file_that_is_opened_twice_for_one_use_is_read_once(read, clean, find):
    known = [*clean.experiments, storage("storage", 100 * MB)]
    twice = FileFacts(kinds={".nii": 400}, num_opens=400, num_files=200, read_bytes=4000 * MB, num_uses=200)
    (found,) = find("VX121", read(experiments=known, files=twice))
    assert "A batch reads 19.1 MiB" in found.cause


def test_many_small_files_are_told_from_few_large_ones(read, make, find):
    stacks = [make.stack("worker", "read", 60), make.stack("worker", "transform", 40)]
    small = FileFacts(kinds={".dcm": 20000}, num_opens=20_000, num_files=20_000, read_bytes=20_000 * 50_000)
    (found,) = find("VX122", read(files=small, stacks=stacks))
    assert "An item opens 100 files of 48.8 KiB on average; 60 % of making batches" in found.cause
    assert find("VX122", read(stacks=stacks)) == ()


def test_full_shared_memory_is_a_cause_and_a_small_one_worth_knowing(clean, find):
    size = 64 * 1024**2
    for used, is_cause in ((0.95, True), (0.1, False)):
        host = replace(clean.host, shm_size_bytes=size, shm_used_bytes=int(used * size))
        (found,) = find("VX123", replace(clean, host=host))
        assert found.is_cause is is_cause
        assert "holds 64.0 MiB" in found.cause
    assert find("VX123", replace(clean, host=replace(clean.host, shm_size_bytes=2**34))) == ()


def test_reading_over_a_network_is_told_where_nobody_measured_the_storage(read, make, find):
    stacks = [make.stack("worker", "read", 60, where="data.py:3"), make.stack("worker", "transform", 40)]
    host = HostFacts(num_cpus=8, file_system="nfs")
    (found,) = find("VX124", read(stacks=stacks, host=host))
    assert "60 % of making batches is reading files from nfs" in found.cause
    assert find("VX124", read(stacks=stacks, host=replace(host, file_system="ext4"))) == ()
