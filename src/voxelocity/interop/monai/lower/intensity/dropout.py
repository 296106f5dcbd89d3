"""Coarse dropout: boxes filled with a number, or with noise of a range, or all but the boxes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.transforms import RandCoarseDropout, RandCoarseDropoutd

from voxelocity.data.augment.steps import Fill
from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.lower.forms import continued, or_monais
from voxelocity.interop.monai.lower.lowering import Lowering, Lowerings
from voxelocity.interop.monai.lower.sketch import Sketch


def _dropped_out(transform: Any, value: Any) -> Sketch:
    sketch = continued(value)
    transform.randomize(sketch.spatial_shape)
    return _filled(transform, sketch) if transform._do_transform else sketch


def _dropped_out_d(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    changed = dict(data)
    transform.randomize(None)
    first = transform.first_key(changed)
    if transform._do_transform and first != ():
        changed[first] = Sketch.of(changed[first])
        transform.dropper.randomize(changed[first].spatial_shape)
    for key in transform.key_iterator(changed):
        sketch = continued(changed[key])
        changed[key] = _filled(transform.dropper, sketch) if transform._do_transform else sketch
    return changed


def _filled(dropper: Any, sketch: Sketch) -> Sketch:
    """The sketch with the boxes that were drawn, and the noise in them, drawn here from `dropper.R`."""
    if not dropper._do_transform:  # only the array form, and its twin inside the dictionary form, with prob below 1
        return sketch
    boxes = _boxes(dropper.hole_coords, sketch.spatial_shape)
    if sketch.dtype != torch.float32 or not len(boxes):
        return _filled_at_once(dropper, sketch)
    low, high, noise = dropper.fill_value, None, None
    if low is None or isinstance(low, tuple | list):
        low, high = (None, None) if low is None else low
        sides = boxes[:, 1] - boxes[:, 0]
        num_channels = sketch.shape[0]
        num = num_channels * int(sides.prod(axis=1).sum())
        if not dropper.dropout_holes:
            num = int(np.prod(sketch.shape))
        # `R.uniform(low, high)` takes the same numbers from 0 to 1 and spreads them.
        noise = dropper.R.random_sample(num)
    sketch.add(Fill(boxes=boxes, is_outside=not dropper.dropout_holes, low=low, high=high, noise=noise))
    return sketch


def _filled_at_once(dropper: Any, sketch: Sketch) -> Sketch:
    """By MONAI's own arithmetic, in the type of the voxels; on a copy, because it writes into its argument."""
    made = finish(sketch)
    filled = dropper(made, randomize=False)
    return Sketch.of(filled)


def _boxes(holes: list[tuple[slice, ...]], shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """(n, 2, 3), as far as they lie within the array; a plane is one voxel thick."""
    places = np.zeros((len(holes), 2, 3), np.int64)
    places[:, 1] = 1
    for number, hole in enumerate(holes):
        for axis, (along, side) in enumerate(zip(hole[1:], shape, strict=False)):
            places[number, :, axis] = along.indices(side)[:2]
    places[:, 1] = np.maximum(places[:, 0], places[:, 1])
    return places


def _why_not(transform: Any) -> str:
    value = transform.fill_value if isinstance(transform, RandCoarseDropout) else transform.dropper.fill_value
    is_number = isinstance(value, int | float | np.number)
    if value is None or is_number or (isinstance(value, tuple | list) and np.isfinite(np.subtract(*value))):
        return ""
    return f"fill_value={value!r} is neither a number nor a finite range"


LOWERINGS: Lowerings = {
    RandCoarseDropout: Lowering(apply=or_monais(_dropped_out), why_not=_why_not),
    RandCoarseDropoutd: Lowering(apply=or_monais(_dropped_out_d), why_not=_why_not),
}
