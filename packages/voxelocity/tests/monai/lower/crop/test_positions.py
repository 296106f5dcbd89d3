"""Voxels to center crops on: the positions that MONAI lists, without the list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.transforms.utils import map_binary_to_indices, map_classes_to_indices

from voxelocity.monai.lower.crop.positions import FlatIndices, binary_positions, class_positions

LABELS = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.float32, torch.float64]
IMAGES = [torch.uint8, torch.int16, torch.float16, torch.float32, torch.float64]


@st.composite
def _voxels(draw: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    shape = draw(st.lists(st.integers(1, 6), min_size=2, max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    label = torch.randint(0, draw(st.integers(1, 4)), (draw(st.integers(1, 3)), *shape), generator=generator)
    image = torch.randint(-3, 4, (draw(st.integers(1, 2)), *shape), generator=generator).abs() * 0.1
    order = [0, *torch.randperm(len(shape), generator=generator).add(1).tolist()]
    label, image = label.permute(order), image.permute(order)  # as caches lay them out
    dtype = draw(st.sampled_from(IMAGES))
    image = (image if dtype.is_floating_point else image * 10).to(dtype)
    return label.to(draw(st.sampled_from(LABELS))), draw(st.sampled_from([None, image]))


def _all(positions: FlatIndices) -> list[int]:
    return [positions[number] for number in range(len(positions))]


@given(voxels=_voxels(), threshold=st.sampled_from([0.0, 0.1, 0.2, 1, 2.5, -1.0]))
def test_foreground_and_background_are_where_monai_finds_them(
    voxels: tuple[torch.Tensor, torch.Tensor | None], threshold: float
) -> None:
    label, image = voxels
    theirs = map_binary_to_indices(label, image, threshold)
    ours = binary_positions(label, image, threshold)
    assert [_all(positions) for positions in ours] == [indices.tolist() for indices in theirs]


@given(
    voxels=_voxels(),
    threshold=st.sampled_from([0.0, 0.1, 2.5]),
    num_classes=st.integers(1, 5) | st.just(20),
    at_most=st.sampled_from([None, 0, 1, 2, 5]),
)
def test_classes_are_where_monai_finds_them(
    voxels: tuple[torch.Tensor, torch.Tensor | None],
    threshold: float,
    num_classes: int,
    at_most: int | None,
) -> None:
    label, image = voxels
    theirs = map_classes_to_indices(label, num_classes, image, threshold, at_most)
    ours = [positions.at_most(at_most) for positions in class_positions(label, num_classes, image, threshold)]
    assert [_all(positions) for positions in ours] == [indices.tolist() for indices in theirs]


def test_background_of_a_uint8_tensor_is_everywhere_and_that_of_an_array_is_not() -> None:
    label = torch.tensor([[[0, 1], [2, 0]]], dtype=torch.uint8)
    for values, is_array in ((label, False), (label.numpy(), True)):
        theirs = map_binary_to_indices(values)
        ours = binary_positions(label, None, 0.0, is_array=is_array)
        assert [_all(positions) for positions in ours] == [indices.tolist() for indices in theirs]


def test_nan_is_foreground_of_no_class_and_above_no_threshold_as_for_monai() -> None:
    label = torch.tensor([[[np.nan, 0.0, 1.0, -1.0, 0.5, 7.0]]])
    image = torch.tensor([[[1.0, np.nan, 1.0, 1.0, 1.0, 1.0]]])
    assert [_all(positions) for positions in binary_positions(label, image, 0.0)] == [
        indices.tolist() for indices in map_binary_to_indices(label, image, 0.0)
    ]
    assert [_all(positions) for positions in class_positions(label, 2, None, 0.0)] == [[1], [2]]


def test_a_place_beyond_the_last_is_refused() -> None:
    foreground, _ = binary_positions(torch.ones(1, 2, 2, 2), None, 0.0)
    with pytest.raises(IndexError, match="place 8 of 8 was asked for"):
        foreground[8]
