from __future__ import annotations

import bz2
import gzip
import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shared.raising import raising
from voxelocity.data.decode import gunzip, header
from voxelocity.data.decode.gunzip import read_start, read_unpacked
from voxelocity_observe.core.errors import ScanError

CONTENT = np.random.default_rng(0).integers(0, 50, 100_000).astype(np.uint8).tobytes()


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "packed.gz"
    path.write_bytes(gzip.compress(CONTENT))
    return path


@pytest.mark.filterwarnings("ignore:.* bytes follow the")
@pytest.mark.parametrize("num_expected", [1, len(CONTENT) - 1, len(CONTENT)])
def test_unpacked_bytes_are_those_that_gzip_gives(packed: Path, num_expected: int) -> None:
    unpacked = read_unpacked(packed, num_expected=num_expected)
    assert unpacked.tobytes() == CONTENT[:num_expected]
    assert not unpacked.flags.writeable


@pytest.mark.filterwarnings("ignore:.* bytes follow the")
def test_plain_file_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(CONTENT)
    for num_expected in (10, len(CONTENT)):
        unpacked = read_unpacked(tmp_path / "plain", num_expected=num_expected)
        assert unpacked.tobytes() == CONTENT[:num_expected]
        assert not unpacked.flags.writeable
    assert read_start(tmp_path / "plain", 10) == CONTENT[:10]


def test_time_for_many_members_grows_with_their_number_alone(tmp_path: Path) -> None:
    # 4,000 members of 10 kB: fed as one piece each time, more than 20 GB would be copied.
    member = gzip.compress(np.random.default_rng(1).bytes(10_000), 1)
    path = tmp_path / "members.gz"
    path.write_bytes(member * 4_000)
    unpacked = read_unpacked(path, num_expected=40_000_000)
    assert unpacked.tobytes() == gzip.decompress(member) * 4_000


def test_a_later_member_larger_than_a_piece_is_read_whole(tmp_path: Path) -> None:
    long = np.random.default_rng(2).bytes(1_000_000)
    path = tmp_path / "members.gz"
    path.write_bytes(gzip.compress(b"first") + gzip.compress(long))
    assert read_unpacked(path, num_expected=1_000_005).tobytes() == b"first" + long
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ScanError, match="truncated"):
        read_unpacked(path, num_expected=1_000_005)


def test_members_are_joined_and_padding_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "members.gz"
    path.write_bytes(gzip.compress(CONTENT[:300]) + gzip.compress(CONTENT[300:]) + b"\0" * 512)
    assert read_unpacked(path, num_expected=len(CONTENT)).tobytes() == CONTENT
    assert read_start(path, 400) == CONTENT[:400]


@pytest.mark.parametrize("behind", [b"x", b"no gzip member follows here"])
def test_what_is_no_member_behind_the_last_one_is_left_out(packed: Path, behind: bytes) -> None:
    packed.write_bytes(packed.read_bytes() + behind)
    assert read_unpacked(packed, num_expected=len(CONTENT)).tobytes() == CONTENT


def test_members_behind_the_bytes_wanted_are_verified_too(packed: Path) -> None:
    data = bytearray(packed.read_bytes() * 2)
    data[-6] ^= 0xFF
    packed.write_bytes(data)
    with pytest.raises(ScanError, match=r"the gzip data is damaged \(.*checksum"):
        read_unpacked(packed, num_expected=len(CONTENT))


def test_members_are_read_into_memory_one_piece_at_a_time(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = tmp_path / "two.gz"
    two.write_bytes(packed.read_bytes() * 2)
    monkeypatch.setattr(gunzip, "_READ_BYTES", 100)
    monkeypatch.setattr(gunzip, "_MAX_FILL_BYTES", 33_333)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read as a whole"))
    assert read_unpacked(two, num_expected=2 * len(CONTENT)).tobytes() == CONTENT * 2


@pytest.mark.parametrize("num_expected", [200_000, 10**15])
def test_memory_that_is_not_to_be_had_is_a_truncated_file(
    packed: Path, monkeypatch: pytest.MonkeyPatch, num_expected: int
) -> None:
    monkeypatch.setattr(np, "empty", raising(MemoryError()))
    with pytest.raises(ScanError, match=rf"truncated: {num_expected:,} bytes expected .* 100,000 found"):
        read_unpacked(packed, num_expected=num_expected)
    assert read_unpacked(packed, num_expected=len(CONTENT)).tobytes() == CONTENT


def test_start_of_a_packed_file_is_read_without_its_end(packed: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:-2000])
    assert read_start(packed, 348) == CONTENT[:348]


@pytest.mark.parametrize("kept", [5, 30, 1000, 40_000])
def test_truncated_file_is_refused_with_both_counts(packed: Path, kept: int) -> None:
    packed.write_bytes(packed.read_bytes()[:kept])
    with pytest.raises(ScanError, match=r"packed\.gz: the file is truncated: 100,000 bytes expected .* [\d,]+ found"):
        read_unpacked(packed, num_expected=len(CONTENT))


def test_file_without_its_checksum_is_refused(packed: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:-6])
    with pytest.raises(ScanError, match=r"truncated: all 100,000 bytes .* but the checksum after them is missing"):
        read_unpacked(packed, num_expected=len(CONTENT))


