"""Flips and quarter turns."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from monai import transforms as mt
from monai.transforms.utils import map_spatial_axes

from voxelocity.monai.lower.lowering import adds_steps, blindly, why_not_lazy
from voxelocity.monai.lower.pending import PendingTensor, finish
from voxelocity.monai.steps import Flip, Turn


@adds_steps(mt.Flip, "flipper", why_not=why_not_lazy)
def _flip(flipper: Any, pending: PendingTensor, params: Any) -> Any:
    """MONAI itself flips, or refuses, if the axes are not distinct spatial axes."""
    axes = [axis - 1 for axis in map_spatial_axes(pending.num_spatial + 1, flipper.spatial_axis)]
    if len(set(axes)) < len(axes) or not all(0 <= axis < pending.num_spatial for axis in axes):
        return flipper(finish(pending))
    pending.add(_flip_step(0 in axes, 1 in axes, 2 in axes))
    return pending


@adds_steps(mt.RandFlip, draw=blindly, draws="outside", why_not=why_not_lazy)
def _rand_flip(transform: Any, pending: PendingTensor, params: Any) -> Any:
    return _flip(transform.flipper, pending, params)


def _draw_axis(transform: Any, pending: PendingTensor) -> None:
    # As `transform.randomize`, which must be given an image.
    mt.RandomizableTransform.randomize(transform, None)
    if transform._do_transform:
        transform._axis = transform.R.randint(pending.spatial_ndim)


@adds_steps(mt.RandAxisFlip, "flipper", draw=_draw_axis, draws="always", needs_key=True, why_not=why_not_lazy)
def _axis_flip(transform: Any, pending: PendingTensor, params: None) -> Any:
    transform.flipper.spatial_axis = transform._axis
    return _flip(transform.flipper, pending, params)


@adds_steps(mt.Rotate90, "rotator", why_not=why_not_lazy)
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


@adds_steps(mt.RandRotate90, draw=blindly, draws="outside", why_not=why_not_lazy)
def _rand_turn(transform: Any, pending: PendingTensor, params: Any) -> Any:
    return _turn(mt.Rotate90(transform._rand_k, transform.spatial_axes), pending, params)


# Equal moves are one object, so `run` knows that an image and its label are moved together.
@functools.cache
def _flip_step(x: bool, y: bool, z: bool) -> Flip:
    return Flip(axes=(x, y, z))


@functools.cache
def _turn_step(quarter_turns: int, first: int, second: int) -> Turn:
    return Turn(quarter_turns=quarter_turns, axes=(first, second))
