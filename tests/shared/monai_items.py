"""Items as MONAI's chains pass them, made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from monai.data.meta_tensor import MetaTensor


def make_item(
    shape: Sequence[int],
    *,
    seed: int = 0,
    num_channels: int = 1,
    image_dtype: str = "float32",
    label_dtype: str = "uint8",
    is_tracked: bool = True,
) -> dict[str, Any]:
    """An "image" of noise and a "label" of many classes, so that one voxel taken for its neighbor is seen."""
    rng = np.random.default_rng(seed)
    image = rng.normal(scale=30.0, size=(num_channels, *shape))
    label = rng.integers(0, 100, size=(1, *shape))
    plain = {
        "image": torch.from_numpy(image.clip(0 if image_dtype == "uint8" else -200, 200).astype(image_dtype)),
        "label": torch.from_numpy(label.astype(label_dtype)),
    }
    if not is_tracked:
        return {**plain, "name": "case"}
    affine = np.diag([1.5, -2.0, 3.0, 1.0])
    affine[:3, 3] = (5.0, -7.0, 11.0)
    tracked = {key: MetaTensor(value, affine=affine, meta={"spacing_mm": 1.5}) for key, value in plain.items()}
    return {**tracked, "name": "case"}
