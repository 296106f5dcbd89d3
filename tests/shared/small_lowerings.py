"""Two lowerings that are easy to believe, for tests of what walks chains."""

from __future__ import annotations

from typing import Any

from monai.transforms import RandFlipd, RandRotate90d

from voxelocity.monai.lower import Lowering, Lowerings, PendingTensor
from voxelocity.monai.steps import Flip, Turn


def _flip(transform: Any, data: Any) -> Any:
    result = dict(data)
    transform.randomize(None)
    for key in transform.key_iterator(result):
        result[key] = PendingTensor.of(result[key])
        if transform._do_transform:
            x, y, z = (axis == transform.flipper.spatial_axis for axis in range(3))
            result[key].add(Flip(axes=(x, y, z)))
    return result


def _turn(transform: Any, data: Any) -> Any:
    result = dict(data)
    transform.randomize()
    for key in transform.key_iterator(result):
        result[key] = PendingTensor.of(result[key])
        if transform._do_transform:
            result[key].add(Turn(quarter_turns=transform._rand_k, axes=transform.spatial_axes))
    return result


SMALL: Lowerings = {RandFlipd: Lowering(_flip), RandRotate90d: Lowering(_turn)}
