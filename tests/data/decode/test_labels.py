from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.core.errors import ScanError
from voxelocity.data.decode.labels import class_indices

LABELS = np.array([[[0, 1, 2], [2, 1, 0]]])


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "f4", "f8"])
@pytest.mark.parametrize("values", [(0, 1, 2), (2, 0, 1), (0, 1, 2, 100)])
def test_class_index_is_the_place_of_the_value(dtype: str, values: tuple[int, ...]) -> None:
    indices = class_indices(LABELS.astype(dtype), values, where="here")
    assert indices.dtype == np.uint8
    assert np.array_equal(np.array(values)[indices], LABELS)


@given(
    values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=256, unique=True),
    dtype=st.sampled_from(["i4", "i8", "f8"]),
    seed=st.integers(0, 99),
)
def test_any_declared_values_come_back(values: list[int], dtype: str, seed: int) -> None:
    wanted = np.random.default_rng(seed).integers(0, len(values), (3, 4, 2)).astype(np.uint8)
    assert np.array_equal(class_indices(np.array(values)[wanted].astype(dtype), values, where="here"), wanted)


def test_all_256_values_are_told_apart_in_both_byte_types() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(8, 8, 4)
    backwards = list(range(256))[::-1]
    assert np.array_equal(class_indices(every, backwards, where="here"), 255 - every)
    signed = every.view(np.int8)
    ordered = list(range(-128, 128))
    assert np.array_equal(class_indices(signed, ordered, where="here"), (signed.astype(int) + 128).astype(np.uint8))


def test_indices_that_are_their_own_values_are_not_copied() -> None:
    labels = LABELS.astype(np.uint8)
    assert class_indices(labels, (0, 1, 2), where="here") is labels


@pytest.mark.parametrize("dtype", ["u1", "i2", "i8", "f4"])
def test_undeclared_values_are_named_and_counted(dtype: str) -> None:
    labels = LABELS.astype(dtype)
    labels[0, 0, :] = [7, 7, 9]
    with pytest.raises(
        ScanError,
        match=r"^here: the label holds values that are not declared: 7 \(2 voxels\), 9 \(1 voxels\); "
        r"declared are 0, 1, 2: add them to the labels of the data set or correct the file$",
    ):
        class_indices(labels, (0, 1, 2), where="here")


def test_long_lists_of_undeclared_values_are_cut() -> None:
    with pytest.raises(ScanError, match=r"1 \(1 voxels\), .*, 8 \(1 voxels\) and 11 more; declared are 0:"):
        class_indices(np.arange(20, dtype=np.int16).reshape(1, 4, 5), (0,), where="here")


def test_too_many_or_equal_classes_are_refused() -> None:
    with pytest.raises(ScanError, match=r"here: 257 label values are declared, 257 of them distinct; at most 256"):
        class_indices(LABELS, range(257), where="here")
    with pytest.raises(ScanError, match=r"here: 3 label values are declared, 2 of them distinct"):
        class_indices(LABELS, (0, 1, 1), where="here")
