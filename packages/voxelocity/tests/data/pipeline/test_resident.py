"""Cases in the device's memory in front of their tier, on the CPU as device where there is no other."""

import itertools
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from shared.batches import assert_equal_batches
from shared.limits import HANGS_S
from shared.noted_cases import NotedCases
from shared.raising import raising
from voxelocity.core.batch import Draw
from voxelocity.core.contracts import ResidentVolume
from voxelocity.core.volume import Grid, Volume
from voxelocity.data.cache import DeviceFront
from voxelocity.data.cache.device import DeviceTier
from voxelocity.data.pipeline import Feed, build
from voxelocity.data.pipeline.supply import ResidentSupply, open_resident_supply

CPU = torch.device("cpu")
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs TRITON_INTERPRET=1, as test_triton.py sets it",
)


@pytest.fixture
def in_front(data_config):
    """The path's configuration with cases on the device in front of a tier."""

    def make(max_bytes, tier="memory", num_threads=0, **augment):
        return data_config(tier, num_threads, cache={"device_max_bytes": max_bytes}, **augment)

    return make


def take(refs, config, count):
    cases = NotedCases(refs, config)
    with Feed(cases, config, seed=3) as feed:
        return list(itertools.islice(feed, count)), feed, cases.warnings


@pytest.mark.parametrize(("tier", "num_threads"), [("memory", 3), ("disk blosc2", 0), ("lmdb", 2), ("none", 0)])
def test_batches_from_the_device_are_those_from_the_tier_behind_it(blob_refs, in_front, tier, num_threads):
    ours, feed, messages = take(blob_refs, in_front(2**20, tier, num_threads), 6)
    assert messages == []
    assert_equal_batches(ours, take(blob_refs, in_front(0), 6)[0])
    assert all(isinstance(feed._supply._front._tier.get(str(case)), ResidentVolume) for case in range(5))


def test_a_device_that_was_meant_to_hold_some_cases_changes_no_batch_and_needs_no_word(blob_refs, in_front):
    # Any two of the five cases fit (17,280 to 21,120 bytes), no three do: whichever thread is first.
    ours, feed, messages = take(blob_refs, in_front(45_000, num_threads=2), 9)
    assert_equal_batches(ours, take(blob_refs, in_front(0), 9)[0])
    assert sum(feed._supply._front._tier.get(str(case)) is not None for case in range(5)) == 2
    assert messages == []


def test_a_device_that_holds_nearly_all_cases_says_so_once(blob_refs, in_front):
    # Any four of the five.
    ours, feed, messages = take(blob_refs, in_front(84_500, num_threads=2), 9)
    assert_equal_batches(ours, take(blob_refs, in_front(0), 9)[0])
    assert sum(feed._supply._front._tier.get(str(case)) is not None for case in range(5)) == 4
    assert len(messages) == 1
    assert re.fullmatch(
        r"cache\.device: no space for case 'case_\d' of 0\.0 MB, 0\.0 MB of 0\.1 MB are left; raise "
        r"data\.cache\.device_max_bytes; cases that are not there yet are copied from the tier behind it for each "
        r"batch",
        messages[0],
    )


def test_a_device_without_that_much_memory_is_reported_and_the_tier_takes_over(blob_refs, in_front, monkeypatch):
    with monkeypatch.context() as patched:
        exhausted = raising(torch.OutOfMemoryError("CUDA out of memory"))
        patched.setattr("voxelocity.data.cache.device.torch.empty", exhausted)
        cases = NotedCases(blob_refs, in_front(2**40))
        assert open_resident_supply(cases, 2**40, CPU) is None
    assert cases.warnings == [
        "cache.device: cpu has no 1099.5 GB left; lower data.cache.device_max_bytes; continuing with cases copied from "
        "the tier behind it for each batch"
    ]


