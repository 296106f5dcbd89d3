"""Crops around voxels of a label or a weight map; searches for them if the item does not provide them."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from monai import transforms as mt
from monai.utils import fall_back_tuple

from voxelocity.monai.lower.crop.boxes import add_crop, number_sample, samples_of
from voxelocity.monai.lower.crop.positions import binary_positions, class_positions
from voxelocity.monai.lower.lowering import lowers, why_not_lazy
from voxelocity.monai.lower.pending import PendingTensor, finish, why_not_pending


@lowers(mt.RandCropByPosNegLabel, why_not=why_not_lazy)
def _about_foreground(transform: Any, value: Any) -> list[PendingTensor]:
    _draw_pos_neg(transform, transform.label, transform.image, None, None)
    return _at_centers(transform, value)


@lowers(mt.RandCropByPosNegLabeld, why_not=why_not_lazy)
def _about_foreground_d(transform: Any, data: Mapping[Hashable, Any]) -> list[dict[Hashable, Any]]:
    item = dict(data)
    keys = (transform.fg_indices_key, transform.bg_indices_key)
    foreground, background = (finish(item.pop(key, None)) for key in keys)
    if foreground is None or background is None:
        _finish_in_place(item, (transform.label_key, transform.image_key))
    label, image = item.get(transform.label_key), item.get(transform.image_key)
    _draw_pos_neg(transform.cropper, label, image, foreground, background)
    return _samples(transform, item)


@lowers(mt.RandCropByLabelClasses, why_not=why_not_lazy)
def _about_classes(transform: Any, value: Any) -> list[PendingTensor]:
    _draw_classes(transform, transform.label, transform.image, None)
    return _at_centers(transform, value)


@lowers(mt.RandCropByLabelClassesd, why_not=why_not_lazy)
def _about_classes_d(transform: Any, data: Mapping[Hashable, Any]) -> list[dict[Hashable, Any]]:
    item = dict(data)
    indices = item.pop(transform.indices_key, None)
    if indices is None:
        _finish_in_place(item, (transform.label_key, transform.image_key))
    _draw_classes(transform.cropper, item.get(transform.label_key), item.get(transform.image_key), indices)
    return _samples(transform, item)


@lowers(mt.RandWeightedCrop, why_not=why_not_lazy)
def _by_weight(transform: Any, value: Any) -> list[PendingTensor]:
    if transform.weight_map is None or tuple(transform.weight_map.shape[1:]) != PendingTensor.of(value).spatial_shape:
        samples: list[PendingTensor] = transform(finish(value))  # which says what is wrong
        return samples
    _draw_weighted(transform, transform.weight_map)
    return _at_centers(transform, value)


@lowers(mt.RandWeightedCropd, why_not=why_not_lazy)
def _by_weight_d(transform: Any, data: Mapping[Hashable, Any]) -> list[dict[Hashable, Any]]:
    item = dict(data)
    _finish_in_place(item, (transform.w_key,))
    _draw_weighted(transform.cropper, item[transform.w_key])
    return _samples(transform, item)


def _samples(transform: Any, item: Mapping[Hashable, Any]) -> list[dict[Hashable, Any]]:
    return samples_of(transform, item, functools.partial(_at_centers, transform.cropper))


def _at_centers(cropper: Any, value: Any) -> list[PendingTensor]:
    """A crop around each drawn center."""
    whole = PendingTensor.of(value)
    roi_size = fall_back_tuple(cropper.spatial_size, whole.spatial_shape)
    samples = []
    for number, center in enumerate(cropper.centers):
        pending = add_crop(whole, mt.SpatialCrop.compute_slices(roi_center=center, roi_size=roi_size))
        samples.append(number_sample(pending, number, crop_center=center))
    return samples


def _finish_in_place(item: dict[Hashable, Any], keys: Sequence[Hashable]) -> None:
    """Finishes the values whose voxels must be read; untouched ones can be read directly."""
    for key in keys:
        value = item.get(key)
        if isinstance(value, PendingTensor) and not (value.is_untouched and value.dtype == value.source.dtype):
            item[key] = PendingTensor.of(finish(value))


def _draw_pos_neg(cropper: Any, label: Any, image: Any, foreground: Any, background: Any) -> None:
    """Draws the centers that `cropper.randomize` would draw, without lists of all positions."""
    foreground = cropper.fg_indices if foreground is None else foreground
    background = cropper.bg_indices if background is None else background
    if foreground is None or background is None:
        if not _can_look(label, image):
            label, image = finish(label), finish(image)
        else:
            foreground, background = binary_positions(
                _voxels(label),
                None if image is None else _voxels(image),
                cropper.image_threshold,
                is_array=isinstance(label.kept if isinstance(label, PendingTensor) else label, np.ndarray),
            )
    cropper.randomize(label, foreground, background, image)


def _draw_classes(cropper: Any, label: Any, image: Any, indices: Any) -> None:
    """Draws the centers that `cropper.randomize` would draw, without lists of all positions."""
    if indices is None and cropper.indices is None:
        if not _can_look(label, image) or (len(_voxels(label)) == 1 and not cropper.num_classes):
            label, image = finish(label), finish(image)
        else:
            seen = None if image is None else _voxels(image)
            found = class_positions(_voxels(label), cropper.num_classes, seen, cropper.image_threshold)
            indices = [positions.at_most(cropper.max_samples_per_class) for positions in found]
    cropper.randomize(label, indices, image)


def _can_look(label: Any, image: Any) -> bool:
    """Whether the voxels can be read here; otherwise MONAI says what is wrong."""
    if why_not_pending(label) or (image is not None and why_not_pending(image)):
        return False
    if image is None:
        return True
    one, other = PendingTensor.of(image), PendingTensor.of(label)
    return one.spatial_shape == other.spatial_shape and one.source.device == other.source.device


def _voxels(value: Any) -> torch.Tensor:
    pending = PendingTensor.of(value)
    assert pending.is_untouched, "the item's labels and images are finished before they are read"
    return pending.source


def _draw_weighted(cropper: Any, weights: Any) -> None:
    """Draws with MONAI's own function, from a copy if that would change the weights."""
    if isinstance(weights, PendingTensor):
        weights = weights.kept if weights.kept is not None else weights.with_metadata(weights.source)
    if (weights[0] < 0).any():
        weights = weights.clone() if isinstance(weights, torch.Tensor) else weights.copy()
    cropper.randomize(weights)
