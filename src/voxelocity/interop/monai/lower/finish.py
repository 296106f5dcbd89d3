"""Sketches made into tensors: the one place where lowered transforms cost time."""

from __future__ import annotations

from typing import Any

import torch

from voxelocity.data.augment.steps import run
from voxelocity.interop.monai.lower.sketch import Sketch


def finish(data: Any) -> Any:
    """The data with a tensor in place of each sketch: of an item, of a list of items, or of a sketch alone."""
    if isinstance(data, Sketch):
        return _made([data])[0]
    if type(data) in (list, tuple):
        return type(data)(finish(item) for item in data)
    if not isinstance(data, dict):
        return data
    keys = [key for key, value in data.items() if isinstance(value, Sketch)]
    if not keys:
        return data
    return {**data, **dict(zip(keys, _made([data[key] for key in keys]), strict=True))}


def _made(sketches: list[Sketch]) -> list[Any]:
    outs = [
        torch.empty(sketch.shape, dtype=sketch.filled_dtype, device=sketch.source.device)
        for sketch in sketches
        if sketch.kept is None
    ]
    drawn = [sketch for sketch in sketches if sketch.kept is None]
    run([sketch.piece(out) for sketch, out in zip(drawn, outs, strict=True)])
    made = (sketch.dressed(out.to(sketch.dtype)) for sketch, out in zip(drawn, outs, strict=True))
    return [next(made) if sketch.kept is None else sketch.kept_copy() for sketch in sketches]
