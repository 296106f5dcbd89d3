import os
from pathlib import Path

import pytest
import torch
from monai.transforms import Compose, Flip, Identity, Lambda, RandLambda

from shared.forked import ForkedPython
from shared.raising import raising
from voxelocity.data.cache import open_lmdb_file
from voxelocity_observe.core.errors import CacheError, CacheFullError, ConfigError

pytest.importorskip("lmdb")


def first_values(dataset):
    return [float(item.flatten()[0]) for item in dataset]


def lmdb_set(sets, data, transform, folder, **arguments):
    return sets.LMDBDataset(data, Compose(transform), folder, progress=False, **arguments)


def test_all_items_are_prepared_at_once_and_found_by_the_next_run(sets, tmp_path):
    calls = tmp_path / "calls.txt"

    def note(x, path=str(tmp_path)):
        with open(os.path.join(path, "calls.txt"), "a") as file:
            file.write(f"{x} ")
        return torch.full((2,), float(x))

    for _ in range(2):
        dataset = lmdb_set(sets, [1, 2], [Lambda(note), RandLambda(lambda x: -x)], tmp_path / "cache")
        assert calls.read_text() == "1 2 "
        assert first_values(dataset) == first_values(dataset) == [-1, -2]


def test_a_changed_chain_is_never_served_an_old_entry(sets, tmp_path):
    image = [torch.arange(8.0).reshape(1, 2, 2, 2)]
    results = [
        lmdb_set(sets, image, [transform], tmp_path)[0].flatten().tolist()
        for transform in (Identity(), Flip(0), Flip(1))
    ]
    assert len({tuple(result) for result in results}) == 3


def test_two_data_sets_of_one_process_read_and_write_one_file(sets, filled, tmp_path):
    one = lmdb_set(sets, [1, 2], [filled()], tmp_path)
    assert first_values(one) == [1, 2]
    other = lmdb_set(sets, [2, 3], [filled()], tmp_path)
    assert first_values(other) == [2, 3]
    assert first_values(one) == [1, 2]
    assert one.info()["size"] == 2


def test_a_full_map_grows(sets, filled, tmp_path):
    dataset = lmdb_set(sets, [1, 2, 3], [filled(32)], tmp_path, lmdb_kwargs={"map_size": 10 * 1024})
    assert first_values(dataset) == [1, 2, 3]
    assert dataset.info()["map_size"] > 3 * 4 * 32**3


_WRITER = """
import sys
import torch
from monai.transforms import Compose, Lambda
import voxelocity.monai

def made(x):
    return torch.full((1, 32, 32, 32), float(x))

dataset = voxelocity.monai.LMDBDataset(
    list(range(20)), Compose([Lambda(made)]), sys.argv[1], progress=False, lmdb_kwargs={"map_size": 100_000}
)
print(int(sum(float(item[0, 0, 0, 0]) for item in dataset)))
"""


def test_processes_that_write_at_once_take_their_turn(tmp_path):
    running = [ForkedPython(_WRITER, [tmp_path]) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in running] == ["190", "190"]


def test_other_data_replace_its_own_entries_and_leave_other_files(sets, filled, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    dataset = lmdb_set(sets, [1, 2], [filled()], tmp_path)
    dataset.set_data([3])
    assert first_values(dataset) == [3]
    assert (tmp_path / "notes.txt").read_text() == "mine"
    keys = open_lmdb_file(dataset.db_file.resolve()).keys()
    assert len(keys) == 1


def test_a_chain_that_cannot_be_fingerprinted_leaves_nothing_behind(sets, tmp_path):
    log = open(tmp_path / "log.txt", "a")  # noqa: SIM115
    with pytest.warns(UserWarning, match="LMDBDataset: prepared items are kept for this run only"):
        dataset = lmdb_set(sets, [1], [Lambda(lambda x: (log.write("x"), torch.ones(1))[1])], tmp_path)
    path = dataset.db_file.resolve()
    assert first_values(dataset) == [1]
    del dataset
    log.close()
    assert open_lmdb_file(path).keys() == []


def test_a_full_disk_is_reported_once_and_other_data_find_it_free_again(sets, filled, tmp_path, monkeypatch):
    full = raising(CacheFullError("cache.lmdb: no space in x"))
    monkeypatch.setattr("voxelocity.data.cache.LmdbFile.write", full)
    with pytest.warns(UserWarning, match="no space") as caught:
        dataset = lmdb_set(sets, [1, 2], [filled()], tmp_path)
    assert first_values(dataset) == [1, 2]
    assert [str(warning.message) for warning in caught] == [
        "LMDBDataset: cache.lmdb: no space in x. Items that do not fit are prepared again in every epoch"
    ]
    monkeypatch.undo()
    dataset.set_data([3])
    assert len(open_lmdb_file(dataset.db_file.resolve()).keys()) == 1, "other data are prepared at once again"


def test_an_object_that_torch_refuses_to_load_is_named_with_the_cure(sets, tmp_path):
    with pytest.raises(
        CacheError, match=r"an item holds a pathlib[\w.]*\.PosixPath, and .* only tensors and plain data"
    ):
        lmdb_set(sets, [{"scan": Path("scan")}], [Identity()], tmp_path)[0]


def test_refused_arguments_and_foreign_files_are_reported(sets, filled, tmp_path):
    with pytest.raises(ConfigError, match="cache_dir must be given"):
        lmdb_set(sets, [1], [filled()], "")
    with pytest.raises(ConfigError, match="lock = False is not possible: two writing processes would corrupt"):
        lmdb_set(sets, [1], [filled()], tmp_path, lmdb_kwargs={"lock": False})
    (tmp_path / "other.lmdb").write_bytes(b"no database" * 1000)
    with pytest.raises(CacheError, match=r"other\.lmdb is not an LMDB file of this version, or it is damaged"):
        lmdb_set(sets, [1], [filled()], tmp_path, db_name="other")


def test_an_entry_that_cannot_be_loaded_is_reported(sets, filled, tmp_path, monkeypatch):
    dataset = lmdb_set(sets, [1], [filled()], tmp_path)
    monkeypatch.setattr(dataset, "_get_or_make", lambda item: b"no archive")
    with pytest.raises(CacheError, match=r"(?s)an entry of .*monai_cache\.lmdb cannot be loaded .*; remove the file"):
        dataset[0]
