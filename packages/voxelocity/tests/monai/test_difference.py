"""Two results compared: what differs is found and reported, what is equal is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import RandFlip

from parity.compare import compare
from voxelocity.monai.difference import differences_of
from voxelocity.monai.lower import Lowering


def _words(theirs: Any, ours: Any) -> list[tuple[str, str]]:
    return [(difference.key, difference.words) for difference in differences_of(theirs, ours) if difference.words]


def test_bfloat16_which_numpy_lacks_is_compared() -> None:
    half = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    assert _words(half, half) == []
    assert _words(half, half.float()) == [("", "bfloat16 and float32")]
    (found,) = differences_of(half, half + 1)
    assert found.largest == 1.0


def _image(**meta: Any) -> MetaTensor:
    return MetaTensor(torch.ones(1, 2, 2), affine=torch.eye(4), meta=meta)


@pytest.mark.parametrize(
    "value",
    [
        _image(slope=np.array(np.nan, np.float32), dim=float("nan"), nested={"a": np.arange(3), "b": [float("nan")]}),
        {"meta": {"descrip": np.array(b"text"), "empty": np.zeros(0), "complex": np.array([1j])}},
        [None, "text", (1, 2), torch.tensor(3), np.float32("nan")],
    ],
    ids=["metadata that are not numbers", "texts in arrays", "other values"],
)
def test_equal_results_have_no_difference(value: Any) -> None:
    assert all(difference.largest == 0.0 and difference.words == "" for difference in differences_of(value, value))


@pytest.mark.parametrize(
    ("theirs", "ours", "key", "words"),
    [
        ({"a": 1}, {"b": 1}, "", "keys ['a'] and ['b']"),
        ([1, 2], [1], "", "2 and 1 samples"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "a.1", "2 and 3"),
        ({"a": 1}, {"a": 1.0}, "a", "1 and 1.0"),
        ({"a": torch.ones(2)}, {"a": np.ones(2, np.float32)}, "a", "Tensor and ndarray"),
        (torch.ones(2), torch.ones(2).double(), "", "float32 and float64"),
        (torch.ones(2), torch.ones(3), "", "shapes (2,) and (3,)"),
        (np.array(["a"]), np.array(["b"]), "", "array(['a'], dtype='<U1') and array(['b'], dtype='<U1')"),
    ],
)
def test_what_differs_besides_the_values_is_reported(theirs: Any, ours: Any, key: str, words: str) -> None:
    assert _words(theirs, ours) == [(key, words)]


def _metadata(theirs: Any, ours: Any) -> str:
    (found,) = differences_of(theirs, ours)
    assert found.words == ""
    return found.metadata


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        (_image(number=1), _image(number=2), "metadata 'number': 1 and 2"),
        (_image(number=1), _image(), "metadata ['number', 'space'] and ['space']"),
        (_image(d={"a": np.nan}), _image(d={"a": 1.0}), "metadata 'd': {'a': nan} and {'a': 1.0}"),
    ],
)
def test_metadata_are_distinguished_from_what_counts(theirs: Any, ours: Any, words: str) -> None:
    assert _metadata(theirs, ours) == words


def test_roundings_in_the_metadata_are_no_difference() -> None:
    spacing = np.array([1.0, 0.7, 0.0, 1.0], np.float32)
    assert _metadata(_image(pixdim=spacing), _image(pixdim=np.nextafter(spacing, spacing * 2))) == ""
    assert "is not the spacing" not in _metadata(_image(pixdim=spacing), _image(pixdim=spacing * 1.001))
    right = np.array([1.0, 1.0, 1.0, 1.0], np.float32)
    assert "MONAI's differs from the spacing of its own affine; ours does not" in _metadata(
        _image(pixdim=spacing), _image(pixdim=right)
    )


def test_affines_are_compared() -> None:
    moved = MetaTensor(torch.ones(1, 2, 2), affine=2 * torch.eye(4))
    assert _words(_image(), moved)[0][1].startswith("affines [[1.0, 0.0")


def test_values_are_measured_against_the_largest() -> None:
    (found,) = differences_of(torch.tensor([0.0, -4.5]), torch.tensor([1.0, -4.5]))
    assert (found.largest, found.scale, found.share, found.is_whole) == (1.0, 4.5, 0.5, False)
    assert found.relative == pytest.approx(1 / 4.5)
    (labels,) = differences_of(torch.tensor([0, 2, 2]), torch.tensor([0, 2, 1]))
    assert labels.is_whole
    assert labels.share == pytest.approx(1 / 3)


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_a_difference_next_to_an_infinite_value_is_measured_against_the_finite_ones(odd: float) -> None:
    (found,) = differences_of(torch.tensor([odd, 2.0]), torch.tensor([odd, 7.0]))
    assert (found.largest, found.scale, found.relative) == (5.0, 2.0, 2.5)


def test_what_is_no_number_on_one_side_alone_is_an_infinite_difference() -> None:
    nan, one = torch.tensor([np.nan, 1.0]), torch.tensor([1.0, 1.0])
    assert [next(iter(differences_of(*pair))).largest for pair in ((nan, one), (one, nan), (nan, nan))] == [
        np.inf,
        np.inf,
        0.0,
    ]


def test_a_generator_that_is_drawn_from_differently_is_reported() -> None:
    data = torch.rand(1, 3, 3)
    flip = RandFlip(1.0)
    flip.set_random_state(1)
    lowering = Lowering(apply=lambda transform, value: value.flip((1, 2)))
    theirs, ours, differences = compare(flip, lowering, data)
    assert torch.equal(torch.as_tensor(theirs), ours)
    assert [(difference.key, difference.words) for difference in differences if difference.key == "R"] == [
        ("R", "drawn from differently")
    ]
