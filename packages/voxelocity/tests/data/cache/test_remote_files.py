"""Entries on a server: found by every machine, brought here once, whatever the connection does."""

from functools import partial

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from shared.raising import raising
from voxelocity.data.cache import CacheConfig, DiskTier, disk_bytes_in, entry_key, open_cache, remote_files
from voxelocity.data.source.remote import open_mirror
from voxelocity.testing.tier_contract import KEY, PersistentTierContract, assert_same, example_volume
from voxelocity_observe.core.errors import CacheError, CacheFullError, ConfigError, InputError


@pytest.fixture(autouse=True)
def _empty_memory():
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


class TestRemote(PersistentTierContract):
    def maker(self):
        # Each process has a server of its own, and all have the folder.
        return partial(DiskTier, url="memory://contract")

    def read_bytes(self, folder, key):
        return (folder / f"{key}.safetensors").read_bytes()

    def write_bytes(self, folder, key, content):
        (folder / f"{key}.safetensors").write_bytes(content)


@pytest.fixture
def machines(tmp_path):
    """Makes the tier of another machine, which has the same server and nothing else in common."""
    server = tmp_path / "server"
    server.mkdir()
    numbers = iter(range(10))

    def make(**options):
        return DiskTier(tmp_path / f"machine{next(numbers)}", url=f"file://{server}", **options)

    make.server = server
    return make


def test_what_one_machine_has_put_another_finds_and_keeps(machines):
    machines().put(KEY, example_volume())
    other = machines()
    assert_same(other.get(KEY), example_volume())
    (machines.server / f"{KEY}.safetensors").unlink()
    assert_same(other.get(KEY), example_volume())
    assert machines().get(KEY) is None


def test_a_lost_connection_costs_waiting(machines, monkeypatch):
    machines().put(KEY, example_volume())
    waits = []
    tier = machines()
    files = tier._store
    files._sleep = waits.append
    fetch, faults = files._server.get_file, ["cut", "lost"]

    def faulty(remote, place):
        fault = faults.pop() if faults else ""
        if fault == "lost":
            raise TimeoutError("planted")
        fetch(remote, place)
        if fault == "cut":
            with open(place, "r+b") as file:
                file.truncate(100)

    monkeypatch.setattr(
        files,
        "_server",
        type("Faulty", (), {"get_file": faulty, "info": files._server.info, "invalidate_cache": lambda: None}),
    )
    with pytest.warns(
        UserWarning, match=r"cache: file://.*safetensors cannot be reached now \(TimeoutError: planted\)"
    ):
        assert_same(tier.get(KEY), example_volume())
    assert waits == [0.5, 1.0]
    assert sorted(path.name for path in (tier._folder).glob("*.tmp")) == []


def test_a_server_that_stays_away_is_waited_for_once_and_used_when_it_is_back(machines, monkeypatch):
    machines().put(KEY, example_volume())
    tier, waits = machines(), []
    server, tier._store._sleep = tier._store._server, waits.append
    lost = raising(TimeoutError("planted"))
    methods = {"info": lost, "put_file": lost, "invalidate_cache": lambda: None}
    with monkeypatch.context() as patched:
        patched.setattr(remote_files, "_MOST_TRYING_S", 3.0)
        patched.setattr(tier._store, "_server", type("Lost", (), methods))
        with pytest.warns(UserWarning, match="trying again"), pytest.raises(CacheError, match="could not be reached"):
            tier.get(KEY)
        assert waits == [0.5, 1.0]
        for _ in range(2):
            with pytest.raises(CacheError, match="could not be reached"):
                tier.get(KEY)
        with pytest.raises(CacheError, match=r"case 'case é 0' cannot be written .*could not be reached"):
            tier.put(KEY, example_volume())
        assert len(waits) == 2
    assert tier._store._server is server
    assert_same(tier.get(KEY), example_volume())


def test_an_entry_that_is_damaged_on_the_server_is_dropped_there(machines):
    machines().put(KEY, example_volume())
    path = machines.server / f"{KEY}.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    messages = []
    tier = machines(warn=messages.append)
    assert tier.get(KEY) is None
    assert "is damaged" in messages[0]
    assert not path.exists()


def test_what_is_brought_here_keeps_to_the_limit(machines):
    first = machines()
    keys = [entry_key(str(number), "") for number in range(3)]
    for number, key in enumerate(keys):
        first.put(key, example_volume(number))
    size = (machines.server / f"{keys[0]}.safetensors").stat().st_size
    small = machines(max_bytes=int(2.5 * size))
    for number, key in enumerate(keys[:2]):
        assert_same(small.get(key), example_volume(number))
    with pytest.raises(CacheFullError, match=r"raise data\.cache\.folder_max_bytes"):
        small.get(keys[2])
    # Nobody uses the first one any more.
    small._uses.withdraw(keys[0])
    assert_same(small.get(keys[2]), example_volume(2))
    assert disk_bytes_in(small._folder) == 2 * size
    assert {path.stem for path in machines.server.iterdir()} == set(keys), "all are on the server"


def test_the_configuration_takes_a_url(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    messages = []
    cache = open_cache(CacheConfig(tier="disk", folder="memory://scans/cache"), messages.append)
    volume = example_volume(shape=(1, 8, 8, 8))
    cache.put(KEY, volume)
    assert MemoryFileSystem().ls("/scans/cache", detail=False) == [f"/scans/cache/{KEY}.safetensors"]
    np.testing.assert_array_equal(cache.get(KEY).load().image, volume.image)
    assert messages == []


def test_what_cannot_be_a_cache_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(
        ConfigError,
        match=r"the one file of the lmdb tier cannot be on a server \(s3://a/b\); choose data.cache.tier disk",
    ):
        open_cache(CacheConfig(tier="lmdb", folder="s3://a/b"), print).get(KEY)
    with pytest.raises(InputError, match=r"nosuch://a/b cannot be opened .*voxelocity\[remote\]"):
        open_cache(CacheConfig(tier="disk", folder="nosuch://a/b"), print).get(KEY)
    with pytest.raises(InputError, match="holds a user name, password or token"):
        open_cache(CacheConfig(tier="disk", folder="https://me:secret@host/b"), print).get(KEY)


def test_a_cache_and_a_data_set_of_one_url_have_folders_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fsspec.filesystem("memory").open("memory://both/dataset.json", "w") as file:
        file.write("{}")
    cases = open_mirror("memory://both")
    cache = open_cache(CacheConfig(tier="disk", folder="memory://both"), print)
    cache.put(KEY, example_volume())
    entries = {path.parent for path in tmp_path.rglob(f"{KEY}*")}
    assert entries
    assert all(not folder.is_relative_to(cases) for folder in entries)
