"""Crops around voxels of a label or a weight map; searches for them if the item does not provide them."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from monai import transforms as mt
from monai.transforms.utils import generate_label_classes_crop_centers, generate_pos_neg_label_crop_centers
from monai.transforms.utils_pytorch_numpy_unification import unravel_index
from monai.utils import fall_back_tuple

from voxelocity.monai.lower.crop.boxes import add_crop, number_sample, samples_of
from voxelocity.monai.lower.crop.positions import binary_positions, class_positions
from voxelocity.monai.lower.lowering import lowers, why_not_lazy
from voxelocity.monai.lower.pending import PendingTensor, can_be_pending, finish


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
    """Draws the centers that `cropper.randomize` would draw."""
    foreground = cropper.fg_indices if foreground is None else foreground
    background = cropper.bg_indices if background is None else background
    shape = _shape_of(label, image)
    if shape is None or not _can_look(label, image, foreground is None or background is None):
        cropper.randomize(finish(label), foreground, background, finish(image))
        return
    if foreground is None or background is None:
        foreground, background = binary_positions(
            _voxels(label),
            None if image is None else _voxels(image),
            cropper.image_threshold,
            is_array=isinstance(label.kept if isinstance(label, PendingTensor) else label, np.ndarray),
        )
    size = _size_that_fits(cropper, shape)
    if size is None or not _are_lists([foreground, background]):
        cropper.centers = generate_pos_neg_label_crop_centers(
            cropper.spatial_size,
            cropper.num_samples,
            cropper.pos_ratio,
            shape,
            foreground,
            background,
            cropper.R,
            cropper.allow_smaller,
        )
        return
    centers = []
    for _ in range(cropper.num_samples):
        positions = foreground if cropper.R.rand() < cropper.pos_ratio else background
        centers.append(_center(positions[cropper.R.randint(len(positions))], size, shape))
    cropper.centers = tuple(centers)


def _draw_classes(cropper: Any, label: Any, image: Any, indices: Any) -> None:
    """Draws the centers that `cropper.randomize` would draw."""
    indices = cropper.indices if indices is None else indices
    shape = _shape_of(label, image)
    if shape is None or not _can_look(label, image, indices is None) or not _is_countable(cropper, label, indices):
        cropper.randomize(finish(label), indices, finish(image))
        return
    if indices is None:
        found = class_positions(
            _voxels(label), cropper.num_classes, None if image is None else _voxels(image), cropper.image_threshold
        )
        indices = [positions.at_most(cropper.max_samples_per_class) for positions in found]
    size = _size_that_fits(cropper, shape)
    ratios = [1] * len(indices) if cropper.ratios is None else list(cropper.ratios)
    is_plain = len(ratios) == len(indices) and min(ratios) >= 0 and cropper.num_samples > 0
    if size is None or not is_plain or not _are_lists(indices):
        cropper.centers = generate_label_classes_crop_centers(
            cropper.spatial_size,
            cropper.num_samples,
            shape,
            indices,
            cropper.ratios,
            cropper.R,
            cropper.allow_smaller,
            cropper.warn,
        )
        return
    classes = cropper.R.choice(len(ratios), size=cropper.num_samples, p=np.asarray(ratios) / np.sum(ratios))
    cropper.centers = tuple(
        _center(indices[number][cropper.R.randint(len(indices[number]))], size, shape) for number in classes
    )


def _shape_of(label: Any, image: Any) -> tuple[int, ...] | None:
    """The shape that holds the centers: the label's spatial sides, or the image's."""
    for value in (label, image):
        if value is not None:
            return PendingTensor.of(value).spatial_shape if can_be_pending(value) else None
    return None


def _can_look(label: Any, image: Any, is_needed: bool) -> bool:
    """Whether the needed voxels can be read here; otherwise MONAI says what is wrong."""
    if not is_needed:
        return True
    if label is None or not can_be_pending(label) or not (image is None or can_be_pending(image)):
        return False
    if image is None:
        return True
    one, other = PendingTensor.of(image), PendingTensor.of(label)
    return one.spatial_shape == other.spatial_shape and one.source.device == other.source.device


def _is_countable(cropper: Any, label: Any, indices: Any) -> bool:
    """Whether the number of classes is known."""
    return indices is not None or len(_voxels(label)) > 1 or bool(cropper.num_classes)


def _voxels(value: Any) -> torch.Tensor:
    pending = PendingTensor.of(value)
    assert pending.is_untouched, "the item's labels and images are finished before they are looked at"
    return pending.source


def _are_lists(indices: Sequence[Any]) -> bool:
    """Whether each holds at least one place, and all positions are single numbers."""
    return all(len(positions) > 0 and getattr(positions, "ndim", 1) == 1 for positions in indices)


def _size_that_fits(cropper: Any, shape: Sequence[int]) -> tuple[int, ...] | None:
    """The size of the crop within the array, or None if it must fit and does not."""
    size = fall_back_tuple(cropper.spatial_size, shape)
    if not cropper.allow_smaller and any(wanted > side for wanted, side in zip(size, shape, strict=True)):
        return None
    return tuple(min(wanted, side) for wanted, side in zip(size, shape, strict=True))


def _center(place: Any, size: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The voxel of the flat place, moved as far as the box around it must be to lie within the array."""
    rest = int(place)
    if not 0 <= rest < int(np.prod(shape)):
        voxel = unravel_index(place, shape).tolist()
    else:
        voxel = []
        for side in reversed(shape):
            rest, along = divmod(rest, side)
            voxel.insert(0, along)
    center = []
    for along, wanted, side in zip(voxel, size, shape, strict=True):
        # From the first center that MONAI allows to one past the last, counted in 16 bits as it does; never empty.
        first, stop = wanted // 2, int(side + 1 - wanted / 2) % 2**16
        center.append(int(min(max(along, first), stop - (first != stop))))
    return tuple(center)


def _draw_weighted(cropper: Any, weights: Any) -> None:
    """Draws with MONAI's own function, from a copy if that would change the weights."""
    if isinstance(weights, PendingTensor):
        weights = weights.kept if weights.kept is not None else weights.with_metadata(weights.source)
    if (weights[0] < 0).any():
        weights = weights.clone() if isinstance(weights, torch.Tensor) else weights.copy()
    cropper.randomize(weights)
