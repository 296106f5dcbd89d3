import multiprocessing
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.data.utils import json_hashing
from monai.transforms import Compose, Flip, Identity, Lambda, LoadImage, RandLambda

from shared.forked import ForkedPython, with_imports
from voxelocity_observe.core.errors import ConfigError, OutputError


def entries(folder):
    return sorted(path for path in folder.iterdir() if path.name.endswith(".pt"))


def first_values(dataset):
    return [float(item.flatten()[0]) for item in dataset]


def test_a_changed_argument_or_lambda_is_never_served_an_old_file(sets, tmp_path):
    image = [np.arange(8.0).reshape(1, 2, 2, 2)]
    chains = (Identity(), Flip(0), Flip(1), Lambda(lambda x: x + 1), Lambda(lambda x: x + 2))
    results = [sets.PersistentDataset(image, chain, tmp_path)[0].flatten().tolist() for chain in chains]
    assert len({tuple(result) for result in results}) == 5


def test_a_file_that_changes_is_read_again(sets, tmp_path):
    scan = tmp_path / "scan.npy"
    found = []
    for value in (1.0, 2.0):
        np.save(scan, np.full((1, 2, 2, 2), value))
        os.utime(scan, ns=(int(value), int(value)))
        chain = Compose([LoadImage()])
        found += first_values(sets.PersistentDataset([str(scan)], chain, tmp_path / "cache"))
    assert found == [1, 2]


def test_another_transform_in_its_place_is_read_again(sets, filled, tmp_path):
    dataset = sets.PersistentDataset([1], Compose([filled()]), tmp_path)
    assert first_values(dataset) == [1]
    dataset.transform = Compose([filled(), Lambda(lambda x: -x)])
    assert first_values(dataset) == [-1]


def test_a_subclass_that_prepares_in_its_own_way_has_its_own_files(sets, filled, tmp_path):
    class Doubled(sets.PersistentDataset):
        def _pre_transform(self, item):
            return 2 * super()._pre_transform(item)

    assert first_values(sets.PersistentDataset([1], Compose([filled()]), tmp_path)) == [1]
    assert first_values(Doubled([1], Compose([filled()]), tmp_path)) == [2]


def test_the_fixed_part_runs_once_an_item_and_folder(sets, tmp_path):
    calls = tmp_path / "calls.txt"
    calls.touch()

    def note(x, path=calls.name, folder=str(tmp_path)):
        with open(os.path.join(folder, path), "a") as file:
            file.write(f"{x} ")
        return torch.tensor([float(x)])

    for _ in range(2):
        dataset = sets.PersistentDataset([1, 2], Compose([Lambda(note), RandLambda(lambda x: x)]), tmp_path / "cache")
        assert first_values(dataset) == first_values(dataset) == [1, 2]
    assert calls.read_text() == "1 2 "
    assert len(entries(tmp_path / "cache")) == 2


def test_hash_func_and_hash_transform_add_to_the_name(sets, filled, tmp_path):
    chain = Compose([filled()])
    for arguments in ({}, {"hash_func": json_hashing}, {"hash_transform": lambda _: b"a"}):
        sets.PersistentDataset([1], chain, tmp_path, **arguments)[0]
    assert len(entries(tmp_path)) == 3


def test_items_are_of_one_kind_from_the_first_time_on(sets, tmp_path):
    image = MetaTensor(torch.rand(1, 4, 4, 4), affine=2 * torch.eye(4), meta={"name": "case"})
    for track_meta, kind in ((False, torch.Tensor), (True, MetaTensor)):
        dataset = sets.PersistentDataset([{"image": image, "id": 7}], Compose([]), tmp_path, track_meta=track_meta)
        for _ in range(2):
            item = dataset[0]
            assert type(item["image"]) is kind
            assert item["id"] == 7
    assert item["image"].meta["name"] == "case"
    assert torch.equal(item["image"].affine, image.affine)


