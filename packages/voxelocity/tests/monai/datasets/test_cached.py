import re

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import (
    Compose,
    Flip,
    Lambda,
    RandLambda,
    RandScaleIntensity,
    RandSpatialCrop,
    RandZoom,
    ToTensor,
    Transform,
)

from shared.raising import raising
from voxelocity_observe.core.errors import VoxelocityError

SIDE = 32  # large enough for an array to be mapped and not copied


class InPlace(Transform):
    def __call__(self, values):
        values += 100
        return values


def first_values(dataset):
    return [float(item.flatten()[0]) for item in dataset]


@pytest.mark.parametrize("copy_cache", [True, False])
@pytest.mark.parametrize("side", [4, SIDE])
@pytest.mark.parametrize("runtime_cache", [False, True])
def test_a_later_transform_that_changes_its_input_cannot_change_what_is_kept(
    sets, filled, copy_cache, side, runtime_cache
):
    chain = Compose([filled(side), RandLambda(lambda values: values.add_(100))])
    dataset = sets.CacheDataset([1, 2, 3], chain, progress=False, copy_cache=copy_cache, runtime_cache=runtime_cache)
    assert first_values(dataset) == [101, 102, 103]
    assert first_values(dataset) == [101, 102, 103]


@pytest.mark.parametrize("side", [4, SIDE])
def test_a_script_that_changes_an_item_of_a_fixed_chain_cannot_change_what_is_kept(sets, filled, side):
    dataset = sets.CacheDataset([1, 2], Compose([filled(side)]), progress=False)
    for item in dataset:
        item += 5
    assert first_values(dataset) == [1, 2]


def test_items_come_back_with_affine_metadata_and_history(sets):
    image = MetaTensor(torch.rand(1, SIDE, SIDE, SIDE), affine=2 * torch.eye(4), meta={"name": "case"})
    chain = Compose([Flip(0), RandSpatialCrop((8, 8, 8), random_size=False)])
    item = sets.CacheDataset([image], chain, progress=False)[0]
    assert isinstance(item, MetaTensor)
    assert item.meta["name"] == "case"
    # Of what is the same every time: the rest is made in one pass, and says that it cannot be inverted.
    assert [step["class"].split(" (")[0] for step in item.applied_operations] == ["Flip", "RandSpatialCrop"]
    with pytest.raises(RuntimeError, match="applying transform") as caught:
        chain.inverse(item)
    assert re.search(r"RandSpatialCrop \(made by voxelocity.monai.*lower=False", str(caught.value.__cause__))
    whole = sets.CacheDataset([image], sets.compile(chain, lower=False), progress=False)[0]
    assert [step["class"] for step in whole.applied_operations] == ["Flip", "RandSpatialCrop"]
    item.meta["name"] = "other"
    assert sets.CacheDataset([image], chain, progress=False)[0].meta["name"] == "case"


@pytest.mark.parametrize("side", [4, SIDE])
@pytest.mark.parametrize("is_lowered_first", [True, False])
def test_a_transform_that_writes_into_the_metadata_cannot_change_what_is_kept(sets, side, is_lowered_first):
    image = MetaTensor(torch.rand(1, side, side, side), meta={"pixdim": np.ones(8)})
    # MONAI runs the zoom, as it computes in float64, and writes the spacing in place.
    zoom = RandZoom(prob=0.5, min_zoom=2.0, max_zoom=2.0, dtype=float)
    chain = Compose([RandScaleIntensity(0.1, prob=1.0), zoom] if is_lowered_first else [zoom])
    chain.set_random_state(0)
    dataset = sets.CacheDataset([image], chain, progress=False)
    found = [dataset[0] for _ in range(8)]
    spacings = {(float(item.meta["pixdim"][1]), float(item.affine[0, 0])) for item in found}
    assert spacings == {(1.0, 1.0), (0.5, 0.5)}


def test_nested_items_of_arrays_and_other_values_come_back_as_they_were(sets):
    item = {
        "image": np.random.default_rng(0).random((SIDE, SIDE, SIDE)),
        "parts": [torch.ones(SIDE**3), ("a", 1)],
        "empty": torch.zeros(0),
    }
    found = sets.CacheDataset([item], None, progress=False)[0]
    np.testing.assert_array_equal(found["image"], item["image"])
    assert torch.equal(found["parts"][0], item["parts"][0])
    assert found["parts"][1] == ("a", 1)
    assert found["empty"].shape == (0,)


