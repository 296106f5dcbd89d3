import errno

import pytest

from shared.raising import raising
from voxelocity.data.cache import DiskTier, LmdbTier, contents, entry, entry_files, entry_key
from voxelocity.data.cache.contents import CacheContents
from voxelocity.testing.tier_contract import example_volume
from voxelocity_observe.core.errors import CacheError, ConfigError, OutputError

KEYS = [entry_key(name, "") for name in "abc"]
DENIED = PermissionError(errno.EACCES, "Permission denied")


@pytest.fixture
def folder(tmp_path):
    """Three entries: raw and Blosc2 on disk, one in an LMDB file; and files of somebody else's."""
    folder = tmp_path / "cache"
    DiskTier(folder, format="raw").put(KEYS[0], example_volume(0))
    DiskTier(folder, format="blosc2").put(KEYS[1], example_volume(1))
    LmdbTier(folder).put(KEYS[2], example_volume(2))
    (folder / "model.safetensors").write_bytes(b"weights of somebody")
    (folder / "notes.txt").write_text("keep me")
    return folder


def path_of(folder, index):
    return folder / f"{KEYS[index]}.safetensors"


def test_entries_of_every_tier_and_format_are_described(folder):
    found = {entry.key: entry for entry in CacheContents(folder).entries()}
    assert [(found[key].tier, found[key].format) for key in KEYS] == [
        ("disk", "raw"),
        ("disk", "blosc2"),
        ("lmdb", "raw"),
    ]
    for number, key in enumerate(KEYS):
        assert (found[key].case_id, found[key].shape) == (f"case é {number}", (2, 70, 41, 33))
        assert (found[key].dtype, found[key].state, found[key].problem) == ("int16", "whole", "")
        assert 0.0 <= found[key].age_s < 3600.0
    assert found[KEYS[0]].num_bytes == path_of(folder, 0).stat().st_size
    assert found[KEYS[0]].bytes_per_voxel == pytest.approx(5.0, abs=0.1)
    assert len(found) == 3


def test_age_is_counted_from_when_the_entry_was_made(folder, monkeypatch):
    now = entry.time.time()
    monkeypatch.setattr(contents.time, "time", lambda: now + 1000.0)
    assert all(1000.0 <= found.age_s < 1100.0 for found in CacheContents(folder).entries())


def test_damaged_and_outdated_entries_say_what_is_wrong(folder, monkeypatch):
    path_of(folder, 0).write_bytes(path_of(folder, 0).read_bytes()[:-9])
    content = bytearray(path_of(folder, 1).read_bytes())
    content[-200] ^= 1
    path_of(folder, 1).write_bytes(content)
    with monkeypatch.context() as patched:
        patched.setattr(entry, "FORMAT_VERSION", entry.FORMAT_VERSION - 1)
        LmdbTier(folder).put(KEYS[2], example_volume(2))

    def states(*, full):
        return {found.key: (found.state, found.problem) for found in CacheContents(folder).entries(full=full)}

    fast, full = states(full=False), states(full=True)
    assert fast[KEYS[0]][0] == full[KEYS[0]][0] == "damaged"
    assert fast[KEYS[1]][0] == "whole"
    assert full[KEYS[1]] == ("damaged", "its label has changed")
    assert full[KEYS[2]] == (
        "outdated",
        f"it has format version {entry.FORMAT_VERSION - 1}, not {entry.FORMAT_VERSION}",
    )


def test_only_the_named_entries_are_removed_and_no_other_file(folder):
    cache = CacheContents(folder)
    going = [entry for entry in cache.entries() if entry.key in KEYS[1:]]
    assert cache.remove(going) == sum(entry.num_bytes for entry in going)
    assert [entry.key for entry in cache.entries()] == [KEYS[0]]
    left = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "notes.txt", path_of(folder, 0).name} <= left


def test_entry_that_cannot_be_removed_is_named(folder, monkeypatch):
    cache = CacheContents(folder)
    monkeypatch.setattr(entry_files.EntryFiles, "drop", raising(DENIED))
    with pytest.raises(
        OutputError, match=rf"entry {KEYS[0]} in .* cannot be removed \(Permission denied\); make the folder writ"
    ):
        cache.remove([found for found in cache.entries() if found.key == KEYS[0]])


def test_entry_that_may_not_be_read_is_named(folder, monkeypatch):
    monkeypatch.setattr(entry_files, "map_file", raising(DENIED))
    with pytest.raises(CacheError, match=r"entry \w+ in .* cannot be read \(Permission denied\); make it readable"):
        list(CacheContents(folder).entries())


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(
        ConfigError, match=r"folder .*gone does not exist; the first run that keeps cases on disk creates it"
    ):
        CacheContents(tmp_path / "gone")


@pytest.mark.parametrize("content", ["nothing", "weights", "file"])
def test_folder_that_is_no_cache_is_refused(tmp_path, content):
    place = tmp_path / "place"
    if content == "file":
        place.touch()
    else:
        place.mkdir()
    if content == "weights":
        (place / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(
        ConfigError, match=r"place is not a cache of prepared cases; give the folder that data\.cache\.folder"
    ):
        CacheContents(place)


def test_looking_at_a_cache_writes_nothing_into_it(tmp_path):
    DiskTier(tmp_path).put(KEYS[0], example_volume())
    (tmp_path / ".half.1-a.tmp").touch()
    before = sorted(path.name for path in tmp_path.rglob("*"))
    list(CacheContents(tmp_path).entries(full=True))
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
