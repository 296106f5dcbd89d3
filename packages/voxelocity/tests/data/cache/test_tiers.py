"""The contract of every tier, and what a tier alone must do in addition."""

from functools import partial
from typing import get_args

import pytest

from shared.examples import is_thorough
from voxelocity.data.cache import (
    FOLDER_TIERS,
    DiskTier,
    MemoryTier,
    SharedMemoryTier,
    TieredCache,
)
from voxelocity.data.cache.entry import Format
from voxelocity.testing.tier_contract import PersistentTierContract, TierContract, open_folder_tier


class TestMemoryTier(TierContract):
    def maker(self):
        return lambda folder: MemoryTier(2**30)


class TestSharedMemoryTier(TierContract):
    def maker(self):
        return lambda folder: SharedMemoryTier(folder / "cache", 2**30)


class TestMemoryFirstWithAllBehind(TierContract):
    def maker(self):
        return lambda folder: TieredCache(lambda: MemoryTier(0), lambda: DiskTier(folder), warn=lambda _: None)


OF_PROCESSES = (
    "test_two_processes_filling_one_cache_do_each_piece_of_work_once",
    "test_reader_never_sees_part_of_an_entry_and_a_killed_writer_leaves_none",
)


@pytest.mark.parametrize(("name", "format"), [(name, format) for name in FOLDER_TIERS for format in get_args(Format)])
class TestFolderTiers(PersistentTierContract):
    """Every tier of the table whose entries outlive a run, in each format."""

    @pytest.fixture(autouse=True)
    def _tier(self, request, name, format):
        self.name, self.format = name, format
        if format != "raw" and request.node.originalname in OF_PROCESSES and not is_thorough:
            pytest.skip("make test-all tries several processes in every format")

    def maker(self):
        return partial(open_folder_tier, self.name, self.format)

    def read_bytes(self, folder, key):
        with self.maker()(folder)._store.reading(key) as content:
            return bytes(content[:])

    def write_bytes(self, folder, key, content):
        self.maker()(folder)._store.write(key, [memoryview(content)])


def on_network(folder, format):
    tier = DiskTier(folder, format=format)
    tier._store._is_mapped = False
    return tier


class TestDiskTierRawOnNetwork(TierContract):
    def maker(self):
        return partial(on_network, format="raw")


class TestDiskTierBlosc2OnNetwork(TierContract):
    def maker(self):
        return partial(on_network, format="blosc2")
