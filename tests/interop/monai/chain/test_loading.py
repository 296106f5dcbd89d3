"""Batches made by threads: order, errors and random numbers of torch's own loader, and nothing left behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from monai.data import list_data_collate
from torch.utils.data import DataLoader

from voxelocity.interop.monai.chain.loading import Batches, batches
from voxelocity.interop.monai.lower import Sketch


class Numbers:
    """Item i is a (1, 2, 2) tensor of i, drawn when it is asked for; `bad` ones fail."""

    def __init__(self, num: int, bad: tuple[int, ...] = ()) -> None:
        self._num = num
        self._bad = bad
        self.drawn: list[int] = []
        self.num_made = 0

    def sketch(self, index: int) -> Sketch:
        self.drawn.append(index)
        if index in self._bad:
            raise ValueError(f"scan {index} is broken")
        return Sketch.of(torch.full((1, 2, 2), float(index)))

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
    return [one.name for one in threading.enumerate() if one.name.startswith("voxelocity-patches")]


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


def test_an_epoch_that_is_left_leaves_no_thread() -> None:
    for batch in _batches(Numbers(20), 3, batch_size=2):
        assert batch.shape == (2, 1, 2, 2)
        break
    gc.collect()
    assert _threads() == []


def test_an_interrupt_leaves_no_thread() -> None:
    class Interrupted(Numbers):
        def sketch(self, index: int) -> Sketch:
            if index == 5:
                raise KeyboardInterrupt
            return super().sketch(index)

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
    assert [torch.equal(one, other) for one, other in pairs] == [True] * 3
    assert dataset.num_made == 12
