"""Tests that every tier of prepared volumes must pass (`core.contracts.Tier`). Subclass in a test, say how to make one.

class TestDisk(PersistentTierContract):
    def maker(self):
        return DiskTier
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from voxelocity.core.contracts import StoredVolume, Tier
from voxelocity.core.region import Region
from voxelocity.core.volume import Grid, Scaling, Volume
from voxelocity.data.cache import TIERS, CacheConfig, TierName
from voxelocity.data.cache.entry import Format

KEY = "0123abcd"
_DTYPES = ("int16", "float16", "float32", "uint8", "uint16", "int32", "bool")
_NUM_FILLED = 8


def example_volume(seed: int = 0, *, dtype: str = "int16", shape: tuple[int, ...] = (2, 70, 41, 33)) -> Volume:
    """A volume that uses every field, is larger than one chunk, and has voxels that depend on the seed."""
    rng = np.random.default_rng(seed)
    return Volume(
        case_id=f"case é {seed}",
        image=rng.integers(0, 1000, shape).astype(dtype),
        label=rng.integers(0, 4, shape[1:]).astype(np.uint8),
        grid=Grid.of(shape, np.diag([1.1, 0.7, 2.5, 1.0]) + 1e-17),
        scaling=tuple(Scaling(slope=0.1 + channel, inter=-3.7) for channel in range(shape[0])),
        trace=({"name": "resample", "spacing_mm": [0.1, 0.2, 0.3]}, {"name": "crop", "keep": None}),
        foreground={1: np.array([3, 5], np.int32), 3: np.array([], np.int32)},
    )


def assert_same(got: StoredVolume | None, wanted: Volume) -> None:
    """Asserts that both hold the same, bit for bit."""
    assert got is not None
    assert (got.case_id, got.grid, got.scaling, got.spec) == (
        wanted.case_id,
        wanted.grid,
        wanted.scaling,
        wanted.spec,
    )
    loaded = got.load()
    assert (loaded.case_id, loaded.grid, loaded.scaling) == (wanted.case_id, wanted.grid, wanted.scaling)
    assert loaded.trace == wanted.trace
    assert loaded.image.dtype == wanted.image.dtype
    assert loaded.image.tobytes() == wanted.image.tobytes()
    assert (loaded.label is None) == (wanted.label is None)
    if loaded.label is not None and wanted.label is not None:
        assert loaded.label.dtype == wanted.label.dtype
        np.testing.assert_array_equal(loaded.label, wanted.label)
    for foreground in (got.foreground, loaded.foreground):
        assert set(foreground) == set(wanted.foreground)
        for index, places in wanted.foreground.items():
            assert foreground[index].dtype == places.dtype
            np.testing.assert_array_equal(foreground[index], places)


class TierContract:
    """Tests of any tier."""

    def maker(self) -> Callable[[Path], Tier]:
        """A function that opens a tier on a folder; a tier without files leaves the folder alone."""
        raise NotImplementedError

    def test_returns_what_was_put_with_everything_that_belongs_to_it(self, tmp_path: Path) -> None:
        tier = self.maker()(tmp_path)
        assert isinstance(tier, Tier)
        tier.put(KEY, example_volume())
        got = tier.get(KEY)
        assert isinstance(got, StoredVolume)
        assert_same(got, example_volume())

    def test_volume_without_label_or_foreground_comes_back_without(self, tmp_path: Path) -> None:
        tier = self.maker()(tmp_path)
        bare = example_volume().with_(label=None, foreground={}, scaling=())
        tier.put(KEY, bare)
        assert_same(tier.get(KEY), bare)
        got = tier.get(KEY)
        assert got is not None
        assert got.read(Region((0, 0, 0), (5, 5, 5)))[1] is None

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(data=st.data())
    def test_a_box_read_equals_the_slice_whatever_dtype_shape_and_memory_order(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        tier = self.maker()(tmp_path_factory.mktemp("cache"))
        shape = tuple(data.draw(st.integers(1, most)) for most in (3, 90, 70, 40))
        volume = example_volume(dtype=data.draw(st.sampled_from(_DTYPES)), shape=shape)
        axes = data.draw(st.permutations(range(4)))
        in_other_order = np.ascontiguousarray(volume.image.transpose(axes)).transpose(np.argsort(axes))
        tier.put(KEY, volume.with_(image=in_other_order, label=np.asfortranarray(volume.label)))
        got = tier.get(KEY)
        assert got is not None
        ends = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in shape[1:]]
        region = Region(*zip(*ends, strict=True))
        image, label = got.read(region)
        assert image.dtype == volume.image.dtype
        np.testing.assert_array_equal(image, volume.image[(slice(None), *region.slices)])
        assert label is not None
        assert volume.label is not None
        np.testing.assert_array_equal(label, volume.label[region.slices])

    def test_what_was_read_cannot_change_the_entry(self, tmp_path: Path) -> None:
        tier = self.maker()(tmp_path)
        tier.put(KEY, example_volume())
        got = tier.get(KEY)
        assert got is not None
        image, label = got.read(Region.whole(got.grid.shape))
        assert label is not None
        for array in (image, label, got.foreground[1]):
            if array.flags.writeable:
                array[...] = 0
        with pytest.raises(ValueError, match="read-only"):
            got.foreground[1][0] = 7
        assert_same(tier.get(KEY), example_volume())

    def test_missing_key_gives_none(self, tmp_path: Path) -> None:
        tier = self.maker()(tmp_path)
        tier.put(KEY, example_volume())
        assert tier.get("other") is None

    def test_same_voxels_under_another_case_id(self, tmp_path: Path) -> None:
        tier = self.maker()(tmp_path)
        tier.put(KEY, example_volume())
        got = tier.get(KEY)
        assert got is not None
        assert_same(got.renamed("b"), example_volume().renamed("b"))
        assert got.case_id == "case é 0"

    def test_volume_in_use_can_be_read_when_its_key_is_put_again(self, tmp_path: Path) -> None:
        tier = self.maker()(tmp_path)
        tier.put(KEY, example_volume())
        got = tier.get(KEY)
        tier.put(KEY, example_volume())
        assert_same(got, example_volume())

    def test_putting_a_key_again_replaces_the_entry(self, tmp_path: Path) -> None:
        tier = self.maker()(tmp_path)
        tier.put(KEY, example_volume(1))
        tier.put(KEY, example_volume(2))
        assert_same(tier.get(KEY), example_volume(2))

    def test_ct_with_label_takes_at_most_three_and_a_half_bytes_a_voxel(self, tmp_path: Path) -> None:
        tier = self.maker()(tmp_path)
        shape = (1, 64, 64, 64)
        noise = np.random.default_rng(0).integers(-(2**15), 2**15, shape).astype(np.int16)
        places = {index: np.arange(64**3 // 20, dtype=np.int32) for index in (1, 2)}
        tier.put(KEY, example_volume(shape=shape).with_(image=noise, foreground=places))
        kept = tier.get(KEY)
        assert kept is not None
        assert kept.num_bytes <= 3.5 * 64**3

    def test_threads_read_one_volume_at_once(self, tmp_path: Path) -> None:
        tier = self.maker()(tmp_path)
        wanted = example_volume()
        tier.put(KEY, wanted)
        got = tier.get(KEY)
        assert got is not None
        start = threading.Barrier(4)

        def read(seed: int) -> int:
            rng, num_equal = np.random.default_rng(seed), 0
            start.wait()
            for _ in range(25):
                low = [int(rng.integers(0, n)) for n in wanted.grid.shape]
                high = [int(rng.integers(a + 1, n + 1)) for a, n in zip(low, wanted.grid.shape, strict=True)]
                region = Region((low[0], low[1], low[2]), (high[0], high[1], high[2]))
                num_equal += np.array_equal(got.read(region)[0], wanted.read(region)[0])
            return num_equal

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(read, range(4))) == [25] * 4

    def test_threads_that_put_and_get_at_once_see_whole_entries(self, tmp_path: Path) -> None:
        tier = self.maker()(tmp_path)
        wanted = [example_volume(seed, shape=(1, 20, 30, 10)) for seed in range(6)]

        def work(first: int) -> None:
            for index in range(first, first + 12):
                key, volume = f"case{index % 6}", wanted[index % 6]
                found = tier.get(key)
                if found is None:
                    tier.put(key, volume)
                else:
                    assert_same(found, volume)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        for index, volume in enumerate(wanted):
            assert_same(tier.get(f"case{index}"), volume)

    def test_lock_lets_one_thread_in_and_leaves_other_keys_free(self, tmp_path: Path) -> None:
        tier = self.maker()(tmp_path)
        inside: list[int] = []
        most: list[int] = []

        def work(number: int) -> None:
            with tier.lock("a"):
                inside.append(1)
                most.append(len(inside))
                with tier.lock(f"b{number}"):
                    inside.pop()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert most == [1, 1, 1, 1]


class PersistentTierContract(TierContract):
    """Tests of a tier whose entries outlive the process and are shared by processes.

    It also has `keys` and `drop`. What `maker` returns must survive pickling. `read_bytes` and `write_bytes`
    read and corrupt an entry without going through the tier.
    """

    def read_bytes(self, folder: Path, key: str) -> bytes:
        """The stored bytes of the entry."""
        raise NotImplementedError

    def write_bytes(self, folder: Path, key: str, content: bytes) -> None:
        """Replaces them."""
        raise NotImplementedError

    def test_entries_are_there_when_the_tier_is_opened_again(self, tmp_path: Path) -> None:
        self.maker()(tmp_path / "new" / "cache").put(KEY, example_volume())
        assert_same(self.maker()(tmp_path / "new" / "cache").get(KEY), example_volume())

    @pytest.mark.parametrize("length", [0, 5, 100, 900, -1])
    def test_truncated_entry_is_dropped_and_can_be_made_again(self, tmp_path: Path, length: int) -> None:
        tier: Any = self.maker()(tmp_path)
        tier.put(KEY, example_volume())
        self.write_bytes(tmp_path, KEY, self.read_bytes(tmp_path, KEY)[:length])
        assert tier.get(KEY) is None
        assert list(tier.keys()) == []
        tier.put(KEY, example_volume())
        assert_same(tier.get(KEY), example_volume())

    def test_every_changed_byte_of_the_header_is_found(self, tmp_path: Path) -> None:
        tier = self.maker()(tmp_path)
        tier.put(KEY, example_volume())
        content = self.read_bytes(tmp_path, KEY)
        for position in range(0, 8 + content[8:].index(b"}}") + 2, 17):
            mangled = bytearray(content)
            mangled[position] ^= 0x04
            self.write_bytes(tmp_path, KEY, bytes(mangled))
            assert tier.get(KEY) is None, position

    def test_entry_under_the_name_of_another_is_not_served(self, tmp_path: Path) -> None:
        tier = self.maker()(tmp_path)
        tier.put(KEY, example_volume())
        self.write_bytes(tmp_path, "other", self.read_bytes(tmp_path, KEY))
        assert tier.get("other") is None

    def test_dropped_entry_is_gone(self, tmp_path: Path) -> None:
        tier: Any = self.maker()(tmp_path)
        tier.put(KEY, example_volume())
        tier.drop(KEY)
        tier.drop(KEY)
        assert tier.get(KEY) is None
        assert tier.keys() == []

    def test_box_that_was_read_stays_valid_when_the_entry_is_dropped(self, tmp_path: Path) -> None:
        tier: Any = self.maker()(tmp_path)
        tier.put(KEY, example_volume())
        region = Region((3, 4, 5), (60, 20, 30))
        got = tier.get(KEY)
        image, label = got.read(region)
        tier.drop(KEY)
        np.testing.assert_array_equal(image, example_volume().read(region)[0])
        np.testing.assert_array_equal(label, example_volume().read(region)[1])

    @pytest.mark.parametrize("key", ["", "../up", "a/b", "a.b"])
    def test_key_that_could_leave_the_folder_is_refused(self, tmp_path: Path, key: str) -> None:
        tier = self.maker()(tmp_path)
        with pytest.raises(ValueError, match="cannot name a file"):
            tier.get(key)
        with pytest.raises(ValueError, match="cannot name a file"):
            tier.put(key, example_volume())

    def test_two_processes_filling_one_cache_do_each_piece_of_work_once(self, tmp_path: Path) -> None:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            other = pool.starmap_async(_fill, [(self.maker(), tmp_path)])
            made = _fill(self.maker(), tmp_path)
            made += other.get()[0]
            pool.close()
            pool.join()
        assert sorted(made) == sorted(f"case{number}" for number in range(_NUM_FILLED))
        tier: Any = self.maker()(tmp_path)
        for number in range(_NUM_FILLED):
            assert_same(tier.get(f"case{number}"), example_volume(number))

    def test_reader_never_sees_part_of_an_entry_and_a_killed_writer_leaves_none(self, tmp_path: Path) -> None:
        tier: Any = self.maker()(tmp_path)
        writer = multiprocessing.get_context("spawn").Process(target=_write_forever, args=(self.maker(), tmp_path))
        writer.start()
        try:
            while len(tier.keys()) < 3:
                assert writer.is_alive(), "the writer ended by itself"
            for _ in range(10):
                seen = tier.keys()
                for key in seen:
                    assert_same(tier.get(key), _numbered(int(key)))
        finally:
            writer.kill()
            writer.join()
        again: Any = self.maker()(tmp_path)
        whole = again.keys()
        for key in whole:
            assert_same(again.get(key), _numbered(int(key)))
        again.put("0", example_volume())
        assert_same(again.get("0"), example_volume())


def open_folder_tier(name: TierName, format: Format, folder: Path) -> Any:
    """The tier of the table in this folder; a function that other processes can import."""
    open_tier = TIERS[name].open
    assert open_tier is not None, f"the {name} tier has no folder"
    return open_tier(folder, "", CacheConfig(tier=name, folder=str(folder), format=format), lambda _: None)


def _numbered(number: int) -> Volume:
    return example_volume(number, shape=(1, 100, 50, 40))


def _fill(make: Callable[[Path], Tier], folder: Path) -> list[str]:
    """Makes what is missing; returns the keys it made."""
    tier, made = make(folder), []
    for number in range(_NUM_FILLED):
        key = f"case{number}"
        with tier.lock(key):
            if tier.get(key) is None:
                made.append(key)
                tier.put(key, example_volume(number))
        assert_same(tier.get(key), example_volume(number))
    return made


def _write_forever(make: Callable[[Path], Tier], folder: Path) -> None:
    tier = make(folder)
    number = 0
    while True:
        tier.put(str(number % 20), _numbered(number % 20))
        number += 1
