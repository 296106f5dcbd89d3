from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor


def _assert_same(ours: Any, theirs: Any, *, rtol: float = 0.0, atol: float = 0.0, where: str = "item") -> None:
    assert type(ours) is type(theirs), f"{where}: {type(ours)} is not {type(theirs)}"
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype, where
        one, other = (tensor.as_subclass(torch.Tensor).numpy() for tensor in (ours, theirs))
        is_value = theirs.is_floating_point() and isinstance(theirs, MetaTensor)
        np.testing.assert_allclose(
            one, other, rtol=rtol if is_value else 0.0, atol=atol if is_value else 0.0, err_msg=where, strict=True
        )
        if isinstance(theirs, MetaTensor):
            _assert_same(
                dict(sorted(vars(ours).items())), dict(sorted(vars(theirs).items())), where=f"{where}.__dict__"
            )
    elif isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(ours, theirs, err_msg=where, strict=True)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key, value in theirs.items():
            _assert_same(ours[key], value, rtol=rtol, atol=atol, where=f"{where}[{key!r}]")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for index, (our_item, their_item) in enumerate(zip(ours, theirs, strict=True)):
            _assert_same(our_item, their_item, rtol=rtol, atol=atol, where=f"{where}[{index}]")
    else:
        assert ours == theirs or (isinstance(theirs, float) and math.isnan(theirs) and math.isnan(ours)), where


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., None]:
    """Values within the tolerances, and everything else that a result carries equal: types, dtypes, keys, metadata."""
    return _assert_same


@pytest.fixture(scope="session")
def copied() -> Callable[[Any], Any]:
    """A copy of an item, its applied operations and nested metadata shared with nobody."""
    import copy

    return copy.deepcopy


@pytest.fixture(scope="session")
def make_affine() -> Callable[..., np.ndarray]:
    """An affine with these steps, axes exchanged and reversed, turned about z where an angle is given."""

    def make(steps: Any = (1, 1, 1), order: Any = (0, 1, 2), flips: Any = (0, 0, 0), angle: float = 0.0) -> np.ndarray:
        affine = np.eye(4)
        affine[:3, :3] = np.eye(3)[:, list(order)] * np.where(flips, -1.0, 1.0) * np.array(steps, float)
        turn = np.eye(4)
        turn[:2, :2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        affine = turn @ affine
        affine[:3, 3] = (-30.5, 12.25, 7.0)
        return affine

    return make


@pytest.fixture(scope="session")
def make_image() -> Callable[..., MetaTensor]:
    """Noise about zero, or small whole numbers for integer types, with the metadata of a NIfTI file."""

    def make(shape: Any, affine: Any = None, dtype: torch.dtype = torch.float32, seed: int = 0) -> MetaTensor:
        rng = np.random.default_rng(seed)
        values = rng.normal(0, 100, shape) if dtype.is_floating_point else rng.integers(0, 5, shape)
        header = dict(nib.Nifti1Header())
        return MetaTensor(
            torch.as_tensor(values).to(dtype),
            affine=torch.as_tensor(np.eye(4) if affine is None else affine, dtype=torch.float64),
            meta={"pixdim": header["pixdim"], "filename_or_obj": "a.nii.gz", "original_channel_dim": 0},
        )

    return make
