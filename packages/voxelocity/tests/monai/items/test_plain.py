"""Prepared items as plain data and back."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.utils.enums import SpaceKeys

from voxelocity.monai.difference import differences_of
from voxelocity.monai.items.plain import NotPlainError, from_plain, to_plain


def _through_a_file(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(to_plain(value), file)
    file.seek(0)
    return from_plain(torch.load(file, weights_only=True))


def _image() -> MetaTensor:
    meta = {"pixdim": np.arange(8, dtype=np.float32), "scl_slope": np.array(np.nan, np.float32), "space": SpaceKeys.RAS}
    return MetaTensor(
        torch.rand(1, 3, 4, 5),
        affine=2 * torch.eye(4, dtype=torch.float64),
        meta={**meta, "qform_code": np.int16(1), "file": "a.nii"},
        applied_operations=[{"class": "Flip", "id": 3, "extra_info": {"sizes": (1, 2)}}],
    )


@pytest.mark.parametrize(
    "value",
    [
        {"image": _image(), "number": 3, ("a", 1): None},
        [np.arange(4, dtype=">i2"), np.array(["left", ""]), np.array(b"n+1"), np.str_(""), np.float16(2.5)],
        (1, 2.5, 1j, True, "text", b"bytes", {1, 2}, frozenset("a"), torch.Size([1, 2]), torch.float16),
        [Path("/data/scan.nii"), torch.tensor([1, 65535], dtype=torch.uint16), np.zeros((0, 3)), np.array(7)],
        {"list": [], "tuple": (), "list in a tuple": ([("dict", "array")],)},
    ],
    ids=["image", "arrays", "values", "others", "empty ones and names of kinds"],
)
def test_what_is_written_is_read_with_every_type(value: Any) -> None:
    back = _through_a_file(value)
    assert _types(back) == _types(value)
    assert [
        difference.words for difference in differences_of([value], [back]) if difference.words or difference.largest
    ] == []


def _types(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _types(part) for name, part in value.items()}
    if isinstance(value, MetaTensor):
        return (MetaTensor, value.dtype, _types(value.meta), value.applied_operations, value.is_batch)
    if isinstance(value, list | tuple):
        return (type(value), [_types(part) for part in value])
    return (type(value), getattr(value, "dtype", None), getattr(value, "shape", None))


def test_a_part_of_a_large_tensor_is_written_alone() -> None:
    whole = torch.rand(100, 100)
    plain = to_plain({"a": whole[:2], "b": MetaTensor(whole)[:2]})
    assert plain[1][0][1].untyped_storage().nbytes() == 4 * 200
    assert plain[1][1][1][1].untyped_storage().nbytes() == 4 * 200


def test_voxels_are_not_copied_when_they_are_read() -> None:
    plain = to_plain([torch.rand(5), np.ones(5), _image()])
    read = from_plain(plain)
    assert read[0] is plain[1][0]
    assert read[1].ctypes.data == plain[1][1][1].data_ptr()
    assert read[2].data_ptr() == plain[1][2][1].data_ptr()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            {"case": {"reader": io.BytesIO()}},
            r"item\['case'\]\['reader'\] is a _io.BytesIO, and files hold only plain data",
        ),
        ([np.array([None])], r"item\[0\] is a numpy.ndarray"),
        (MetaTensor(torch.zeros(1), meta={"o": print}), r"item.meta\['o'\] is a builtins.builtin_function_or_method"),
    ],
)
def test_an_object_is_refused_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(NotPlainError, match=words):
        to_plain(value)
