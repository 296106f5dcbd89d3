import pytest
import typer

from shared.refused import assert_refused
from voxelocity.data.cache import DiskTier, SharedMemoryTier, contents, disk_bytes_in, entry_key
from voxelocity.testing.tier_contract import example_volume
from voxelocity_observe.core import memory_folders
from voxelocity_observe.core.quantities import bytes_text

KEYS = [entry_key(name, "") for name in "ab"]


@pytest.fixture
def folder(tmp_path):
    tier = DiskTier(tmp_path / "cache")
    for number, key in enumerate(KEYS):
        tier.put(key, example_volume(number))
    (tmp_path / "cache" / "notes.txt").write_text("keep me")
    return tmp_path / "cache"


def size(folder):
    return bytes_text(disk_bytes_in(folder))


def damage(folder, index=0):
    path = folder / f"{KEYS[index]}.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


def test_ls_lists_each_entry_and_the_total(voxelocity, folder):
    told = voxelocity("cache", "ls", folder)
    head, first, second, total = told.out.splitlines()
    assert told.status == 0
    assert head.split("  ")[0] == "case"
    assert first.split("  ")[0] == "case é 0"
    assert "2 x 70 x 41 x 33    int16  disk raw  " in first
    assert " KiB  5.01  " in first
    assert second.startswith("case é 1")
    assert total == f"2 entries, {size(folder)} in {folder}"


def test_a_folder_gives_no_orders_to_the_terminal(voxelocity, tmp_path):
    folder = tmp_path / "esc\x1b]0;pwned\x07"
    folder.mkdir()
    assert "\x1b" not in voxelocity("cache", "clear", folder, "--yes").out


def test_ls_says_which_entries_are_unusable(voxelocity, folder):
    damage(folder)
    told = voxelocity("cache", "ls", folder)
    assert f"damaged: {KEYS[0]}" in told.out
    assert told.out.splitlines()[-1].startswith("2 entries (1 damaged), ")


