from __future__ import annotations

import errno
import os

import pytest

from voxelocity_observe.diagnose.doctor import disk as disk_module
from voxelocity_observe.diagnose.doctor.disk import probe_disk

SMALL = {"file_bytes": 8 * 2**20, "min_free_bytes": 0}


def test_a_disk_is_measured_and_nothing_is_left(tmp_path):
    disk = probe_disk(tmp_path, **SMALL)
    assert disk.folder == str(tmp_path)
    assert disk.read_bytes_per_s > 0
    assert disk.write_bytes_per_s > 0
    assert disk.not_measured == ""
    assert not list(tmp_path.iterdir())


def test_a_folder_that_does_not_exist_yet_is_measured_above_it_and_not_made(tmp_path):
    assert probe_disk(tmp_path / "not" / "yet", **SMALL).folder == str(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_written_is_read_again_whole(tmp_path, monkeypatch):
    moved = {"pwrite": 0, "preadv": 0}
    real = {name: getattr(os, name) for name in moved}
    for name in moved:

        def counted(*arguments, name=name):
            done = real[name](*arguments)
            moved[name] += done
            return done

        monkeypatch.setattr(os, name, counted)
    probe_disk(tmp_path, **SMALL)
    assert moved == {"pwrite": 8 * 2**20, "preadv": 8 * 2**20}


def test_a_slow_disk_is_measured_on_what_it_manages_in_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_module, "MAX_S", 0.0)
    blocks = []
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *arguments: blocks.append(1) or real(*arguments))
    disk = probe_disk(tmp_path, file_bytes=64 * 2**20, min_free_bytes=0)
    assert len(blocks) == 1
    assert disk.write_bytes_per_s > 0


def test_where_space_is_short_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "open", lambda *arguments: pytest.fail("a file was made"))
    disk = probe_disk(tmp_path, min_free_bytes=2**62)
    assert disk.not_measured == "too little free space to write a test file"
    assert disk.read_bytes_per_s is None
    assert disk.free_bytes > 0


def test_a_file_system_without_direct_access_is_read_past_its_pages_by_advice(tmp_path, monkeypatch):
    real_open, advice, opened = os.open, [], []

    def refusing(path, flags, mode=0o777):
        opened.append(flags)
        descriptor = real_open(path, flags & ~os.O_DIRECT, mode)
        if flags & os.O_DIRECT:
            os.close(descriptor)
            raise OSError(errno.EINVAL, "Invalid argument")
        return descriptor

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: advice.append(arguments[3]))
    monkeypatch.setattr(disk_module, "file_system_of", lambda folder: "9p")
    disk = probe_disk(tmp_path, **SMALL)
    assert advice == [os.POSIX_FADV_DONTNEED]
    assert opened[-1] & os.O_DSYNC
    assert disk.read_bytes_per_s > 0
    assert not disk.past_page_cache
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("function", "number"), [("open", errno.EACCES), ("open", errno.EROFS), ("pwrite", errno.ENOSPC)]
)
def test_a_folder_that_cannot_be_written_is_reported_and_left_clean(tmp_path, monkeypatch, function, number):
    def refusing(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, function, refusing)
    assert os.strerror(number) in probe_disk(tmp_path, **SMALL).not_measured
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("rotational", "is_rotating"), [("1", True), ("0", False)])
@pytest.mark.parametrize("is_partition", [False, True])
def test_whether_the_disk_rotates_is_read_from_its_queue(tmp_path, rotational, is_rotating, is_partition):
    number = tmp_path.stat().st_dev
    queue = tmp_path / "sys/devices/sda/queue"
    queue.mkdir(parents=True)
    (queue / "rotational").write_text(f"{rotational}\n")
    place = queue.parent / "sda1" if is_partition else queue.parent
    place.mkdir(exist_ok=True)
    link = tmp_path / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"
    link.parent.mkdir(parents=True)
    link.symlink_to(place)
    assert probe_disk(tmp_path, **SMALL, root=tmp_path).is_rotating is is_rotating