@pytest.mark.parametrize("num_expected", [1000, len(CONTENT)])
def test_wrong_checksum_is_refused_however_little_is_wanted(packed: Path, num_expected: int) -> None:
    data = bytearray(packed.read_bytes())
    data[-6] ^= 0xFF
    packed.write_bytes(data)
    with pytest.raises(ScanError, match=r"the gzip data is damaged \(.*checksum.*\); copy or download the file again"):
        read_unpacked(packed, num_expected=num_expected)


def test_start_of_a_file_that_ends_at_once_is_refused(packed: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:12])
    with pytest.raises(ScanError, match="truncated: it ends within its first 348 unpacked bytes"):
        read_start(packed, 348)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScanError, match=r"nowhere\.nii: the file does not exist; correct the path"):
        read_start(tmp_path / "nowhere.nii", 10)
    with pytest.raises(ScanError, match=r"cannot be read \(Is a directory\)"):
        read_unpacked(tmp_path, num_expected=1)


@pytest.fixture
def threads_take_turns_only_when_asked() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1_000.0)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_take_turns_only_when_asked")
def test_gil_is_free_while_a_file_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(np.random.default_rng(1).integers(0, 9, 20_000_000, dtype=np.uint8).tobytes(), 1)
    # In memory, for waiting for a disk frees the GIL as well.
    monkeypatch.setattr(Path, "open", lambda *args, **named: io.BytesIO(packed))
    turns, done, started = 0, threading.Event(), threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            started.set()
            os.sched_yield()

    counter = threading.Thread(target=count)
    counter.start()
    started.wait()
    before = turns
    read_unpacked(tmp_path / "in_memory", num_expected=20_000_000)
    during = turns - before
    done.set()
    counter.join()
    assert during > 10, "the other thread did not run although nothing else held the GIL"


@pytest.mark.parametrize("is_one_member", [True, False])
def test_far_more_than_the_header_announces_is_refused(tmp_path: Path, monkeypatch, is_one_member: bool) -> None:
    monkeypatch.setattr(gunzip, "_MOST_BEHIND_BYTES", 1 << 20)
    behind = b"\0" * (6 << 20)
    path = tmp_path / "bomb.gz"
    parts = [CONTENT + behind] if is_one_member else [CONTENT, behind]
    path.write_bytes(b"".join(map(gzip.compress, parts)))
    with pytest.raises(ScanError, match=r"100,000 bytes are expected .* but more than [\d,]+ follow them; .* export"):
        read_unpacked(path, num_expected=len(CONTENT))
    path.write_bytes(path.read_bytes() + b"no member")
    with pytest.raises(ScanError, match="follow them"):
        read_unpacked(path, num_expected=len(CONTENT))


@pytest.mark.parametrize("name", ["packed.gz", "plain"])
def test_voxels_that_memory_cannot_hold_are_refused_before_they_are_unpacked(
    packed: Path, tmp_path: Path, monkeypatch, name: str
) -> None:
    (tmp_path / "plain").write_bytes(CONTENT)
    monkeypatch.setattr(header, "_LARGE_BYTES", 1000)
    monkeypatch.setattr(header, "available_memory_bytes", lambda: 99_999)
    with pytest.raises(ScanError, match=r"the voxels take 0\.0 GB of memory, and 0\.0 GB are free; free some"):
        read_unpacked(packed.with_name(name), num_expected=len(CONTENT))
    monkeypatch.setattr(header, "available_memory_bytes", lambda: 100_000)
    assert len(read_unpacked(packed.with_name(name), num_expected=len(CONTENT))) == len(CONTENT)


def test_a_plain_file_that_does_not_fit_is_refused_before_it_is_read(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.mnc").write_bytes(b"CDF\1" + bytes(2000))
    monkeypatch.setattr(header, "_LARGE_BYTES", 1000)
    monkeypatch.setattr(header, "available_memory_bytes", lambda: 2000)
    with pytest.raises(ScanError, match=r"a\.mnc: the voxels take 0\.0 GB of memory"):
        gunzip.read_all_unpacked(tmp_path / "a.mnc")


def _packed_in(form: str, tmp_path: Path) -> Path:
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "plain": bytes}.get(form)
    path = tmp_path / f"a.{form}"
    path.write_bytes(gzip.compress(CONTENT[:300]) + gzip.compress(CONTENT[300:]) if pack is None else pack(CONTENT))
    return path


@pytest.mark.parametrize("form", ["gz", "members", "bz2", "plain"])
@pytest.mark.parametrize("part", [range(400), range(250, 70_001), range(99_999, 100_000)])
def test_a_part_is_read_of_a_whole_file_alone(tmp_path: Path, form: str, part: range) -> None:
    path = _packed_in(form, tmp_path)
    found = read_unpacked(path, num_expected=len(CONTENT), part=part)
    assert found.tobytes() == CONTENT[part.start : part.stop]
    with pytest.raises(ScanError, match=r"truncated: 100,001 bytes expected by its header, 100,000 found"):
        read_unpacked(path, num_expected=len(CONTENT) + 1, part=part)


@pytest.mark.parametrize("form", ["gz", "members", "bz2"])
def test_damage_outside_of_the_part_is_refused_too(tmp_path: Path, form: str) -> None:
    path = _packed_in(form, tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(ScanError, match=r"damaged|truncated"):
        read_unpacked(path, num_expected=len(CONTENT), part=range(100, 200))
