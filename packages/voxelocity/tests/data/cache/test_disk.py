import errno
import fcntl
import gc
import os

import numpy as np
import pytest
from safetensors.numpy import load_file

from shared.raising import raising
from voxelocity.data.cache import DiskTier, LmdbTier, entry_files, entry_key
from voxelocity.testing.tier_contract import KEY, assert_same, example_volume
from voxelocity_observe.core.errors import CacheError, CacheFullError, OutputError


def make_volume(seed=0):
    return example_volume(seed, shape=(2, 5, 4, 3))


def entry_file(folder, key=KEY):
    return folder / f"{key}.safetensors"


def files_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_entry_is_a_safetensors_file_that_others_can_read(tmp_path):
    DiskTier(tmp_path).put(KEY, make_volume())
    tensors = load_file(entry_file(tmp_path))
    np.testing.assert_array_equal(tensors["image"], make_volume().image)
    np.testing.assert_array_equal(tensors["foreground_1"], [3, 5])


@pytest.mark.parametrize("format", ["raw", "blosc2"])
def test_volume_of_a_dropped_entry_can_still_be_read(tmp_path, format):
    tier = DiskTier(tmp_path, format=format)
    tier.put(KEY, make_volume())
    got = tier.get(KEY)
    tier.drop(KEY)
    assert tier.get(KEY) is None
    assert_same(got, make_volume())


NO_SPACE = r"no space for case 'case é 0' in .* \(.*needs 0\.0 MB, .* MB are free; free"


