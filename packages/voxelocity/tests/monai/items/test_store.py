"""Prepared items by key: made once, found again, and reported where they cannot be kept."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from torch.utils.serialization import config

from shared.limits import HANGS_S
from shared.raising import raising
from voxelocity.monai.items.store import FolderItems, ItemStore, MemoryItems, bytes_of
from voxelocity_observe.core.errors import OutputError

KEY = "0a" * 20


class Maker:
    """Makes an item and counts how often."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.num_calls = 0
        self._make = make

    def __call__(self) -> Any:
        self.num_calls += 1
        return self._make()


def _never(text: str) -> None:
    raise AssertionError(text)


def _image() -> dict[str, Any]:
    meta = {"pixdim": np.ones(8, np.float32), "scl_slope": np.array(np.nan, np.float32)}
    return {"image": MetaTensor(torch.arange(60.0).reshape(1, 3, 4, 5), meta=meta), "id": 7}


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ItemStore:
    if request.param == "memory":
        return MemoryItems(max_bytes=2**20, warn=_never)
    return FolderItems(tmp_path, warn=_never)


def test_an_item_is_made_once_and_found_with_its_metadata(store: ItemStore) -> None:
    make = Maker(_image)
    found = [store.get_or_make(KEY, make) for _ in range(3)]
    assert make.num_calls == 1
    for item in found:
        assert torch.equal(item["image"].as_tensor(), _image()["image"].as_tensor())
        assert isinstance(item["image"].meta["pixdim"], np.ndarray)
        assert item["id"] == 7


def test_threads_that_ask_for_one_item_make_it_once(store: ItemStore) -> None:
    together = threading.Barrier(4)
    make = Maker(_image)

    def ask(_: int) -> Any:
        together.wait()
        return store.get_or_make(KEY, make)

    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(ask, range(4)))) == 4
    assert make.num_calls == 1


def test_an_item_that_cannot_be_made_is_tried_again(store: ItemStore) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="scan 3 is broken"):
            store.get_or_make(KEY, raising(ValueError("scan 3 is broken")))
    assert store.get_or_make(KEY, lambda: 5) == 5


def test_a_full_memory_is_reported_once_and_items_are_made_again() -> None:
    messages: list[str] = []
    store = MemoryItems(max_bytes=500, warn=messages.append)
    makers = {name: Maker(lambda: torch.zeros(100)) for name in ("a", "b", "c")}
    for _ in range(2):
        for name, make in makers.items():
            store.get_or_make(name, make)
    assert [make.num_calls for make in makers.values()] == [1, 2, 2]
    assert messages == [
        "voxelocity.monai: 1 prepared items fill the 0.0 GB that the cache may take in memory; the others are prepared "
        "again each time they are used. Raise cache_max_bytes, or set cache to a folder"
    ]


def test_copies_of_a_memory_begin_empty_and_leave_the_first_as_it_is() -> None:
    store = MemoryItems(max_bytes=500, warn=_never)
    store.get_or_make("a", lambda: 1)
    for other in (copy.deepcopy(store), pickle.loads(pickle.dumps(store))):
        assert other.get_or_make("a", lambda: 2) == 2
    assert store.get_or_make("a", lambda: 3) == 1


def test_a_process_forked_while_an_item_is_made_makes_it_itself() -> None:
    store = MemoryItems(max_bytes=500, warn=_never)
    begun, is_over = threading.Event(), threading.Event()

    def make_slowly() -> int:
        begun.set()
        is_over.wait(HANGS_S)
        return 1

    def in_the_fork(answers: Any) -> None:
        answers.put(store.get_or_make("a", lambda: 2))

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(store.get_or_make, "a", make_slowly)
        begun.wait(HANGS_S)
        process = context.Process(target=in_the_fork, args=(answers,))
        process.start()
        try:
            assert answers.get(timeout=HANGS_S) == 2
        finally:
            is_over.set()
            process.join(HANGS_S)
            answers.close()
            answers.join_thread()
        assert first.result() == 1


def test_another_store_finds_what_is_in_the_folder(tmp_path: Path) -> None:
    FolderItems(tmp_path, warn=_never).get_or_make(KEY, _image)
    make = Maker(_image)
    item = FolderItems(tmp_path, warn=_never).get_or_make(KEY, make)
    assert make.num_calls == 0
    assert item["image"].meta["scl_slope"].dtype == np.float32


def test_a_change_of_a_found_item_does_not_reach_its_file(tmp_path: Path) -> None:
    store = FolderItems(tmp_path, warn=_never)
    store.get_or_make(KEY, lambda: torch.zeros(9))
    store.get_or_make(KEY, _image).add_(1)
    assert torch.equal(store.get_or_make(KEY, _image), torch.zeros(9))


