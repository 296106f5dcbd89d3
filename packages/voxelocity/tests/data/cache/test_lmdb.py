import errno
import multiprocessing
import os
import shutil
import sys
from pathlib import Path

import lmdb
import pytest

from shared.forked import run_python
from shared.limits import HANGS_S
from shared.raising import raising
from voxelocity.data.cache import LmdbTier, lmdb_file, open_lmdb_file
from voxelocity.data.cache.contents import CacheContents
from voxelocity.testing.tier_contract import KEY, assert_same, example_volume
from voxelocity_observe.core.errors import CacheError, CacheFullError, EntryTooLargeError


@pytest.fixture(scope="module")
def filled_elsewhere(tmp_path_factory):
    code = (
        "import sys; from pathlib import Path; from voxelocity.data.cache import LmdbTier; "
        "from voxelocity.testing.tier_contract import KEY, example_volume; "
        "LmdbTier(Path(sys.argv[1])).put(KEY, example_volume())"
    )
    folder = tmp_path_factory.mktemp("elsewhere")
    run_python(code, [folder]).check_returncode()
    return folder / "entries.lmdb"


@pytest.fixture
def put_elsewhere(tmp_path, filled_elsewhere):
    """The path of the file of a folder into which another process has put one entry."""
    return Path(shutil.copy(filled_elsewhere, tmp_path))


class Failing:
    """An LMDB environment whose transactions end with this error, or only those that write."""

    def __init__(self, environment, error, *, reads_too=False):
        self._environment, self._error, self._reads_too = environment, error, reads_too

    def __getattr__(self, name):
        return getattr(self._environment, name)

    def begin(self, **options):
        if self._reads_too or options["write"]:
            raise self._error
        return self._environment.begin(**options)


def test_two_tiers_on_one_folder_share_the_one_environment_that_a_process_may_have(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    first, second = LmdbTier(tmp_path), LmdbTier(tmp_path / "link", format="blosc2")
    first.put("a", example_volume(1))
    second.put("b", example_volume(2))
    assert_same(second.get("a"), example_volume(1))
    assert_same(first.get("b"), example_volume(2))


def test_removed_entry_in_use_is_a_clear_error(tmp_path):
    tier = LmdbTier(tmp_path)
    tier.put(KEY, example_volume())
    got = tier.get(KEY)
    tier.drop(KEY)
    with pytest.raises(
        CacheError,
        match=rf"entry {KEY} of .* was removed while it was in use; it is prepared again when the case is used",
    ):
        got.load()


def test_entry_put_again_in_the_other_format_is_read_by_who_has_it_in_use(tmp_path):
    LmdbTier(tmp_path).put(KEY, example_volume())
    got = LmdbTier(tmp_path).get(KEY)
    LmdbTier(tmp_path, format="blosc2").put(KEY, example_volume())
    assert_same(got, example_volume())


@pytest.mark.parametrize(
    ("error", "free_bytes"),
    [
        (lmdb.DiskError("No space left on device"), None),
        (lmdb.Error("Disk quota exceeded"), None),
        (lmdb.Error("File too large"), None),
        # What is left of a write that found no room.
        (lmdb.Error("mdb_txn_commit: Input/output error"), 1000),
    ],
)
def test_full_disk_is_a_clear_error_and_leaves_nothing_behind(tmp_path, monkeypatch, error, free_bytes):
    tier, usage = LmdbTier(tmp_path), shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(tier._store, "_environment", Failing(tier._store._environment, error))
        if free_bytes is not None:
            patched.setattr(lmdb_file.shutil, "disk_usage", lambda _: usage._replace(free=free_bytes))
        with pytest.raises(CacheFullError, match=r"no space in .*entries\.lmdb: it needs 0\.5 MB, .* MB are free"):
            tier.put(KEY, example_volume())
    assert tier.get(KEY) is None
    tier.put(KEY, example_volume())
    assert_same(tier.get(KEY), example_volume())


def test_other_errors_of_a_write_are_cache_errors(tmp_path, monkeypatch):
    tier = LmdbTier(tmp_path)
    refusing = Failing(tier._store._environment, lmdb.Error("Input/output error"), reads_too=True)
    monkeypatch.setattr(tier._store, "_environment", refusing)
    with pytest.raises(CacheError, match=r"entries\.lmdb cannot be written \(Input/output error\); set data") as caught:
        tier.put(KEY, example_volume())
    assert not isinstance(caught.value, CacheFullError)
    with pytest.raises(CacheError, match=r"entries\.lmdb cannot be read \(Input/output error\)"):
        tier.get(KEY)


def test_thousands_of_entries_leave_a_few_hundred_files(tmp_path):
    tier = LmdbTier(tmp_path)
    for number in range(1000):
        with tier.lock(f"{number:040x}"):
            pass
    tier.put(KEY, example_volume())
    tier.drop(KEY)
    names = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert {"entries.lmdb", "entries.lmdb-lock"} < set(names)
    assert len(names) <= 2 + 256


def test_volume_above_the_limit_of_a_value_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_file, "MAX_VALUE_BYTES", 1000)
    with pytest.raises(
        EntryTooLargeError, match=r"case 'case é 0' takes 0\.5 MB, LMDB keeps at most .*data\.cache\.tier disk"
    ):
        LmdbTier(tmp_path).put(KEY, example_volume())