@pytest.mark.parametrize(
    ("call", "error", "kind", "said"),
    [
        ("write", OSError(errno.ENOSPC, "No space left on device"), CacheFullError, NO_SPACE),
        ("fsync", OSError(errno.ENOSPC, "No space left on device"), CacheFullError, NO_SPACE),
        ("write", OSError(errno.EDQUOT, "Disk quota exceeded"), CacheFullError, NO_SPACE),
        ("write", OSError(errno.EIO, "Input/output error"), CacheError, r"cannot be written to .*Input/output error"),
        ("write", KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_a_put_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, call, error, kind, said):
    tier = DiskTier(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(entry_files.os, call, raising(error))
        with pytest.raises(kind, match=said) as caught:
            tier.put(KEY, make_volume())
    assert type(caught.value) is kind
    assert files_in(tmp_path) == []
    tier.put(KEY, make_volume())
    assert_same(tier.get(KEY), make_volume())


@pytest.mark.parametrize(("number", "is_kept"), [(errno.ENOTSUP, True), (errno.EBADF, True), (errno.EIO, False)])
def test_a_file_system_that_flushes_no_folders_keeps_entries_and_one_that_lost_something_says_so(
    tmp_path, monkeypatch, number, is_kept
):
    tier, fsync = DiskTier(tmp_path), os.fsync

    def refuse_folders(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(entry_files.os, "fsync", refuse_folders)
    if is_kept:
        tier.put(KEY, make_volume())
        assert_same(tier.get(KEY), make_volume())
    else:
        with pytest.raises(CacheError, match="cannot be written to"):
            tier.put(KEY, make_volume())


def test_unreadable_entry_is_a_cache_error(tmp_path, monkeypatch):
    tier = DiskTier(tmp_path)
    tier.put(KEY, make_volume())
    monkeypatch.setattr(entry_files, "map_file", raising(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(CacheError, match=r"entry .*0123abcd\.safetensors cannot be read \(Permission denied\)"):
        tier.get(KEY)


@pytest.mark.parametrize("tier", [DiskTier, LmdbTier])
def test_folder_that_cannot_be_made_is_named(tmp_path, tier):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"folder .*file/cache cannot be used .*set data\.cache\.folder"):
        tier(tmp_path / "file" / "cache")


def test_dtype_that_cannot_be_kept_is_named(tmp_path):
    volume = make_volume().with_(image=np.zeros((2, 5, 4, 3), np.complex64))
    with pytest.raises(CacheError, match="image has dtype complex64"):
        DiskTier(tmp_path).put(KEY, volume)


def test_temporary_file_of_a_living_writer_stays(tmp_path):
    tier = DiskTier(tmp_path)
    descriptor, temp = tier._store._open_temp(KEY)
    try:
        DiskTier(tmp_path)
        assert temp.exists()
    finally:
        os.close(descriptor)
    DiskTier(tmp_path)
    assert not temp.exists()


SLOW_PUT = """
import os, sys, threading
from pathlib import Path
import numpy as np
from voxelocity.core.volume import Grid, Volume
from voxelocity.data.cache import DiskTier, entry_files

real, calls = os.write, []
def write(descriptor, content):
    calls.append(1)
    if len(calls) == 2:
        real(descriptor, content[: len(content) // 2])
        print("in the middle", flush=True)
        threading.Event().wait()
    return real(descriptor, content)
entry_files.os.write = write
image = np.ones((1, 50, 50, 50), np.float32)
volume = Volume(case_id="a", image=image, label=None, grid=Grid.of(image.shape, np.eye(4)))
DiskTier(Path(sys.argv[1])).put("killed", volume)
"""


def test_writer_killed_in_the_middle_leaves_no_entry_and_its_file_is_cleaned_next_time(tmp_path, run_python):
    writer = run_python(SLOW_PUT, tmp_path)
    assert writer.stdout.readline() == "in the middle\n"
    still_there = DiskTier(tmp_path)
    assert len(files_in(tmp_path)) == 1
    writer.kill()
    writer.wait()
    assert still_there.get("killed") is None
    assert still_there.keys() == []
    assert len(files_in(tmp_path)) == 1
    DiskTier(tmp_path)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_lock_whose_file_cannot_be_made_is_done_without_because_it_only_saves_work(tmp_path, monkeypatch, number):
    tier, real = DiskTier(tmp_path), os.open

    def refused(path, *args, **options):
        if os.fspath(path).endswith(".lock"):
            raise OSError(number, os.strerror(number))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refused)
    with tier.lock(KEY):
        tier.put(KEY, make_volume())
    assert_same(tier.get(KEY), make_volume())


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files can be counted on Linux only")
def test_many_volumes_in_use_hold_no_file_open(tmp_path):
    tier = DiskTier(tmp_path)
    tier.put(KEY, make_volume())  # which opens the list of the entries that are in use
    num_open = len(os.listdir("/proc/self/fd"))
    volumes = [tier.get(KEY) for _ in range(100)]
    # What earlier tests left may be closed meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= num_open
    assert_same(volumes[99], make_volume())


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO])
def test_file_system_without_locks_is_done_without_them_and_nothing_is_left_that_could_hold_up_others(
    tmp_path, monkeypatch, number
):
    monkeypatch.setattr(fcntl, "flock", raising(OSError(number, os.strerror(number))))
    tier = DiskTier(tmp_path)
    with tier.lock(KEY), tier.lock(KEY):
        tier.put(KEY, make_volume())
    assert_same(tier.get(KEY), make_volume())
    assert all(path.stat().st_size == 0 for path in (tmp_path / "locks").glob("*.lock")), (
        "a marker outlives its process"
    )


def test_a_writer_whose_new_file_is_just_being_cleaned_up_opens_another(tmp_path, monkeypatch):
    tier, flock, rival = DiskTier(tmp_path), fcntl.flock, []

    def held_by_a_cleaner_at_first(descriptor, how):
        if not rival:
            (temp,) = tmp_path.glob(".*.tmp")
            rival.append(os.open(temp, os.O_RDWR))
            flock(rival[0], fcntl.LOCK_EX)
            if how & fcntl.LOCK_NB:
                raise BlockingIOError
            temp.unlink()  # what the cleaner does before it lets go
            os.close(rival[0])
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", held_by_a_cleaner_at_first)
    tier.put("a", make_volume())
    assert tier.get("a") is not None
    assert not list(tmp_path.glob(".*.tmp"))


def test_big_endian_voxels_come_back_as_numbers(tmp_path):
    volume = make_volume()
    swapped = volume.with_(image=volume.image.astype(">i2"))
    DiskTier(tmp_path).put("a", swapped)
    np.testing.assert_array_equal(DiskTier(tmp_path).get("a").image, swapped.image)


def test_entries_of_both_formats_stand_in_one_folder_and_either_tier_reads_them(tmp_path):
    DiskTier(tmp_path, format="raw").put("raw", make_volume(1))
    DiskTier(tmp_path, format="blosc2").put("blosc2", make_volume(2))
    for format in ("raw", "blosc2"):
        tier = DiskTier(tmp_path, format=format)
        assert_same(tier.get("raw"), make_volume(1))
        assert_same(tier.get("blosc2"), make_volume(2))


def test_folder_and_entries_are_for_the_user_alone_and_for_the_group_where_it_may_write(tmp_path):
    umask = os.umask(0)
    try:
        DiskTier(tmp_path / "own").put(KEY, make_volume())
        (tmp_path / "shared").mkdir(mode=0o2775)
        (tmp_path / "shared").chmod(0o2775)
        DiskTier(tmp_path / "shared").put(KEY, make_volume())
    finally:
        os.umask(umask)
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    assert entry_file(tmp_path / "own").stat().st_mode & 0o777 == 0o600
    assert entry_file(tmp_path / "shared").stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize("format", ["raw", "blosc2"])
def test_on_a_network_a_file_that_is_cut_or_replaced_under_a_volume_is_an_error_and_no_signal(
    tmp_path, monkeypatch, format
):
    monkeypatch.setattr(entry_files, "file_system_of", lambda _: "nfs4")
    tier = DiskTier(tmp_path, format=format)
    tier.put(KEY, make_volume())
    got = tier.get(KEY)
    assert_same(got, make_volume())
    os.truncate(entry_file(tmp_path), entry_file(tmp_path).stat().st_size - 200)
    with pytest.raises(CacheError, match=r"the entry of case 'case é 0' .*prepared again"):
        got.load()
    tier.drop(KEY)
    with pytest.raises(CacheError, match=r"the entry of case 'case é 0' .*prepared again"):
        got.load()


def test_an_entry_that_is_replaced_while_it_is_opened_is_looked_at_again(tmp_path, monkeypatch):
    monkeypatch.setattr(entry_files, "file_system_of", lambda _: "nfs4")
    tier = DiskTier(tmp_path)
    tier.put(KEY, make_volume())
    open_entry, num_replaced = tier._store.open, 0

    def open_and_replace(key):
        nonlocal num_replaced
        content = open_entry(key)
        if num_replaced:
            num_replaced -= 1
            tier.put(KEY, make_volume())
        return content

    monkeypatch.setattr(tier._store, "open", open_and_replace)
    num_replaced = 2
    assert tier.get(KEY) is not None
    num_replaced = 3
    with pytest.raises(CacheError, match="replaced while it was in use"):
        tier.get(KEY)
    got = tier.get(KEY)
    tier.put(KEY, make_volume())
    num_replaced = 2
    assert_same(got, make_volume())


FIRST, SECOND, THIRD, NEW, NEWER = (entry_key(name, "") for name in ("first", "second", "third", "new", "newer"))


def limited(folder, messages=None, num_entries=3):
    size = entry_file(folder, FIRST).stat().st_size
    return DiskTier(
        folder, max_bytes=int((num_entries + 0.5) * size), warn=None if messages is None else messages.append
    )


def test_entries_that_nobody_uses_make_room_at_the_limit_of_the_folder_the_one_used_longest_ago_first(tmp_path):
    before = DiskTier(tmp_path)
    for number, key in enumerate((FIRST, SECOND, THIRD)):
        before.put(key, make_volume(number))
    del before
    gc.collect()
    for age, key in enumerate((SECOND, FIRST, THIRD)):
        os.utime(entry_file(tmp_path, key), (1000 + age, 1000 + age))
    messages = []
    tier = limited(tmp_path, messages)
    tier.put(NEW, make_volume(7))
    assert set(tier.keys()) == {FIRST, NEW, THIRD}
    assert tier.get(FIRST) is not None
    tier.put(NEWER, make_volume(8))
    assert set(tier.keys()) == {FIRST, NEW, NEWER}
    (text,) = messages
    assert str(tmp_path) in text
    assert "data.cache.folder_max_bytes" in text


def test_files_of_other_programs_in_the_folder_stay(tmp_path):
    DiskTier(tmp_path).put(FIRST, make_volume())
    gc.collect()
    others = [tmp_path / name for name in ("model.safetensors", ".config.tmp", f".{KEY}.tmp", ".a.12-b.tmp")]
    for path in others:
        path.write_bytes(bytes(2 * entry_file(tmp_path, FIRST).stat().st_size))
        os.utime(path, (1000, 1000))
    tier = limited(tmp_path, num_entries=1)
    tier.put(NEW, make_volume(1))
    assert all(path.exists() for path in others)
    assert not entry_file(tmp_path, FIRST).exists()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_may_only_be_read_is_read_though_a_killed_writer_left_something_there(
    tmp_path, monkeypatch, number
):
    DiskTier(tmp_path).put(KEY, make_volume())
    remains = tmp_path / f".{KEY}.123-0a1b2c3d.tmp"
    remains.touch()
    real = os.open

    def refused(path, flags, *args, **options):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(number, os.strerror(number), os.fspath(path))
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refused)
    assert_same(DiskTier(tmp_path).get(KEY), make_volume())
    assert remains.exists()


def test_entries_in_use_by_another_process_or_this_one_stay_and_the_limit_is_named(tmp_path, run_python):
    DiskTier(tmp_path).put(FIRST, make_volume())
    code = (
        "import sys; from pathlib import Path; from voxelocity.data.cache import DiskTier; "
        "tier = DiskTier(Path(sys.argv[1])); volume = tier.get(sys.argv[2]); print('in use', flush=True); "
        "sys.stdin.read()"
    )
    user = run_python(code, tmp_path, FIRST)
    assert user.stdout.readline() == "in use\n"
    tier = limited(tmp_path, num_entries=2)
    tier.put(SECOND, make_volume(1))
    with pytest.raises(
        CacheFullError, match=rf"no space for case 'case é 2' .*in {tmp_path}; raise data\.cache\.folder"
    ):
        tier.put(THIRD, make_volume(2))
    assert set(tier.keys()) == {FIRST, SECOND}
    user.kill()
    user.wait()
    tier.put(THIRD, make_volume(2))
    assert set(tier.keys()) == {SECOND, THIRD}
    assert len(list((tmp_path / "locks" / ".uses").iterdir())) == 1, "the list of a killed process stays"
