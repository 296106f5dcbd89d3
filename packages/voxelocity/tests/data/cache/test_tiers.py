"""The contract of every tier, and what a tier alone must do in addition."""

from functools import partial

from voxelocity.data.cache import DiskTier, LmdbTier, MemoryTier, SharedMemoryTier, TieredCache
from voxelocity.testing.tier_contract import PersistentTierContract, TierContract


class TestMemoryTier(TierContract):
    def maker(self):
        return lambda folder: MemoryTier(2**30)


class TestSharedMemoryTier(TierContract):
    def maker(self):
        return lambda folder: SharedMemoryTier(folder / "cache", 2**30)


class TestMemoryFirstWithAllBehind(TierContract):
    def maker(self):
        return lambda folder: TieredCache(lambda: MemoryTier(0), lambda: DiskTier(folder), warn=lambda _: None)


class _OfFiles(PersistentTierContract):
    def read_bytes(self, folder, key):
        return (folder / f"{key}.safetensors").read_bytes()

    def write_bytes(self, folder, key, content):
        (folder / f"{key}.safetensors").write_bytes(content)


class TestDiskTierRaw(_OfFiles):
    def maker(self):
        return partial(DiskTier, format="raw")


class TestDiskTierBlosc2(_OfFiles):
    def maker(self):
        return partial(DiskTier, format="blosc2")


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


class _OfLmdb(PersistentTierContract):
    def read_bytes(self, folder, key):
        with LmdbTier(folder)._store.reading(key) as content:
            return bytes(content)

    def write_bytes(self, folder, key, content):
        LmdbTier(folder)._store.write(key, [memoryview(content)])


class TestLmdbTierRaw(_OfLmdb):
    def maker(self):
        return partial(LmdbTier, format="raw")


class TestLmdbTierBlosc2(_OfLmdb):
    def maker(self):
        return partial(LmdbTier, format="blosc2")
