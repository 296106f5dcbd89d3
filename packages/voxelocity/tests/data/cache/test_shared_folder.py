import os
from pathlib import Path

import pytest

from voxelocity.data.cache import shared_folder
from voxelocity.data.cache.shared_folder import SharedFolder, memory_folder, shared_free_bytes
from voxelocity_observe.core.memory_folders import memory_folder_in, memory_places


def mounts(tmp_path, **kinds):
    """A table of mounts: one folder below tmp_path for each name, of this kind."""
    lines = ["/dev/vda / ext4 rw 0 0"]
    for name, kind in kinds.items():
        (tmp_path / name).mkdir()
        lines.append(f"x {tmp_path / name} {kind} rw 0 0")
    table = tmp_path / "mounts"
    table.write_text("\n".join(lines))
    return table


def look(tmp_path, table, *names, min_free_bytes=1):
    return memory_folder(min_free_bytes=min_free_bytes, candidates=[tmp_path / name for name in names], mounts=table)


def test_first_file_system_in_memory_with_enough_room_is_taken(tmp_path):
    table = mounts(tmp_path, disk="ext4", memory="tmpfs", later="tmpfs")
    place, _ = look(tmp_path, table, "missing", "disk", "memory", "later")
    assert place == tmp_path / "memory"


def test_reasons_name_each_place_and_what_is_wrong_with_it(tmp_path, monkeypatch):
    table = mounts(tmp_path, disk="ext4", small="tmpfs")
    monkeypatch.setattr(shared_folder, "free_bytes_in", lambda _: 64 * 10**6)
    place, reason = look(tmp_path, table, "missing", "disk", "small", min_free_bytes=10**9)
    assert place is None
    assert reason == (
        f"{tmp_path}/missing is missing; {tmp_path}/disk is not in memory; "
        f"{tmp_path}/small has 64 MB of the 1000 MB budget free"
    )


def test_room_is_the_largest_budget_that_finds_a_place(tmp_path, monkeypatch):
    table = mounts(tmp_path, disk="ext4", small="tmpfs", large="tmpfs")
    free = {"small": 1000, "large": 5000, "disk": 10**9}
    monkeypatch.setattr(shared_folder, "free_bytes_in", lambda place: free[place.name])
    names = ["missing", "disk", "small", "large"]
    room = shared_free_bytes(candidates=[tmp_path / name for name in names], mounts=table)
    assert room == 5000
    assert look(tmp_path, table, *names, min_free_bytes=room)[0] == tmp_path / "large"
    assert look(tmp_path, table, *names, min_free_bytes=room + 1)[0] is None
    assert shared_free_bytes(candidates=[tmp_path / "disk"], mounts=table) == 0


def test_place_that_cannot_be_written_is_passed_over(tmp_path, monkeypatch):
    table = mounts(tmp_path, memory="tmpfs")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert look(tmp_path, table, "memory") == (None, f"{tmp_path}/memory cannot be written")


def test_what_the_cache_itself_holds_counts_as_free(tmp_path, monkeypatch):
    table = mounts(tmp_path, memory="tmpfs")
    monkeypatch.setattr(shared_folder, "free_bytes_in", lambda _: 1000)
    assert look(tmp_path, table, "memory", min_free_bytes=50_000)[0] is None
    held = memory_folder_in(tmp_path / "memory")
    held.mkdir()
    (held / "entry").write_bytes(b"x" * 60_000)
    assert look(tmp_path, table, "memory", min_free_bytes=50_000)[0] == tmp_path / "memory"


def test_without_a_table_of_mounts_nothing_is_taken_for_memory(tmp_path):
    assert look(tmp_path, tmp_path / "none", ".")[0] is None


def test_folder_is_for_this_person_alone(tmp_path):
    folder = SharedFolder(memory_folder_in(tmp_path))
    assert folder.path.name == f"voxelocity-{os.getuid()}"
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert Path("/dev/shm") in memory_places()


def test_folder_that_others_may_write_or_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("open", "link"):
        with pytest.raises(PermissionError, match="belongs to another user, or others may write in it"):
            SharedFolder(tmp_path / name)


def test_first_user_finds_the_folder_empty_and_the_second_what_the_first_put(tmp_path):
    (tmp_path / "f").mkdir(mode=0o700)
    (tmp_path / "f" / "left behind").touch()
    first = SharedFolder(tmp_path / "f")
    assert not (tmp_path / "f" / "left behind").exists()
    (tmp_path / "f" / "new").touch()
    second = SharedFolder(tmp_path / "f")
    assert (tmp_path / "f" / "new").exists()
    first.leave()
    assert (tmp_path / "f" / "new").exists()
    second.leave()
    assert not (tmp_path / "f").exists()


def test_newcomer_that_opened_a_folder_just_being_removed_makes_a_new_one(tmp_path, monkeypatch):
    leaving = SharedFolder(tmp_path / "f")
    real_open, opened = os.open, []

    def open_then_be_late(path, *args, **kwargs):
        descriptor = real_open(path, *args, **kwargs)
        if not opened and Path(path).name == ".users":
            opened.append(path)
            leaving.leave()
        return descriptor

    monkeypatch.setattr(os, "open", open_then_be_late)
    newcomer = SharedFolder(tmp_path / "f")
    assert opened
    (newcomer.path / "entry").touch()
    assert (tmp_path / "f" / ".users").exists()


def test_folder_that_another_process_removes_while_it_is_made_is_made_again(tmp_path, monkeypatch):
    place, mkdir, calls = tmp_path / "voxelocity", Path.mkdir, []

    def removed_at_once(path, *arguments, **options):
        calls.append(path)
        if len(calls) == 1:
            raise FileExistsError(path)
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", removed_at_once)
    SharedFolder(place).leave()
    assert calls == [place, place]
