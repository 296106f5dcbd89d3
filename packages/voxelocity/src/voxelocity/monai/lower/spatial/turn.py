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

from voxelocity.monai.lower.lowering import adds_steps, blindly, lowers, why_not_lazy
from voxelocity.monai.lower.pending import PendingTensor, finish, to_pending
from voxelocity.monai.steps import Flip as FlipStep
from voxelocity.monai.steps import Turn


@adds_steps(Flip, Flipd, "flipper", why_not=why_not_lazy)
def _flip(flipper: Any, pending: PendingTensor, params: Any) -> Any:
    """MONAI itself flips, or refuses, if the axes are not distinct spatial axes."""
    axes = [axis - 1 for axis in map_spatial_axes(pending.num_spatial + 1, flipper.spatial_axis)]
    if len(set(axes)) < len(axes) or not all(0 <= axis < pending.num_spatial for axis in axes):
        return flipper(finish(pending))
    pending.add(_flip_step(0 in axes, 1 in axes, 2 in axes))
    return pending


@adds_steps(RandFlip, RandFlipd, draw=blindly, draws="outside", why_not=why_not_lazy)
def _rand_flip(transform: Any, pending: PendingTensor, params: Any) -> Any:
    return _flip(transform.flipper, pending, params)


@lowers(RandAxisFlip, why_not=why_not_lazy)
def _axis_flip(transform: Any, value: Any) -> Any:
    # As `transform.randomize` draws, which must be given an image.
    RandomizableTransform.randomize(transform, None)
    return _add_flip_along(transform, value, _draw_axis(transform, value) if transform._do_transform else None)


@lowers(RandAxisFlipd, why_not=why_not_lazy)
def _axis_flip_d(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    changed = dict(data)
    first = transform.first_key(changed)
    if first == ():
        return changed
    transform.randomize(None)
    # The inner transform draws too: an axis, whether it is used or not.
    RandomizableTransform.randomize(transform.flipper, None)
    axis = _draw_axis(transform.flipper, changed[first]) if transform.flipper._do_transform else None
    for key in transform.key_iterator(changed):
        changed[key] = _add_flip_along(transform.flipper, changed[key], axis if transform._do_transform else None)
    return changed


def _draw_axis(transform: Any, value: Any) -> int:
    axis: int = transform.R.randint(PendingTensor.of(value).num_spatial)
    transform._axis = axis
    return axis


def _add_flip_along(transform: Any, value: Any, axis: int | None) -> Any:
    if axis is None:
        return to_pending(value)
    transform.flipper.spatial_axis = axis
    return _flip(transform.flipper, to_pending(value), None)


@adds_steps(Rotate90, Rotate90d, "rotator", why_not=why_not_lazy)
def _turn(rotator: Any, pending: PendingTensor, params: Any) -> Any:
    """MONAI itself turns, or refuses, if the axes are not two spatial axes."""
    first, second = (axis - 1 for axis in map_spatial_axes(pending.num_spatial + 1, rotator.spatial_axes))
    if first == second or not all(0 <= axis < pending.num_spatial for axis in (first, second)):
        return rotator(finish(pending))
    if rotator.k:
        pending.add(_turn_step(rotator.k, first, second))
    else:
        pending.relocate(np.eye(4))
    return pending


@adds_steps(RandRotate90, RandRotate90d, draw=blindly, draws="outside", why_not=why_not_lazy)
def _rand_turn(transform: Any, pending: PendingTensor, params: Any) -> Any:
    return _turn(Rotate90(transform._rand_k, transform.spatial_axes), pending, params)


# Equal moves are one object, so `run` knows that an image and its label are moved together.
@functools.cache
def _flip_step(x: bool, y: bool, z: bool) -> FlipStep:
    return FlipStep(axes=(x, y, z))


@functools.cache
def _turn_step(quarter_turns: int, first: int, second: int) -> Turn:
    return Turn(quarter_turns=quarter_turns, axes=(first, second))
