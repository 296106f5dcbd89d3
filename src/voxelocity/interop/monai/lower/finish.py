"""Sketches made into tensors: the one place where lowered transforms cost time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from monai.utils.misc import get_seed

# Imported as a module, whose files a chain's fingerprint reads: the thread behind the function cannot be read.
from voxelocity.core import waiting
from voxelocity.data.augment.steps import Piece, run
from voxelocity.interop.monai.lower.sketch import Sketch


def run_soon(pieces: Sequence[Piece]) -> None:
    """`run`, in plain torch until the loops are compiled; after MONAI's `set_determinism` it waits for them."""
    if get_seed() is None:
        waiting.without_waiting(lambda: run(pieces), lambda: run(pieces, engine="torch"))
    else:
        run(pieces)


def finish(data: Any, run: Callable[[Sequence[Piece]], None] = run) -> Any:
    """The data with a tensor in place of each sketch: of an item, of a list of items, or of a sketch alone.

    Args:
        data: only read.
        run: makes the pieces of one sample; `run_soon` does not wait for compiled loops.
    """
    if isinstance(data, Sketch):
        return _made([data], run)[0]
    if type(data) in (list, tuple):
        return type(data)(finish(item, run) for item in data)
    if not isinstance(data, dict):
        return data
    keys = [key for key, value in data.items() if isinstance(value, Sketch)]
    if not keys:
        return data
    return {**data, **dict(zip(keys, _made([data[key] for key in keys], run), strict=True))}


def _made(sketches: list[Sketch], run: Callable[[Sequence[Piece]], None]) -> list[Any]:
    outs = [
        torch.empty(sketch.shape, dtype=sketch.filled_dtype, device=sketch.source.device)
        for sketch in sketches
        if sketch.kept is None
    ]
    drawn = [sketch for sketch in sketches if sketch.kept is None]
    run([sketch.piece(out) for sketch, out in zip(drawn, outs, strict=True)])
    made = (sketch.dressed(out.to(sketch.dtype)) for sketch, out in zip(drawn, outs, strict=True))
    return [next(made) if sketch.kept is None else sketch.kept_copy() for sketch in sketches]