def test_without_a_folder_the_one_of_the_plans_is_taken(voxelocity, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    DiskTier(tmp_path / "voxelocity").put(KEYS[0], example_volume())
    assert voxelocity("cache", "ls").out.endswith(
        f"1 entry, {size(tmp_path / 'voxelocity')} in {tmp_path / 'voxelocity'}\n"
    )


@pytest.mark.parametrize("command", ["ls", "verify", "clear"])
def test_folder_that_is_no_cache_ends_with_status_2(voxelocity, tmp_path, command):
    told = voxelocity("cache", command, tmp_path)
    assert told.status == 2
    assert told.err == (
        f"voxelocity: cache: {tmp_path} is not a cache of prepared cases; give the folder that data.cache.folder "
        "names\n"
    )


def test_verify_of_a_whole_cache_says_so(voxelocity, folder):
    told = voxelocity("cache", "verify", folder)
    assert told.status == 0
    assert told.out == (
        f"2 entries in {folder}, none damaged (checked: lengths, headers and foreground; --full verifies every voxel)\n"
    )


def test_verify_names_damaged_entries_and_ends_with_status_1(voxelocity, folder):
    damage(folder)
    told = voxelocity("cache", "verify", folder)
    assert told.status == 1
    assert told.out.startswith(f"damaged: entry {KEYS[0]}: an array at bytes ")
    assert told.out.endswith(
        f"1 of 2 entries in {folder} damaged: --remove removes them, and runs prepare them again\n"
    )
    assert len(DiskTier(folder).keys()) == 2


def test_only_a_full_verify_finds_a_changed_voxel(voxelocity, folder):
    path = folder / f"{KEYS[1]}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert voxelocity("cache", "verify", folder).status == 0
    told = voxelocity("cache", "verify", folder, "--full")
    assert told.status == 1
    assert f"damaged: case 'case é 1', entry {KEYS[1]}: its label has changed" in told.out


def test_verify_removes_the_damaged_ones_where_told(voxelocity, folder):
    damage(folder)
    told = voxelocity("cache", "verify", folder, "--remove")
    assert told.status == 1
    assert told.out.endswith("damaged: removed; runs prepare them again\n")
    assert DiskTier(folder).keys() == [KEYS[1]]


def test_clear_removes_the_entries_and_nothing_else(voxelocity, folder):
    freed = size(folder)
    told = voxelocity("cache", "clear", folder, "--yes")
    assert (told.status, told.out) == (0, f"removed 2 entries, freed {freed}\n")
    assert DiskTier(folder).keys() == []
    assert (folder / "notes.txt").read_text() == "keep me"
    assert voxelocity("cache", "clear", folder).out == f"nothing to remove in {folder}\n"


@pytest.mark.parametrize(("answer", "status", "num_left"), [(True, 0, 0), (False, 1, 2)])
def test_clear_asks_first(voxelocity, folder, monkeypatch, answer, status, num_left):
    asked, freed = [], size(folder)
    monkeypatch.setattr(typer, "confirm", lambda question: asked.append(question) or answer)
    monkeypatch.setattr("voxelocity.cli.cache.sys.stdin.isatty", lambda: True, raising=False)
    assert voxelocity("cache", "clear", folder).status == status
    assert asked == [f"Remove 2 entries, {freed}, from {folder}?"]
    assert len(DiskTier(folder).keys()) == num_left


def test_clear_without_anybody_to_ask_removes_nothing(voxelocity, folder):
    told = voxelocity("cache", "clear", folder)
    assert told.status == 2
    assert told.err == "voxelocity: cache clear: cannot ask whether to remove entries without a terminal; add --yes\n"
    assert len(DiskTier(folder).keys()) == 2


def test_clear_of_old_entries_leaves_the_young(voxelocity, folder, monkeypatch):
    assert voxelocity("cache", "clear", folder, "--older-than", "7d", "--yes").out.startswith("nothing to remove")
    now = contents.time.time()
    monkeypatch.setattr(contents.time, "time", lambda: now + 8 * 86_400.0)
    assert voxelocity("cache", "clear", folder, "--older-than", "7d", "--yes").out.startswith("removed 2 entries")


def test_age_that_is_none_is_refused(voxelocity, folder):
    told = voxelocity("cache", "clear", folder, "--older-than", "old", "--yes")
    assert_refused(told, "'old' is not a duration; write it like 90s, 5m or 1h30m")
    assert len(DiskTier(folder).keys()) == 2


@pytest.fixture
def memory_folder(tmp_path, monkeypatch):
    """What a killed run left, and nothing else, in the places that are looked at."""
    monkeypatch.setattr(memory_folders, "memory_places", lambda: (tmp_path, tmp_path / "none"))
    folder = memory_folders.memory_folder_in(tmp_path)
    folder.mkdir(mode=0o700)
    (folder / ".users").touch(0o600)
    (folder / "a.safetensors").write_bytes(bytes(2**20))
    return folder


def test_what_a_killed_run_left_in_memory_is_listed_and_cleared(voxelocity, memory_folder):
    told = voxelocity("cache", "ls", "--memory")
    assert told.status == 0
    assert f"{memory_folder}  1.00 MiB  left by a killed process" in told.out
    assert "cannot ask" in voxelocity("cache", "clear", "--memory").err
    assert f"removed {memory_folder}, freed 1.00 MiB" in voxelocity("cache", "clear", "--memory", "--yes").out
    assert not memory_folder.exists()
    assert "no killed run left any" in voxelocity("cache", "ls", "--memory").out
    assert voxelocity("cache", "clear", "--memory", "--yes").out == "nothing to remove in memory\n"


def test_memory_that_a_run_uses_stays(voxelocity, memory_folder):
    tier = SharedMemoryTier(memory_folder, 2**20)
    tier.put(KEYS[0], example_volume())
    assert "in use" in voxelocity("cache", "ls", "--memory").out
    assert "is in use: its memory is freed" in voxelocity("cache", "clear", "--memory", "--yes").out
    assert tier.get(KEYS[0]) is not None
    tier.close()


def test_memory_and_a_folder_together_are_refused(voxelocity, folder):
    assert_refused(voxelocity("cache", "clear", folder, "--memory", "--yes"), "--memory cannot be combined")
    assert len(DiskTier(folder).keys()) == 2


def test_an_lmdb_file_that_was_cut_short_is_named_and_cleared(voxelocity, tmp_path):
    (tmp_path / "cache" / "locks").mkdir(parents=True)
    (tmp_path / "cache" / "entries.lmdb").write_bytes(b"no" * 5000)
    assert "1 entry (1 damaged)" in voxelocity("cache", "ls", tmp_path / "cache").out
    assert voxelocity("cache", "verify", tmp_path / "cache").status == 1
    assert voxelocity("cache", "clear", tmp_path / "cache", "--yes").status == 0
    assert not (tmp_path / "cache" / "entries.lmdb").exists()