def test_an_item_that_holds_an_object_is_reported_once_and_not_kept(tmp_path: Path) -> None:
    messages: list[str] = []
    store = FolderItems(tmp_path, warn=messages.append)
    make = Maker(lambda: {"reader": threading.Event()})
    for _ in range(3):
        store.get_or_make(KEY, make)
    assert make.num_calls == 3
    assert list(tmp_path.iterdir()) == []
    assert messages == [
        f"voxelocity.monai: prepared items are not kept in {tmp_path}, but prepared again each time they are used: "
        "item['reader'] is a threading.Event, and files hold only plain data. Create such values after the first "
        "random transform, or use cache='memory'"
    ]


def test_processes_that_come_later_do_not_read_a_file_that_was_found_whole(tmp_path: Path) -> None:
    item = {"image": torch.zeros(2**20)}
    FolderItems(tmp_path, warn=_never).get_or_make(KEY, lambda: item)
    file = tmp_path / f"voxelocity-{KEY}.pt"

    def bytes_read() -> int:
        # Every process has a store of its own.
        store, before = FolderItems(tmp_path, warn=_never), _bytes_read()
        assert store.get_or_make(KEY, Maker(lambda: None))["image"].shape == (2**20,)
        return _bytes_read() - before

    assert bytes_read() > file.stat().st_size
    assert bytes_read() < 100_000
    os.utime(file, ns=(5, 5))
    assert bytes_read() > file.stat().st_size
    file.with_suffix(".ok").write_text("cut")
    assert bytes_read() > file.stat().st_size
    assert bytes_read() < 100_000


def test_a_file_is_mapped_by_its_own_call_and_not_by_an_option_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where the option is the process's, what another thread loads from memory meanwhile would fail.
    store, load, seen = FolderItems(tmp_path, warn=_never), torch.load, []

    def watched(*args: Any, **options: Any) -> Any:
        seen.append((options["mmap"], config.load.mmap))
        return load(*args, **options)

    store.get_or_make(KEY, _image)
    monkeypatch.setattr(torch, "load", watched)
    assert store.get_or_make(KEY, Maker(lambda: None))["id"] == 7
    assert seen == [(True, False)]


def _bytes_read() -> int:
    """By this process so far, mapped memory not counted."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("how", ["cut", "changed", "one bit", "emptied", "replaced"])
def test_a_damaged_file_is_reported_and_made_again(tmp_path: Path, how: str) -> None:
    store = FolderItems(tmp_path, warn=_never)
    store.get_or_make(KEY, _image)
    path = tmp_path / f"voxelocity-{KEY}.pt"
    data = bytearray(path.read_bytes())
    if how == "changed":
        data[-20:] = bytes(20)
    if how == "one bit":
        voxels = _image()["image"].as_tensor().numpy().tobytes()
        data[data.index(voxels) + 99] ^= 1
    path.write_bytes({"cut": data[: len(data) // 2], "emptied": b"", "replaced": b"text\n" * 99}.get(how, data))
    make = Maker(_image)
    with pytest.warns(UserWarning, match=rf"voxelocity.monai.compile: {path} cannot be loaded .*is prepared again"):
        item = store.get_or_make(KEY, make)
    assert make.num_calls == 1
    assert torch.equal(store.get_or_make(KEY, make)["image"], item["image"])
    assert make.num_calls == 1


def test_a_folder_that_is_removed_is_filled_again(tmp_path: Path) -> None:
    store = FolderItems(tmp_path / "cache", warn=_never)
    store.get_or_make(KEY, lambda: 4)
    shutil.rmtree(tmp_path / "cache")
    assert store.get_or_make(KEY, lambda: 5) == 5
    assert store.get_or_make(KEY, lambda: 6) == 5


def test_a_full_disk_is_reported_once_and_the_items_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderItems(tmp_path, warn=_never)
    monkeypatch.setattr("os.replace", raising(OSError(28, "No space left on device")))
    with pytest.warns(UserWarning, match="cannot be written") as messages:
        assert [store.get_or_make(KEY, lambda number=number: number) for number in range(3)] == [0, 1, 2]
    assert [str(message.message) for message in messages] == [
        f"voxelocity.monai.compile: items cannot be written to {tmp_path} (No space left on device); the missing "
        "ones are prepared again in every epoch"
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(OutputError, match=rf"voxelocity.monai.compile: cache {place} cannot be used \(File exists\)"):
        FolderItems(place, warn=_never)


def test_bytes_are_those_of_all_arrays_however_nested() -> None:
    assert bytes_of({"a": torch.zeros(3), "b": [np.zeros(2), (torch.zeros(1, dtype=torch.uint8), "text")]}) == 29
    assert bytes_of(None) == 0
