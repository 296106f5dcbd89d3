"""Crops whose place depends on sizes alone: given, central, or anywhere."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from monai.transforms import (
    CenterScaleCrop,
    CenterScaleCropd,
    CenterSpatialCrop,
    CenterSpatialCropd,
    RandScaleCrop,
    RandScaleCropd,
    RandSpatialCrop,
    RandSpatialCropd,
    RandSpatialCropSamples,
    RandSpatialCropSamplesd,
    SpatialCrop,
    SpatialCropd,
)
from monai.utils import ensure_tuple, ensure_tuple_rep

from voxelocity.interop.monai.lower.crop.boxes import boxed, sliced
from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.lower.forms import by_key, continued, is_sketchable, spatial, why_not_lazy
from voxelocity.interop.monai.lower.lowering import Lowerings
from voxelocity.interop.monai.lower.sketch import Sketch


def cropped(value: Any, slices: Sequence[slice]) -> Sketch:
    """The box that slices (steps of 1) take of the value."""
    sketch = continued(value)
    return boxed(sketch, *sliced(slices, sketch.spatial_shape))


def samples_of(data: Mapping[Hashable, Any], keys: Sequence[Hashable], num_samples: int) -> list[dict[Hashable, Any]]:
    """A dictionary for each sample, with its own copy of what lies outside `keys`.

    Tensors and arrays are copied when they are finished, if nothing has touched them until then.
    """
    return [{key: value if key in keys else _copied(value) for key, value in data.items()} for _ in range(num_samples)]


def _copied(value: Any) -> Any:
    if isinstance(value, Sketch):
        return value.branch()
    return Sketch.keeping(value) if is_sketchable(value) else copy.deepcopy(value)


def _spatial(transform: Any, value: Any) -> Any:
    slices = ensure_tuple(transform.slices)
    shape = Sketch.of(value).spatial_shape
    if any((taken.start or 0) < -side for taken, side in zip(slices, shape, strict=False)):
        return transform(finish(value))  # MONAI's affine then points before the array
    return cropped(value, slices)


def _center(transform: Any, value: Any) -> Sketch:
    return cropped(value, transform.compute_slices(Sketch.of(value).spatial_shape))


def _center_scale(transform: Any, value: Any) -> Sketch:
    shape = Sketch.of(value).spatial_shape
    scales = ensure_tuple_rep(transform.roi_scale, len(shape))
    roi_size = [math.ceil(scale * side) for scale, side in zip(scales, shape, strict=True)]
    return cropped(value, CenterSpatialCrop(roi_size).compute_slices(shape))


def _as_drawn(cropper: Any, value: Any) -> Sketch:
    """The box that the cropper drew last, as it lies in this value."""
    if cropper.random_center:
        return cropped(value, cropper._slices)
    return cropped(value, CenterSpatialCrop(cropper._size).compute_slices(Sketch.of(value).spatial_shape))


def _anywhere(transform: Any, value: Any) -> Sketch:
    transform.randomize(Sketch.of(value).spatial_shape)
    return _as_drawn(transform, value)


def _anywhere_d(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    changed = dict(data)
    first = transform.first_key(changed)
    changed[first] = Sketch.of(changed[first])
    transform.randomize(changed[first].spatial_shape)
    for key in transform.key_iterator(changed):
        changed[key] = _as_drawn(transform.cropper, changed[key])
    return changed


def _samples(transform: Any, value: Any) -> list[Sketch]:
    samples, whole = [], Sketch.of(value)
    for number in range(transform.num_samples):
        sketch = _anywhere(transform.cropper, whole)
        if sketch.is_tracked:
            sketch.meta["patch_index"] = number
        samples.append(sketch)
    return samples


def _samples_d(transform: Any, data: Mapping[Hashable, Any]) -> list[dict[Hashable, Any]]:
    samples = samples_of(data, transform.keys, transform.cropper.num_samples)
    transform.randomize()
    for key in transform.key_iterator(dict(data)):
        transform.cropper.set_random_state(seed=int(transform.sub_seed))
        for sample, sketch in zip(samples, _samples(transform.cropper, data[key]), strict=True):
            sample[key] = sketch
    return samples


def _why_not_given(transform: Any) -> str:
    if getattr(transform, "requires_current_data", False):
        return "its box is in the item"
    return why_not_lazy(transform)


def _cropper(transform: Any) -> Any:
    return transform.cropper


LOWERINGS: Lowerings = {
    SpatialCrop: spatial(_spatial),
    SpatialCropd: spatial(by_key(_spatial, _cropper), _why_not_given),
    CenterSpatialCrop: spatial(_center),
    CenterSpatialCropd: spatial(by_key(_center, _cropper)),
    CenterScaleCrop: spatial(_center_scale),
    CenterScaleCropd: spatial(by_key(_center_scale, _cropper)),
    RandSpatialCrop: spatial(_anywhere),
    RandSpatialCropd: spatial(_anywhere_d),
    RandScaleCrop: spatial(_anywhere),
    RandScaleCropd: spatial(_anywhere_d),
    RandSpatialCropSamples: spatial(_samples),
    RandSpatialCropSamplesd: spatial(_samples_d),
}
