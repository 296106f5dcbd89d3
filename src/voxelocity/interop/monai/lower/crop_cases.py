"""Cases of the parity table: crops, pads, moves, casts and dropout."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import monai.transforms as mt
import numpy as np
import torch
from monai.transforms.utils import map_binary_to_indices, map_classes_to_indices

from voxelocity.interop.monai.parity_cases import Item, ParityCase, item_of

_KEYS = ("image", "label")
_SIZE = (96, 96, 96)

_scan: Callable[[int], Item] = functools.partial(item_of, shape=(144, 128, 112))
"""Larger than the patch."""
_patch: Callable[[int], Item] = functools.partial(item_of, shape=_SIZE)
_slim: Callable[[int], Item] = functools.partial(item_of, shape=(101, 90, 57), num_channels=2, dtype=np.int16)
"""Odd sides, some below the patch's, and integers."""
_plane: Callable[[int], Item] = functools.partial(item_of, shape=(320, 288))


def _with_indices(seed: int) -> Item:
    item = _scan(seed)
    foreground, background = map_binary_to_indices(np.asarray(item["label"]))
    return item | {"label_fg_indices": foreground, "label_bg_indices": background}


def _with_class_indices(seed: int) -> Item:
    item = _scan(seed)
    return item | {"label_cls_indices": map_classes_to_indices(np.asarray(item["label"]), 3)}


def _nested(seed: int) -> Item:
    return {"of": _patch(seed)}


def _cases(
    transform: type, *tried: tuple[Callable[[int], Item], dict[str, Any]], tolerance: float = 0.0
) -> list[ParityCase]:
    return [
        ParityCase(transform=transform, arguments={"keys": _KEYS, **arguments}, item=item, tolerance=tolerance)
        for item, arguments in tried
    ]


_ABOUT = {"label_key": "label", "spatial_size": _SIZE, "num_samples": 2}

_CROPS = [
    *_cases(mt.SpatialCropd, (_scan, {"roi_center": (70, 60, 50), "roi_size": _SIZE})),
    *_cases(mt.SpatialCropd, (_slim, {"roi_start": (5, -3, 8), "roi_end": (80, 85, 300)})),
    *_cases(mt.CenterSpatialCropd, (_scan, {"roi_size": _SIZE}), (_slim, {"roi_size": (64, -1, 64)})),
    *_cases(mt.CenterScaleCropd, (_scan, {"roi_scale": (0.7, 0.5, 0.9)})),
    *_cases(mt.RandSpatialCropd, (_scan, {"roi_size": _SIZE}), (_slim, {"roi_size": (33, 33, 9), "random_size": True}),
            (_plane, {"roi_size": (96, 96)})),
    *_cases(mt.RandScaleCropd, (_scan, {"roi_scale": 0.6, "max_roi_scale": 0.9, "random_size": True})),
    *_cases(mt.RandSpatialCropSamplesd, (_scan, {"roi_size": _SIZE, "num_samples": 2})),
    *_cases(mt.RandCropByPosNegLabeld, (_scan, _ABOUT),
            (_scan, _ABOUT | {"image_key": "image", "image_threshold": 30.0, "pos": 2, "neg": 1}),
            (_with_indices, _ABOUT | {"fg_indices_key": "label_fg_indices", "bg_indices_key": "label_bg_indices"}),
            (_slim, _ABOUT | {"allow_smaller": True})),
    *_cases(mt.RandCropByLabelClassesd, (_scan, _ABOUT | {"num_classes": 3, "ratios": [1, 2, 3]}),
            (_with_class_indices, _ABOUT | {"num_classes": 3, "indices_key": "label_cls_indices"})),
    *_cases(mt.RandWeightedCropd, (_scan, {"w_key": "image", "spatial_size": _SIZE, "num_samples": 2})),
]  # fmt: skip

_PADS = [
    *_cases(mt.SpatialPadd, (_slim, {"spatial_size": _SIZE}), (_plane, {"spatial_size": (384, 288), "value": 7})),
    *_cases(mt.BorderPadd, (_slim, {"spatial_border": (3, 0, 20), "value": -5})),
    *_cases(mt.DivisiblePadd, (_slim, {"k": 16, "method": "end"})),
    *_cases(mt.ResizeWithPadOrCropd, (_slim, {"spatial_size": _SIZE}), (_scan, {"spatial_size": _SIZE})),
]

_MOVES = [
    *_cases(mt.Flipd, (_patch, {"spatial_axis": (0, 2)}), (_plane, {})),
    *_cases(mt.RandFlipd, (_patch, {"prob": 0.5, "spatial_axis": 2}), (_slim, {"prob": 1.0})),
    *_cases(mt.RandAxisFlipd, (_patch, {"prob": 0.5}), (_plane, {"prob": 1.0})),
    *_cases(mt.Rotate90d, (_slim, {"k": 3, "spatial_axes": (0, 2)})),
    *_cases(mt.RandRotate90d, (_patch, {"prob": 0.5}), (_slim, {"prob": 1.0, "spatial_axes": (1, 2)})),
]

_CASTS = [
    *_cases(mt.EnsureTyped, (_slim, {"dtype": (torch.float32, None)})),
    *_cases(mt.CastToTyped, (_slim, {"dtype": (np.float32, torch.int64)})),
    *_cases(mt.ToTensord, (_patch, {})),
    *_cases(mt.ToDeviced, (_patch, {"device": "cpu"})),
    *_cases(mt.CopyItemsd, (_patch, {"times": 1})),
    *_cases(mt.SelectItemsd, (_patch, {})),
    *_cases(mt.Identityd, (_patch, {})),
    ParityCase(transform=mt.DeleteItemsd, arguments={"keys": "case"}, item=_patch),
    ParityCase(transform=mt.FlattenSubKeysd, arguments={"keys": "of", "prefix": "a"}, item=_nested),
]  # fmt: skip

_HOLES = {"holes": 6, "spatial_size": (20, 20, 20), "prob": 1.0}

_DROPOUT = [
    ParityCase(
        transform=mt.RandCoarseDropoutd, arguments={"keys": keys, **_HOLES, **arguments}, item=item, tolerance=1e-6
    )
    for keys, item, arguments in (
        ("image", _patch, {"fill_value": 0}),
        ("image", _patch, {"max_holes": 9, "max_spatial_size": (40, 40, 40)}),
        ("image", _patch, {"fill_value": (-1.0, 1.0), "dropout_holes": False}),
        (_KEYS, _slim, {"fill_value": 0}),
    )
]

CASES: tuple[ParityCase, ...] = (*_CROPS, *_PADS, *_MOVES, *_CASTS, *_DROPOUT)
