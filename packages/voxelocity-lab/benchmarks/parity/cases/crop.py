"""Crops, pads, flips and turns, casts, changes of items, and coarse dropout."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import monai.transforms as mt
import numpy as np
import torch
from monai.transforms.utils import map_binary_to_indices, map_classes_to_indices

from parity.case import Item, ParityCase, cases_of, item_of, scaled

Make = Callable[[int], Item]


def cases(side: int) -> Iterator[ParityCase]:
    """All of them, for patches of this many voxels a side."""
    size = (side, side, side)
    scan: Make = functools.partial(item_of, shape=scaled(side, 144, 128, 112))
    patch: Make = functools.partial(item_of, shape=size)
    # Some sides below the patch's, and integers.
    slim: Make = functools.partial(item_of, shape=scaled(side, 101, 90, 57), num_channels=2, dtype=np.int16)
    plane: Make = functools.partial(item_of, shape=scaled(side, 320, 288))
    yield from _crops(side, size, scan, slim, plane)
    yield from _crops_about(size, scan, slim)
    yield from _pads(side, size, scan, slim, plane)
    yield from _moves(patch, slim, plane)
    yield from _casts(patch, slim)
    yield from _dropouts(side, patch, slim)


def _with_indices(scan: Make, seed: int) -> Item:
    item = scan(seed)
    foreground, background = map_binary_to_indices(np.asarray(item["label"]))
    return item | {"label_fg_indices": foreground, "label_bg_indices": background}


def _with_class_indices(scan: Make, seed: int) -> Item:
    item = scan(seed)
    return item | {"label_cls_indices": map_classes_to_indices(np.asarray(item["label"]), 3)}


def _nested(patch: Make, seed: int) -> Item:
    return {"of": patch(seed)}


def _crops(side: int, size: tuple[int, ...], scan: Make, slim: Make, plane: Make) -> Iterator[ParityCase]:
    start, end = scaled(side, 5, -3, 8), scaled(side, 80, 85, 300)
    far = {"roi_scale": 0.6, "max_roi_scale": 0.9, "random_size": True}
    yield from cases_of(mt.SpatialCropd, (scan, {"roi_center": scaled(side, 70, 60, 50), "roi_size": size}),
                        (slim, {"roi_start": start, "roi_end": end}))  # fmt: skip
    yield from cases_of(mt.CenterSpatialCropd, (scan, {"roi_size": size}),
                        (slim, {"roi_size": (side * 2 // 3, -1, side * 2 // 3)}))  # fmt: skip
    yield from cases_of(mt.CenterSpatialCropd, (scan, {"roi_size": -1}))
    yield from cases_of(mt.CenterScaleCropd, (scan, {"roi_scale": (0.7, 0.5, 0.9)}))
    yield from cases_of(mt.RandSpatialCropd, (scan, {"roi_size": size}),
                        (slim, {"roi_size": scaled(side, 33, 33, 9), "random_size": True}),
                        (plane, {"roi_size": size[:2]}))  # fmt: skip
    yield from cases_of(mt.RandScaleCropd, (scan, far))
    yield from cases_of(mt.RandSpatialCropSamplesd, (scan, {"roi_size": size, "num_samples": 2}))


def _crops_about(size: tuple[int, ...], scan: Make, slim: Make) -> Iterator[ParityCase]:
    """Crops about voxels of a kind."""
    about = {"label_key": "label", "spatial_size": size, "num_samples": 2}
    of_classes = about | {"num_classes": 3}
    indexed = functools.partial(_with_indices, scan)
    indexed_by_class = functools.partial(_with_class_indices, scan)
    yield from cases_of(mt.RandCropByPosNegLabeld, (scan, about),
                        (scan, about | {"image_key": "image", "image_threshold": 30.0, "pos": 2, "neg": 1}),
                        (indexed, about | {"fg_indices_key": "label_fg_indices", "bg_indices_key": "label_bg_indices"}),
                        (slim, about | {"allow_smaller": True}))  # fmt: skip
    yield from cases_of(mt.RandCropByLabelClassesd, (scan, of_classes | {"ratios": [1, 2, 3]}),
                        (indexed_by_class, of_classes | {"indices_key": "label_cls_indices"}))  # fmt: skip
    yield from cases_of(mt.RandWeightedCropd, (scan, {"w_key": "image", "spatial_size": size, "num_samples": 2}))


def _pads(side: int, size: tuple[int, ...], scan: Make, slim: Make, plane: Make) -> Iterator[ParityCase]:
    yield from cases_of(mt.Padd, (slim, {"padder": mt.SpatialPad(size)}))
    yield from cases_of(mt.SpatialPadd, (slim, {"spatial_size": size}),
                        (plane, {"spatial_size": scaled(side, 384, 288), "value": 7}))  # fmt: skip
    yield from cases_of(mt.BorderPadd, (slim, {"spatial_border": (3, 0, 20), "value": -5}))
    yield from cases_of(mt.DivisiblePadd, (slim, {"k": 16, "method": "end"}), (scan, {"k": 1}))
    yield from cases_of(mt.ResizeWithPadOrCropd, (slim, {"spatial_size": size}), (scan, {"spatial_size": size}))


def _moves(patch: Make, slim: Make, plane: Make) -> Iterator[ParityCase]:
    yield from cases_of(mt.Flipd, (patch, {"spatial_axis": (0, 2)}), (plane, {}))
    yield from cases_of(mt.RandFlipd, (patch, {"prob": 0.5, "spatial_axis": 2}), (slim, {"prob": 1.0}))
    yield from cases_of(mt.RandAxisFlipd, (patch, {"prob": 0.5}), (plane, {"prob": 1.0}))
    yield from cases_of(mt.Rotate90d, (slim, {"k": 3, "spatial_axes": (0, 2)}), (slim, {"k": 4}))
    yield from cases_of(mt.RandRotate90d, (patch, {"prob": 0.5}), (slim, {"prob": 1.0, "spatial_axes": (1, 2)}))


def _casts(patch: Make, slim: Make) -> Iterator[ParityCase]:
    nested = functools.partial(_nested, patch)
    yield from cases_of(mt.EnsureTyped, (slim, {"dtype": (torch.float32, None)}))
    yield from cases_of(mt.CastToTyped, (slim, {"dtype": (np.float32, torch.int64)}))
    yield from cases_of(mt.ToTensord, (patch, {}))
    yield from cases_of(mt.ToDeviced, (patch, {"device": "cpu"}))
    yield from cases_of(mt.CopyItemsd, (patch, {"times": 1}))
    yield from cases_of(mt.SelectItemsd, (patch, {}))
    yield from cases_of(mt.Identityd, (patch, {}))
    yield from cases_of(mt.DeleteItemsd, (patch, {}), keys="case")
    yield from cases_of(mt.FlattenSubKeysd, (nested, {"prefix": "a"}), keys="of")


def _dropouts(side: int, patch: Make, slim: Make) -> Iterator[ParityCase]:
    holes = {"holes": 6, "spatial_size": scaled(side, 20, 20, 20), "prob": 1.0}
    larger = holes | {"max_holes": 9, "max_spatial_size": scaled(side, 40, 40, 40)}
    yield from cases_of(mt.RandCoarseDropoutd, (patch, holes | {"fill_value": 0}), (patch, larger),
                        (patch, holes | {"fill_value": (-1.0, 1.0), "dropout_holes": False}),
                        keys="image", tolerance=1e-6)  # fmt: skip
    yield from cases_of(mt.RandCoarseDropoutd, (slim, holes | {"fill_value": 0}), tolerance=1e-6)
