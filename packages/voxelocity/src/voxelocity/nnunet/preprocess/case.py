"""One case cropped, normalized and resampled as nnU-Net's `DefaultPreprocessor` does, for several configurations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Array
from voxelocity.data.prepare import nonzero_box
from voxelocity.infer.models.nnunet_labels import OUTSIDE, Int16, outside_of, resize_labels
from voxelocity.infer.models.nnunet_prepare import Float32, Interpolation, normalize, resize, thick_axis
from voxelocity.nnunet.preprocess.labels import sample_places
from voxelocity.nnunet.preprocess.plans import CasePlan
from voxelocity.nnunet.preprocess.raw import ClassKey
from voxelocity.nnunet.preprocess.read import ReadCase


@dataclass(frozen=True, kw_only=True)
class MadeCase:
    """What nnU-Net stores of a case.

    Attributes:
        plan: for which configuration.
        image: (c, x, y, z) float32 in the order of the plan.
        label: (1, x, y, z) int16; -1 outside.
        properties: of the scan, the crop, and where classes are.
    """

    plan: CasePlan
    image: Float32
    label: Int16
    properties: dict[str, Any]


def make_case(
    case: ReadCase, plans: Sequence[CasePlan], classes: Sequence[ClassKey], *, who: str
) -> Iterator[MadeCase]:
    """The case for each configuration, one after the other. Changes nothing of `case`.

    Args:
        case: as it was read.
        plans: the configurations, which share the order of axes.
        classes: of whose voxels places are kept.
        who: the case, for messages.

    Raises:
        ScanError: an RGB channel has values outside 0 to 255.
    """
    axes = plans[0].axes
    image = case.image.transpose(0, *(axis + 1 for axis in axes))
    label = case.label.transpose(axes)
    box = nonzero_box(image)
    properties = {
        **case.properties,
        "shape_before_cropping": image.shape[1:],
        "bbox_used_for_cropping": [list(pair) for pair in zip(box.start, box.stop, strict=True)],
    }
    image, label, inside = _cropped(image, label, box)
    properties["shape_after_cropping_and_before_resampling"] = image.shape[1:]
    spacing_mm = [float(case.properties["spacing"][axis]) for axis in axes]
    normalized: dict[Any, Float32] = {}
    for plan in plans:
        if plan.channels not in normalized:
            normalized = {plan.channels: normalize(image, plan.channels, who=who, inside_xyz=inside)}
        made_image, made_label = _resampled(normalized[plan.channels], label, spacing_mm, plan)
        places = sample_places(made_label, classes)
        yield MadeCase(
            plan=plan,
            image=made_image,
            label=made_label[np.newaxis],
            properties={**properties, "class_locations": places},
        )


def _cropped(image: Array, label: Int16, box: Region) -> tuple[Array, Int16, npt.NDArray[np.bool_] | None]:
    """The image as a view, the label as a copy with -1 outside, and the voxels inside; None if all are."""
    image = image[(slice(None), *box.slices)]
    label = np.array(label[box.slices], order="C")
    outside = outside_of(image)
    if outside is None:
        return image, label, np.ones(label.shape, dtype=bool)
    label[outside & (label == 0)] = OUTSIDE
    return image, label, label >= 0


def _resampled(image: Float32, label: Int16, spacing_mm: list[float], plan: CasePlan) -> tuple[Float32, Int16]:
    target_mm = [*([spacing_mm[0]] if len(plan.keys.spacing) == 2 else []), *plan.keys.spacing]
    shape = new_shape(label.shape, spacing_mm, target_mm)
    if shape == label.shape:
        return image, label
    keys = plan.keys.resampling_fn_data_kwargs
    thick = thick_axis(spacing_mm, target_mm, in_planes=keys.force_separate_z)
    interpolation = Interpolation(order=keys.order, image_order_thick=keys.order_z)
    thick_label = thick_axis(spacing_mm, target_mm, in_planes=plan.labels.force_separate_z)
    return (
        resize(image, shape, interpolation, thick=thick, compute="float64"),
        resize_labels(label, shape, thick=thick_label),
    )


def new_shape(shape: Sequence[int], spacing_mm: Sequence[float], target_mm: Sequence[float]) -> Index3:
    """The voxels along each axis at another spacing."""
    x, y, z = (max(1, round(old / new * n)) for old, new, n in zip(spacing_mm, target_mm, shape, strict=True))
    return x, y, z


def most_bytes(shape: Sequence[int], num_channels: int, spacing_mm: Sequence[float], plans: Sequence[CasePlan]) -> int:
    """An upper bound of the memory that reading and making a case takes.

    Args:
        shape: along (z, y, x).
        num_channels: of the image.
        spacing_mm: along (z, y, x).
        plans: the configurations.
    """
    before = int(np.prod(shape))
    # The image as read and normalized, its label, and masks.
    num_bytes = before * (8 * num_channels + 12)
    after = 0
    for plan in plans:
        spacing = [spacing_mm[axis] for axis in plan.axes]
        target = [*([spacing[0]] if len(plan.keys.spacing) == 2 else []), *plan.keys.spacing]
        after = max(after, int(np.prod(new_shape([shape[axis] for axis in plan.axes], spacing, target))))
    # Two float64 arrays of a channel, between both sizes, and the results.
    return num_bytes + 16 * max(before, after) + after * (4 * num_channels + 4)
