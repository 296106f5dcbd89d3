"""Flips and quarter turns."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from monai.transforms import (
    Flip,
    Flipd,
    RandAxisFlip,
    RandAxisFlipd,
    RandFlip,
    RandFlipd,
    RandomizableTransform,
    RandRotate90,
    RandRotate90d,
    Rotate90,
    Rotate90d,
)
from monai.transforms.utils import map_spatial_axes

from voxelocity.data.augment.steps import Flip as FlipStep
from voxelocity.data.augment.steps import Turn
from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.lower.forms import by_key, continued, spatial
from voxelocity.interop.monai.lower.lowering import Lowerings
from voxelocity.interop.monai.lower.sketch import Sketch


def _flipped(flipper: Any, value: Any) -> Any:
    """Flipped by a `Flip`; by MONAI itself, which may refuse, if its axes are not distinct spatial axes."""
    sketch = continued(value)
    axes = [axis - 1 for axis in map_spatial_axes(sketch.num_spatial + 1, flipper.spatial_axis)]
    if len(set(axes)) < len(axes) or not all(0 <= axis < sketch.num_spatial for axis in axes):
        return flipper(finish(value))
    sketch.add(_flip(0 in axes, 1 in axes, 2 in axes))
    return sketch


def _turned(rotator: Any, value: Any) -> Any:
    """Turned by a `Rotate90`; by MONAI itself, which may refuse, if its axes are not two spatial axes."""
    sketch = continued(value)
    first, second = (axis - 1 for axis in map_spatial_axes(sketch.num_spatial + 1, rotator.spatial_axes))
    if first == second or not all(0 <= axis < sketch.num_spatial for axis in (first, second)):
        return rotator(finish(value))
    if rotator.k:
        sketch.add(_turn(rotator.k, first, second))
    else:
        sketch.relocate(np.eye(4))
    return sketch


def _randomly_flipped(transform: Any, value: Any) -> Any:
    transform.randomize(None)
    return _flipped(transform.flipper, value) if transform._do_transform else continued(value)


def _flipped_along_one(transform: Any, value: Any) -> Any:
    # As `transform.randomize` draws, which must be given an image.
    RandomizableTransform.randomize(transform, None)
    return _flipped_as_drawn(transform, value, _draw_axis(transform, value) if transform._do_transform else None)


def _flipped_along_one_d(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    changed = dict(data)
    first = transform.first_key(changed)
    if first == ():
        return changed
    transform.randomize(None)
    # The inner transform draws too: an axis, whether it is used or not.
    RandomizableTransform.randomize(transform.flipper, None)
    axis = _draw_axis(transform.flipper, changed[first]) if transform.flipper._do_transform else None
    for key in transform.key_iterator(changed):
        changed[key] = _flipped_as_drawn(transform.flipper, changed[key], axis if transform._do_transform else None)
    return changed


def _draw_axis(transform: Any, value: Any) -> int:
    axis: int = transform.R.randint(Sketch.of(value).num_spatial)
    transform._axis = axis
    return axis


def _flipped_as_drawn(transform: Any, value: Any, axis: int | None) -> Any:
    if axis is None:
        return continued(value)
    transform.flipper.spatial_axis = axis
    return _flipped(transform.flipper, value)


def _randomly_flipped_d(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    changed = dict(data)
    transform.randomize(None)
    for key in transform.key_iterator(changed):
        value = changed[key]
        changed[key] = _flipped(transform.flipper, value) if transform._do_transform else continued(value)
    return changed


def _randomly_turned(transform: Any, value: Any) -> Any:
    transform.randomize()
    if not transform._do_transform:
        return continued(value)
    return _turned(Rotate90(transform._rand_k, transform.spatial_axes), value)


def _randomly_turned_d(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    changed = dict(data)
    transform.randomize()
    rotator = Rotate90(transform._rand_k, transform.spatial_axes)
    for key in transform.key_iterator(changed):
        value = changed[key]
        changed[key] = _turned(rotator, value) if transform._do_transform else continued(value)
    return changed


# Equal moves are one object, so `run` knows that an image and its label are moved together.
@functools.cache
def _flip(x: bool, y: bool, z: bool) -> FlipStep:
    return FlipStep(axes=(x, y, z))


@functools.cache
def _turn(quarter_turns: int, first: int, second: int) -> Turn:
    return Turn(quarter_turns=quarter_turns, axes=(first, second))


LOWERINGS: Lowerings = {
    Flip: spatial(_flipped),
    Flipd: spatial(by_key(_flipped, lambda outer: outer.flipper)),
    Rotate90: spatial(_turned),
    Rotate90d: spatial(by_key(_turned, lambda outer: outer.rotator)),
    RandFlip: spatial(_randomly_flipped),
    RandFlipd: spatial(_randomly_flipped_d),
    RandAxisFlip: spatial(_flipped_along_one),
    RandAxisFlipd: spatial(_flipped_along_one_d),
    RandRotate90: spatial(_randomly_turned),
    RandRotate90d: spatial(_randomly_turned_d),
}