def test_set_data_removes_its_own_files_and_no_others(sets, filled, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model.pt").write_bytes(b"mine")
    dataset = sets.PersistentDataset([1, 2], Compose([filled()]), tmp_path)
    assert first_values(dataset) == [1, 2]
    dataset.set_data([3])
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "model.pt"}
    assert first_values(dataset) == [3]


def test_a_folder_that_the_user_removed_is_made_again(sets, filled, tmp_path):
    dataset = sets.PersistentDataset([1], Compose([filled()]), tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    dataset.set_data([2])
    assert first_values(dataset) == [2]


def test_an_object_that_torch_refuses_to_load_is_named_with_the_cure(sets, tmp_path):
    item = {"scan": Path("scan")}
    dataset = sets.PersistentDataset([item], Compose([]), tmp_path)
    assert dataset[0] == item
    with pytest.warns(
        UserWarning, match=r"it holds a pathlib[\w.]*\.PosixPath; convert it in the chain, or set weights_"
    ):
        assert dataset[0] == item


def test_a_disk_that_is_really_full_is_an_error_of_the_disk(tmp_path):
    import resource
    import signal

    from voxelocity.monai.items.files import ABSENT, ItemFiles

    files = ItemFiles(tmp_path, weights_only=True, pickle_module="pickle", pickle_protocol=2)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, old[1]))
        with pytest.warns(UserWarning, match=r"items cannot be written to .* \(File too large\)"):
            files.save("ab", torch.zeros(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert files.load("ab") is ABSENT
    assert list(tmp_path.iterdir()) == []


_WRITER = """
import sys, time
from pathlib import Path
import torch
from monai.transforms import Compose, Lambda
import voxelocity.monai

def note(x, folder=Path(sys.argv[2])):
    with open(folder / "calls.txt", "a") as file:
        file.write(f"{x} ")
    time.sleep(0.05)
    return torch.full((1, 32, 32, 32), float(x))

dataset = voxelocity.monai.PersistentDataset(list(range(6)), Compose([Lambda(note)]), sys.argv[1])
print([float(item[0, 0, 0, 0]) for item in dataset])
"""


def test_two_processes_on_one_folder_make_each_item_once(tmp_path):
    cache = tmp_path / "cache"
    running = [ForkedPython(_WRITER, [cache, tmp_path]) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in running] == [str([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])] * 2
    assert sorted((tmp_path / "calls.txt").read_text().split()) == list("012345")
    assert all(path.suffix in (".pt", ".ok") for path in cache.iterdir())
    assert len(entries(cache)) == 6


def test_threads_on_one_folder_make_each_item_once(sets, tmp_path):
    calls = []
    chain = Compose([Lambda(lambda x: calls.append(x) or torch.full((2,), float(x)))])
    dataset = sets.PersistentDataset([1, 2, 3], chain, tmp_path)
    threads = [threading.Thread(target=list, args=(dataset,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(calls) == [1, 2, 3]


def test_a_chain_that_cannot_be_fingerprinted_is_kept_for_this_data_set_alone(sets, tmp_path):
    log = open(tmp_path / "log.txt", "a")  # noqa: SIM115
    chain = Compose([Lambda(lambda x: (log.write(f"{x} "), torch.ones(2) * x)[1])])
    cache = tmp_path / "cache"
    with pytest.warns(UserWarning, match="for this run only") as caught:
        dataset = sets.PersistentDataset([1, 2], chain, cache)
    (text,) = [str(warning.message) for warning in caught]
    assert text.startswith(
        "PersistentDataset: prepared items are kept for this run only, because another run could not check"
    )
    assert "transform 0 (Lambda).func (closed over): a TextIOWrapper has no readable content" in text
    assert first_values(dataset) == first_values(dataset) == [1, 2]
    assert len(entries(cache)) == 2
    with pytest.warns(UserWarning, match="for this run only"):
        other = sets.PersistentDataset([1, 2], chain, cache)
    assert first_values(other) == [1, 2]
    log.close()
    assert (tmp_path / "log.txt").read_text() == "1 2 1 2 "
    del dataset, other
    assert entries(cache) == []


def test_no_other_thread_sees_a_chain_that_cannot_be_fingerprinted_without_its_own_ending(sets, tmp_path):
    endings = []

    class Watched(sets.PersistentDataset):
        def __setattr__(self, name, value):
            if name == "_salt":
                endings.append(value)
            super().__setattr__(name, value)

    with open(tmp_path / "log.txt", "a") as log, pytest.warns(UserWarning, match="for this run only"):
        Watched([1], Compose([Lambda(lambda x: (log.write("x"), x)[1])]), tmp_path / "cache")
    assert [ending.startswith("-once-") for ending in endings] == [True]


def test_workers_without_the_memory_of_this_process_find_what_it_has_made(sets, filled, tmp_path):
    dataset = sets.PersistentDataset([np.ones((1, 2, 2, 2))] * 2, Compose([Flip(0)]), tmp_path)
    dataset[0]
    assert len(entries(tmp_path)) == 1
    loader = sets.DataLoader(dataset, batch_size=1, num_workers=1, multiprocessing_context=with_imports())
    assert len(list(loader)) == 2
    assert len(entries(tmp_path)) == 1
    assert multiprocessing.active_children() == []


def test_what_a_writer_that_died_left_is_removed_after_a_day(sets, filled, tmp_path):
    old, new = tmp_path / ".voxelocity-ab.pt.ff.part", tmp_path / ".voxelocity-cd.pt.ff.part"
    old.write_bytes(b"")
    new.write_bytes(b"")
    os.utime(old, (time.time() - 90_000,) * 2)
    sets.PersistentDataset([1], Compose([filled()]), tmp_path)
    assert list(tmp_path.iterdir()) == [new]


def test_another_version_makes_items_again(sets, filled, tmp_path, monkeypatch):
    for version in ("1", "2", "2"):
        monkeypatch.setattr("voxelocity.monai.datasets.persistent.__version__", version)
        assert first_values(sets.PersistentDataset([1], Compose([filled()]), tmp_path)) == [1]
    assert len(entries(tmp_path)) == 2


def test_without_a_folder_nothing_is_kept(sets, filled):
    dataset = sets.PersistentDataset([1], Compose([filled()]), None)
    # What cannot be fingerprinted does not matter then, and there is no warning.
    state = np.random.RandomState(0)
    sets.PersistentDataset([1], Compose([Lambda(lambda x: x + state.rand())]), None)
    assert first_values(dataset) == [1]
    dataset.set_data([2])
    assert first_values(dataset) == [2]


def test_a_folder_that_cannot_be_used_is_reported(sets, filled, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cache_dir .*file is a file; give a folder"):
        sets.PersistentDataset([1], Compose([filled()]), tmp_path / "file")
    with pytest.raises(OutputError, match=r"cache_dir .* cannot be used \(Not a directory\); give a writable folder"):
        sets.PersistentDataset([1], Compose([filled()]), tmp_path / "file" / "inside")


def test_after_the_first_n_transforms_lists_are_walked_as_in_the_whole_chain(sets, tmp_path):
    chain = Compose([Identity(), len], map_items=False)
    assert sets.CacheNTransDataset([[5, 6, 7]], chain, 1, tmp_path)[0] == 3


def test_the_first_n_transforms_are_kept_random_ones_too(sets, filled, tmp_path):
    chain = Compose([filled(), RandLambda(lambda x: x + torch.rand(1)), RandLambda(lambda x: -x)])
    first = first_values(sets.CacheNTransDataset([1], chain, 2, tmp_path))
    assert first_values(sets.CacheNTransDataset([1], chain, 2, tmp_path)) == first
    assert first[0] < -1
    assert first_values(sets.CacheNTransDataset([1], chain, 1, tmp_path)) != first
    with pytest.raises(ConfigError, match="cache_n_trans = 4 is not valid for 3 transforms; give 0 to 3"):
        sets.CacheNTransDataset([1], chain, 4, tmp_path)