def test_missing_package_is_named_with_its_cure(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(CacheError, match=r'lmdb is not installed; pip install "voxelocity\[lmdb\]", or set data\.cach'):
        LmdbTier(tmp_path)


@pytest.mark.parametrize("damage", ["cut to its first page", "cut", "foreign", "of a few bytes"])
def test_file_that_is_damaged_as_a_whole_is_removed_and_made_again_and_that_is_said(tmp_path, put_elsewhere, damage):
    path = put_elsewhere
    lmdb_file.check_lmdb_file(path)
    if damage.startswith("cut"):
        os.truncate(path, 4096 if damage == "cut to its first page" else path.stat().st_size - 4096)
    else:
        path.write_bytes(b"no" * (5000 if damage == "foreign" else 3))
    (entry,) = CacheContents(tmp_path).entries()
    assert (entry.state, entry.key) == ("damaged", "entries.lmdb")
    assert str(path) in entry.problem
    messages = []
    tier = LmdbTier(tmp_path, warn=messages.append)
    assert tier.keys() == []
    tier.put(KEY, example_volume())
    assert_same(tier.get(KEY), example_volume())
    (text,) = messages
    assert str(path) in text
    assert "its cases are prepared again" in text


def test_file_that_is_damaged_as_a_whole_can_be_cleared(tmp_path):
    with LmdbTier(tmp_path).lock("a"):
        pass
    os.truncate(tmp_path / "entries.lmdb", 5000)
    contents = CacheContents(tmp_path)
    contents.remove(list(contents.entries()))
    assert not list(tmp_path.glob("entries.lmdb*"))


def test_file_that_this_user_may_only_read_is_read_and_takes_nothing(tmp_path, put_elsewhere, monkeypatch):
    access = os.access
    monkeypatch.setattr(lmdb_file.os, "access", lambda path, how: how != os.W_OK and access(path, how))
    # As it came with a copy; a file system that is mounted to be read changes nothing.
    put_elsewhere.chmod(0o644)
    monkeypatch.setattr(Path, "chmod", raising(OSError(errno.EROFS, "Read-only file system")))
    before = put_elsewhere.read_bytes()
    tier = LmdbTier(tmp_path)
    assert not tier._store.is_writable
    assert_same(tier.get(KEY), example_volume())
    with pytest.raises(CacheError, match=r"entries\.lmdb is read-only; make it writable"):
        tier.put("other", example_volume())
    with pytest.raises(CacheError, match="is read-only"):
        tier.drop(KEY)
    assert put_elsewhere.read_bytes() == before


def test_file_is_for_the_user_alone_also_where_an_older_version_made_it(tmp_path):
    path = tmp_path / "entries.lmdb"
    LmdbTier(tmp_path).put(KEY, example_volume())
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    LmdbTier(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_use_after_a_fork_is_refused_because_lmdb_forbids_it(tmp_path, monkeypatch):
    tier = LmdbTier(tmp_path)
    tier.put(KEY, example_volume())
    monkeypatch.setattr(lmdb_file.os, "getpid", lambda: -1)
    with pytest.raises(CacheError, match=r"opened before this process was forked.*start processes by 'spawn'"):
        tier.get(KEY)


def test_a_forked_process_opens_the_file_that_its_parent_has_open(tmp_path):
    path = tmp_path.resolve() / "values.lmdb"
    file = open_lmdb_file(path, map_size=2**20)
    file.write("a", [memoryview(b"one")])

    def child(connection):
        own = open_lmdb_file(path)
        own.write("b", [memoryview(b"two")])
        with own.reading("a") as value:
            connection.send(bytes(value))

    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(sender,))
    process.start()
    assert receiver.poll(60)
    assert receiver.recv() == b"one"
    process.join(HANGS_S)
    assert process.exitcode == 0
    assert file.keys() == ["a", "b"]


def test_the_map_is_as_large_as_the_disk_where_addresses_are_not_limited(tmp_path, monkeypatch):
    path, usage = tmp_path.resolve() / "values.lmdb", shutil.disk_usage(tmp_path)
    file = open_lmdb_file(path)
    assert usage.total - 2**16 < file.info()["map_size"] <= usage.total
    del file
    open_with, limit = lmdb.open, 2**30

    def refuse(path, *, map_size, **options):
        if map_size > limit:
            raise lmdb.MemoryError("Cannot allocate memory")
        return open_with(path, map_size=2**20, **options)

    monkeypatch.setattr(lmdb, "open", refuse)
    file = open_lmdb_file(path)
    with pytest.raises(CacheFullError, match=r"no space in .*values\.lmdb: .* raise the limit on addresses \(ulimit"):
        file.write("large", [memoryview(bytes(2**21))])
    file.write("small", [memoryview(b"1")])
    assert file.keys() == ["small"]