def test_the_fixed_part_runs_once_an_item(sets):
    calls = []
    dataset = sets.CacheDataset([1, 2], Compose([Lambda(lambda x: calls.append(x) or x)]), progress=False)
    assert list(dataset) == list(dataset) == [1, 2]
    assert calls == [1, 2]


def test_an_index_from_the_end_finds_a_cache_that_is_shorter_than_the_data(sets):
    dataset = sets.CacheDataset([10, 11, 12, 13, 14], None, cache_num=3, progress=False)
    assert [dataset[index] for index in range(-5, 0)] == [10, 11, 12, 13, 14]
    with pytest.raises(IndexError):
        dataset[5]


def test_a_runtime_cache_keyed_by_hash_prepares_the_item_that_was_asked_for(sets):
    dataset = sets.CacheDataset([7, 7, 8, 9], None, hash_as_key=True, runtime_cache=True)
    assert list(dataset) == [7, 7, 8, 9]


def test_a_cache_that_workers_share_is_filled_by_them(sets, filled):
    dataset = sets.CacheDataset([1, 2, 3], Compose([filled(SIDE)]), runtime_cache="processes")
    loader = sets.DataLoader(dataset, batch_size=1, num_workers=2)
    assert [float(batch.flatten()[0]) for batch in loader] == [1, 2, 3]
    assert all(item is not None for item in dataset._cache)


def test_forked_workers_read_the_kept_arrays_and_change_only_their_own(sets, filled):
    chain = Compose([filled(SIDE), RandLambda(lambda values: values.add_(100))])
    dataset = sets.CacheDataset([1, 2, 3, 4], chain, progress=False, copy_cache=False)
    loader = sets.DataLoader(dataset, batch_size=1, num_workers=2)
    for _ in range(2):
        assert [float(batch.flatten()[0]) for batch in loader] == [101, 102, 103, 104]


def test_a_pickled_data_set_still_keeps_its_items_whole(sets, filled):
    import pickle

    dataset = pickle.loads(pickle.dumps(sets.CacheDataset([1, 2], Compose([filled(SIDE)]), progress=False)))
    for item in dataset:
        item += 5
    assert first_values(dataset) == [1, 2]


def test_without_memory_to_map_items_are_copied_whole(sets, filled, monkeypatch):
    monkeypatch.setattr("os.memfd_create", raising(OSError(24, "Too many open files")))
    dataset = sets.CacheDataset([1, 2], Compose([filled(SIDE)]), progress=False)
    for item in dataset:
        item += 5
    assert first_values(dataset) == [1, 2]


def test_an_item_that_cannot_be_prepared_is_an_error_of_the_constructor(sets, fails_on):
    with pytest.raises(RuntimeError, match="applying transform") as caught:
        sets.CacheDataset([1, 2], Compose([fails_on(2)]), progress=False)
    assert "scan 2 is broken" in str(caught.value.__cause__)
    assert not isinstance(caught.value, VoxelocityError)


# Without workers the others are compared in test_loader.py.
@pytest.mark.parametrize(
    ("name", "num_workers"),
    [
        ("Dataset", 2),
        ("CacheDataset", 2),
        ("PersistentDataset", 2),
        ("CacheNTransDataset", 0),
        ("LMDBDataset", 0),
        ("LMDBDataset", 2),
    ],
)
def test_random_numbers_are_those_that_monai_draws(sets, name, num_workers, tmp_path):
    import monai.data

    def patches(names, folder):
        chain = Compose([ToTensor(), RandSpatialCrop((3, 3, 3), random_size=False)])
        data = [np.arange(10.0**3).reshape(1, 10, 10, 10) + 1000 * i for i in range(4)]
        arguments = {
            "CacheDataset": {"progress": False},
            "PersistentDataset": {"cache_dir": folder},
            "CacheNTransDataset": {"cache_dir": folder, "cache_n_trans": 1},
            "LMDBDataset": {"cache_dir": folder, "progress": False, "lmdb_kwargs": {"map_size": 2**24}},
        }.get(name, {})
        torch.manual_seed(5)
        dataset = getattr(names, name)(data, chain, **arguments)
        loader = names.DataLoader(dataset, batch_size=2, num_workers=num_workers)
        return [torch.as_tensor(batch) for _ in range(2) for batch in loader]

    for ours, theirs in zip(patches(sets, tmp_path / "a"), patches(monai.data, tmp_path / "b"), strict=True):
        assert torch.equal(ours, theirs)
