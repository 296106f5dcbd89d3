"""Batches made by threads: order, errors and random numbers of torch's own loader, voxels of MONAI's collation."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from monai.data import list_data_collate
from monai.data.meta_tensor import MetaTensor
from monai.transforms import Compose, EnsureTyped, RandFlipd, RandRotate90d, RandSpatialCropSamplesd, ScaleIntensityd
from torch.utils.data import DataLoader

from shared.lowered import metadata_tracked
from shared.small_lowerings import SMALL
from voxelocity.monai.chain.loading import Batches, batches, start_batch
from voxelocity.monai.difference import differences_of
from voxelocity.monai.lower import Lowerings, PendingTensor, lowerings
from voxelocity.monai.lower.pending import finish
from voxelocity.monai.lower.walk import Walker


class Numbers:
    """Item i is a (1, 2, 2) tensor of i, drawn when it is asked for; `bad` ones fail."""

    def __init__(self, num: int, bad: tuple[int, ...] = ()) -> None:
        self._num = num
        self._bad = bad
        self.drawn: list[int] = []
        self.num_made = 0

    def defer(self, index: int) -> PendingTensor:
        self.drawn.append(index)
        if index in self._bad:
            raise ValueError(f"scan {index} is broken")
        return PendingTensor.of(torch.full((1, 2, 2), float(index)))

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1, 2, 2), float(index))

    def count_made(self, seconds: float) -> None:
        self.num_made += 1

    def __len__(self) -> int:
        return self._num


def _loader(dataset: Numbers, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, collate_fn=list_data_collate, **options)  # type: ignore[arg-type]


def _batches(dataset: Numbers, num_ahead: int = 0, **options: Any) -> Batches:
    return batches(_loader(dataset, **options), dataset, num_threads=2, num_ahead=num_ahead)


def _numbers(epoch: Iterator[torch.Tensor]) -> list[list[float]]:
    return [batch[:, 0, 0, 0].tolist() for batch in epoch]


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("voxelocity-patches")]


@pytest.mark.parametrize("num_ahead", [0, 1, 5])
@pytest.mark.parametrize("drop_last", [False, True])
def test_order_and_random_numbers_are_those_of_torch(num_ahead: int, drop_last: bool) -> None:
    found = []
    for is_ours in (False, True):
        generator = torch.Generator().manual_seed(3)
        options = {"batch_size": 3, "shuffle": True, "generator": generator, "drop_last": drop_last}
        dataset = Numbers(10)
        epochs = [_batches(dataset, num_ahead, **options) if is_ours else iter(_loader(dataset, **options))]
        found.append((_numbers(epochs[0]), generator.get_state().tolist()))
    assert found[0] == found[1]
    assert _threads() == []


def test_what_is_drawn_between_the_loader_and_its_first_batch_is_the_same() -> None:
    found = []
    for is_ours in (False, True):
        torch.manual_seed(5)
        dataset = Numbers(6)
        options = {"batch_size": 2, "shuffle": True}
        epoch = _batches(dataset, **options) if is_ours else iter(_loader(dataset, **options))
        between = float(torch.rand(1))
        found.append((between, _numbers(epoch), float(torch.rand(1))))
    assert found[0] == found[1]


@pytest.mark.parametrize("num_ahead", [0, 2])
def test_an_error_is_raised_where_its_batch_would_have_come_and_the_next_one_is_given(num_ahead: int) -> None:
    epoch = _batches(Numbers(8, bad=(3,)), num_ahead, batch_size=2)
    assert next(epoch)[:, 0, 0, 0].tolist() == [0, 1]
    with pytest.raises(ValueError, match="scan 3 is broken"):
        next(epoch)
    assert _numbers(epoch) == [[4, 5], [6, 7]]
    assert _threads() == []


def test_nothing_is_drawn_ahead_unless_asked_for() -> None:
    for num_ahead, drawn in ((0, [0, 1]), (1, [0, 1, 2, 3])):
        dataset = Numbers(8)
        epoch = _batches(dataset, num_ahead, batch_size=2)
        next(epoch)
        assert dataset.drawn == drawn
        epoch.close()


def test_an_interrupt_leaves_no_thread() -> None:
    class Interrupted(Numbers):
        def defer(self, index: int) -> PendingTensor:
            if index == 5:
                raise KeyboardInterrupt
            return super().defer(index)

    def train() -> None:
        for _ in _batches(Interrupted(20), 1, batch_size=2):
            pass

    with pytest.raises(KeyboardInterrupt):
        train()
    gc.collect()
    assert _threads() == []


def test_a_closed_epoch_gives_no_more() -> None:
    epoch = _batches(Numbers(20), 3, batch_size=2)
    next(epoch)
    epoch.close()
    assert list(epoch) == []


def test_two_epochs_at_once_are_each_whole() -> None:
    dataset = Numbers(6)
    pairs = list(zip(_batches(dataset, 1, batch_size=2), _batches(dataset, 1, batch_size=2), strict=True))
    assert [torch.equal(first, second) for first, second in pairs] == [True] * 3
    assert dataset.num_made == 12


def _items(num: int, side: int = 4) -> list[dict[str, Any]]:
    rng = np.random.default_rng(2)
    return [
        {
            "image": MetaTensor(rng.normal(size=(2, side, side, side)).astype(np.float32), meta={"id": n}),
            "label": MetaTensor(rng.integers(0, 3, size=(1, side, side, side)).astype(np.uint8)),
            "number": n,
        }
        for n in range(num)
    ]


def _both(transforms: list[Any], items: list[Any], known: Lowerings = SMALL) -> tuple[Any, Any]:
    chain = Compose(transforms)
    walker = Walker(chain.transforms, lowerings=known)
    chain.set_random_state(3)
    theirs = list_data_collate([finish(walker.defer(item)) for item in items])
    chain.set_random_state(3)
    with ThreadPoolExecutor(2) as pool:
        ours = start_batch([walker.defer(item) for item in items], pool).result()
    return theirs, ours


def _turns() -> list[Any]:
    return [RandFlipd(["image", "label"], 0.5, spatial_axis=1), RandRotate90d(["image", "label"], 0.5)]


@pytest.mark.parametrize("is_tracked", [True, False])
def test_a_batch_is_what_monai_collates(is_tracked: bool) -> None:
    with metadata_tracked(is_tracked):
        theirs, ours = _both(_turns(), _items(5))
    assert type(theirs["image"]) is type(ours["image"]) is (MetaTensor if is_tracked else torch.Tensor)
    assert [(difference.largest, difference.words) for difference in differences_of(theirs, ours)] == [(0.0, "")] * 3
    if is_tracked:
        assert ours["image"].is_batch
        assert ours["image"].spatial_ndim == theirs["image"].spatial_ndim
        assert ours["image"].applied_operations == theirs["image"].applied_operations


def test_samples_of_several_items_stand_one_after_the_other() -> None:
    crops = RandSpatialCropSamplesd(["image", "label"], 2, 3, random_size=False)
    theirs, ours = _both([crops, *_turns()], _items(2))
    assert ours["image"].shape == (6, 2, 2, 2, 2)
    assert all(difference.largest == 0.0 and not difference.words for difference in differences_of(theirs, ours))


def test_intensities_are_those_of_the_items_if_the_batch_has_another_dtype() -> None:
    chain = [*_turns(), ScaleIntensityd("image"), EnsureTyped("image", dtype=torch.float64)]
    theirs, ours = _both(chain, _items(3), lowerings())
    assert ours["image"].dtype == torch.float64
    assert all(difference.largest == 0.0 and not difference.words for difference in differences_of(theirs, ours))


def test_values_that_no_transform_takes_stay_what_they_are() -> None:
    items = [{**item, "plain": torch.ones(1, 4, 4, 4)} for item in _items(2)]
    theirs, ours = _both([RandSpatialCropSamplesd("image", 2, 3, random_size=False)], items, lowerings())
    assert type(ours["plain"]) is type(theirs["plain"]) is torch.Tensor
    assert all(difference.largest == 0.0 and not difference.words for difference in differences_of(theirs, ours))


def test_bare_tensors_are_collated_too() -> None:
    items = [item["image"] for item in _items(3)]
    with ThreadPoolExecutor(2) as pool:
        ours = start_batch([PendingTensor.of(item) for item in items], pool).result()
    assert all(
        difference.largest == 0.0 and not difference.words
        for difference in differences_of(list_data_collate(items), ours)
    )


def test_items_that_nobody_lowered_are_collated_as_monai_does() -> None:
    theirs, ours = _both([EnsureTyped(["image", "label"])], _items(3))
    assert all(difference.largest == 0.0 and not difference.words for difference in differences_of(theirs, ours))


def test_an_error_in_making_is_raised_where_the_batch_is_asked_for() -> None:
    pending = PendingTensor.of(_items(1)[0]["image"])
    pending.steps.append("no step")  # type: ignore[arg-type]
    with ThreadPoolExecutor(2) as pool:
        batch = start_batch([{"image": pending}], pool)
        with pytest.raises(AttributeError):
            batch.result()
