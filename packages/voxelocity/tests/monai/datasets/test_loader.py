"""MONAI's loaders over these data sets: the batches that MONAI makes, whatever the sampler, and no thread left."""

from __future__ import annotations

import gc
import threading
from types import ModuleType
from typing import Any

import monai.data
import numpy as np
import pytest
import torch
from monai.data import MetaTensor, pad_list_data_collate
from monai.transforms import Compose, Lambdad, RandAffined, RandFlipd, RandSpatialCropd, ScaleIntensityd
from torch.utils.data import ConcatDataset, Subset, WeightedRandomSampler, random_split

from voxelocity.monai.difference import differences_of

KEYS = ["image", "label"]
NAMES = ["Dataset", "CacheDataset", "PersistentDataset", "SmartCacheDataset"]


def _items(num: int = 7, side: int = 10) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [
        {
            "image": MetaTensor(rng.random((2, side, side, side)).astype(np.float32)),
            "label": MetaTensor((rng.random((1, side, side, side)) > 0.5).astype(np.uint8)),
        }
        for _ in range(num)
    ]


def _chain() -> Compose:
    chain = Compose(
        [
            ScaleIntensityd("image"),
            RandSpatialCropd(KEYS, (6, 6, 6), random_size=False),
            RandFlipd(KEYS, 0.5, spatial_axis=1),
            RandAffined(KEYS, prob=0.5, rotate_range=0.3, mode=("bilinear", "nearest")),
        ]
    )
    # A loader does not seed the chain of a SmartCacheDataset.
    return chain.set_random_state(5)


def _made(names: ModuleType, name: str, folder: Any, transform: Any = None) -> Any:
    options = {"PersistentDataset": {"cache_dir": folder}, "CacheDataset": {"progress": False}}.get(name, {})
    if name == "SmartCacheDataset":
        options = {"cache_num": 4, "replace_rate": 0.5, "progress": False}
    return getattr(names, name)(_items(), _chain() if transform is None else transform, **options)


def _worst(theirs: Any, ours: Any) -> float:
    found = list(differences_of(theirs, ours))
    assert [difference.words for difference in found if difference.words] == []
    assert all(difference.largest == 0.0 for difference in found if difference.is_whole)
    return max(difference.relative for difference in found)


def _threads() -> list[str]:
    gc.collect()
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("voxelocity")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loader", ["DataLoader", "ThreadDataLoader"])
def test_batches_of_several_epochs_are_monais(sets: ModuleType, name: str, loader: str, tmp_path: Any) -> None:
    def epochs(names: ModuleType, folder: Any) -> list[Any]:
        torch.manual_seed(3)
        dataset = _made(names, name, folder)
        made = getattr(names, loader)(dataset, batch_size=3, shuffle=True, num_workers=0)
        return [batch for _ in range(3) for batch in made]

    assert _worst(epochs(monai.data, tmp_path / "a"), epochs(sets, tmp_path / "b")) < 1e-5
    assert _threads() == []


@pytest.mark.parametrize(
    "part",
    [
        lambda whole: Subset(whole, [4, 0, 5]),
        lambda whole: Subset(Subset(whole, np.array([4, 0, 5, 2])), [3, 1]),
        lambda whole: random_split(whole, [3, 4], torch.Generator().manual_seed(1))[1],
        lambda whole: whole[1:4],
        lambda whole: ConcatDataset([whole, whole]),
    ],
    ids=["subset", "subset of a subset", "split", "slice", "concatenated"],
)
def test_parts_of_a_data_set_give_monais_batches(sets: ModuleType, part: Any) -> None:
    def batches(names: ModuleType) -> list[Any]:
        torch.manual_seed(3)
        return list(names.DataLoader(part(_made(names, "CacheDataset", None)), batch_size=2, drop_last=True))

    assert _worst(batches(monai.data), batches(sets)) < 1e-5


def test_a_sampler_and_a_generator_are_followed(sets: ModuleType) -> None:
    def batches(names: ModuleType) -> list[Any]:
        dataset = _made(names, "Dataset", None)
        generator = torch.Generator().manual_seed(8)
        sampler = WeightedRandomSampler(np.arange(1.0, 8).tolist(), 9, generator=generator)
        return list(names.DataLoader(dataset, batch_size=1, sampler=sampler, generator=generator))

    assert _worst(batches(monai.data), batches(sets)) < 1e-5


def test_a_collation_of_a_persons_own_is_used(sets: ModuleType) -> None:
    def batches(names: ModuleType) -> list[Any]:
        torch.manual_seed(3)
        chain = Compose([RandSpatialCropd(KEYS, (3, 3, 3), random_size=True)])
        return list(names.DataLoader(names.Dataset(_items(), chain), batch_size=3, collate_fn=pad_list_data_collate))

    assert _worst(batches(monai.data), batches(sets)) == 0.0


def test_patches_of_different_size_are_refused_in_monais_words(sets: ModuleType) -> None:
    texts = []
    for names in (monai.data, sets):
        torch.manual_seed(3)
        chain = Compose([RandSpatialCropd("image", (3, 3, 3), random_size=True)])
        with pytest.raises(RuntimeError) as failed:
            list(names.DataLoader(names.Dataset([{"image": item["image"]} for item in _items()], chain), batch_size=3))
        texts.append(str(failed.value))
    assert "pad_list_data_collate" in texts[1]
    assert texts[0].splitlines()[0] == texts[1].splitlines()[0]


@pytest.mark.parametrize("loader", ["DataLoader", "ThreadDataLoader"])
def test_an_error_comes_where_its_batch_would_have_come(sets: ModuleType, loader: str) -> None:
    def checked(number: int) -> int:
        if number == 4:
            raise ValueError("scan 4 is broken")
        return number

    chain = Compose([Lambdad("number", checked)])
    made = getattr(sets, loader)(sets.Dataset([{"number": number} for number in range(8)], chain), batch_size=2)
    seen: list[int] = []
    with pytest.raises(RuntimeError, match="applying transform"):
        seen.extend(int(batch["number"][0]) for batch in made)
    assert seen == [0, 2]
    assert _threads() == []


@pytest.mark.parametrize("loader", ["DataLoader", "ThreadDataLoader"])
def test_a_loop_that_is_left_leaves_no_thread_and_begins_again(sets: ModuleType, loader: str) -> None:
    made = getattr(sets, loader)(_made(sets, "CacheDataset", None), batch_size=2)
    for _ in range(3):
        for batch in made:
            assert batch["image"].shape == (2, 2, 6, 6, 6)
            break
        assert _threads() == []
    assert len(list(made)) == 4


def test_a_data_set_of_a_persons_own_makes_its_items_itself(sets: ModuleType) -> None:
    class Doubled(sets.Dataset):  # type: ignore[misc,name-defined]
        def _transform(self, index: int) -> Any:
            return 2 * super()._transform(index)

    made = sets.DataLoader(Doubled([torch.ones(1, 2, 2)] * 2, Compose([])), batch_size=2)
    assert float(next(iter(made)).max()) == 2.0


@pytest.mark.parametrize("name", ["Dataset", "CacheDataset"])
def test_a_compiled_chain_gives_monais_batches(sets: ModuleType, name: str) -> None:
    def batches(names: ModuleType, transform: Any) -> list[Any]:
        torch.manual_seed(3)
        return list(names.DataLoader(_made(names, name, None, transform), batch_size=2, shuffle=True))

    assert _worst(batches(monai.data, _chain()), batches(sets, sets.compile(_chain()))) < 1e-5