@pytest.mark.parametrize(("free_bytes", "has_room"), [(2_000_000, True), (1_999_998, False)])
def test_half_of_what_a_device_has_free_is_left_to_the_network(blob_refs, in_front, monkeypatch, free_bytes, has_room):
    monkeypatch.setattr("voxelocity.data.pipeline.supply._free_bytes", lambda _: free_bytes)
    cases = NotedCases(blob_refs, in_front(10**6))
    supply = open_resident_supply(cases, 10**6, CPU)
    assert isinstance(supply, ResidentSupply) is has_room
    if not has_room:
        assert cases.warnings == [
            "cache.device: cpu has 0.0 GB free, and 0.0 GB for prepared cases would leave less than half of that for "
            "the network; lower data.cache.device_max_bytes; continuing with cases copied from the tier behind it for "
            "each batch"
        ]


class Cases:
    """Volumes of a tier, which writes down who is asked for."""

    def __init__(self, *dtypes):
        self.messages, self.asked = [], []
        self.warn = self.messages.append
        self._dtypes = dtypes

    def __getitem__(self, case):
        self.asked.append(case)
        image = np.full((1, 10, 10, 10), case, self._dtypes[case])
        label = np.zeros(image.shape[1:], np.uint8)
        return Volume(case_id=f"case_{case}", image=image, label=label, grid=Grid.of(image.shape, np.eye(4)))


def draws_of(*cases):
    return [Draw(case_id=f"case_{case}", case=case, epoch=0) for case in cases]


def test_a_case_that_kernels_cannot_read_stays_behind_and_the_others_come():
    cases = Cases("int16", "uint16", "uint16", "int16")
    supply = ResidentSupply(cases, DeviceFront(DeviceTier(10**5, CPU), num_volumes=4, warn=cases.warn))
    for _ in range(2):
        kinds = [isinstance(volume, ResidentVolume) for volume in supply.take(0, draws_of(0, 1, 2, 3))]
        assert kinds == [True, False, False, True]
    assert cases.asked == [0, 1, 2, 3, 1, 2]
    assert cases.messages == [
        "cache.device: case 'case_1' is stored as <u2, a device keeps int16, uint8, float16, float32; set "
        "data.prepare.dtype to one of them; cases like this one are copied from the tier behind it for each batch"
    ]


def test_a_case_drawn_by_many_threads_at_once_is_brought_once():
    cases = Cases("int16")
    supply = ResidentSupply(cases, DeviceFront(DeviceTier(10**5, CPU), num_volumes=4, warn=cases.warn))
    begin = threading.Barrier(8)

    def draw(_):
        begin.wait(HANGS_S)
        return supply.take(0, draws_of(0))[0]

    with ThreadPoolExecutor(8) as pool:
        volumes = list(pool.map(draw, range(8)))
    assert cases.asked == [0]
    assert all(isinstance(volume, ResidentVolume) for volume in volumes)


def test_an_engine_of_the_cpu_keeps_cases_off_another_device_and_says_so(blob_refs, in_front):
    config = in_front(2**20, engine="torch")
    cases = NotedCases(blob_refs, config)
    with Feed(cases, config, device="meta") as feed:
        assert feed._supply is None
    assert cases.warnings == [
        "feed: data.cache.device_max_bytes is not used because the augmentation engine fills batches on the CPU, not "
        "on meta; choose data.augment.engine: auto"
    ]


@interpreted
def test_kernels_read_resident_voxels_in_place(blob_refs, in_front, monkeypatch):
    """As on CUDA: the kernels get places on the device, and the batches are those that copied boxes give."""
    resident = []
    make = build.ResidentSource
    monkeypatch.setattr(build, "ResidentSource", lambda **of: (resident.append(1), make(**of))[1])
    ours, *_ = take(blob_refs, in_front(2**20, engine="triton"), 1)
    assert len(resident) == 3, "a sample each"
    theirs, *_ = take(blob_refs, in_front(0, engine="triton"), 1)
    assert len(resident) == 3
    assert_equal_batches(ours, theirs)
