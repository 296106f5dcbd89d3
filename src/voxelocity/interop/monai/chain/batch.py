"""Makes sketched items directly in their batch's memory, in several threads. Equal to making and then collating."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from monai.data.meta_tensor import MetaTensor
from monai.data.utils import list_data_collate
from torch.utils.data._utils.pin_memory import pin_memory

from voxelocity.data.augment.steps import Piece
from voxelocity.interop.monai.lower.finish import finish, run_soon
from voxelocity.interop.monai.lower.sketch import Sketch

_BARE = "the tensor itself"
"""The key of a chain without dictionaries."""


class PendingBatch:
    """A batch whose voxels are being made."""

    def __init__(self, collated: Any, work: Sequence[Future[None]]) -> None:
        self._collated = collated
        self._work = work
        self._is_pinned = False

    def pin_memory(self) -> PendingBatch:
        """Requests page-locking of the finished batch. torch's loader calls this if `pin_memory` is set."""
        self._is_pinned = True
        return self

    def result(self) -> Any:
        """The batch, once it is made.

        Raises:
            Exception: whatever making it raised.
        """
        for future in self._work:
            future.result()
        return pin_memory(self._collated) if self._is_pinned else self._collated  # type: ignore[no-untyped-call]

    def cancel(self) -> None:
        """Cancels what has not begun yet and waits for the rest."""
        for future in self._work:
            if not future.cancel():
                future.exception()


def start_batch(
    items: Sequence[Any], pool: ThreadPoolExecutor, count: Callable[[float], None] = lambda seconds: None
) -> PendingBatch:
    """The batch that `monai.data.list_data_collate` makes of the finished items, begun in the pool's threads.

    Args:
        items: as `Walker.sketch` returns them: dictionaries, bare sketches, or lists of either.
        pool: where patches are made, one sample per task.
        count: called with the seconds that a sample took, in the thread that made it.

    Raises:
        RuntimeError: they cannot be collated; the message is MONAI's.
    """
    samples = [sample for item in items for sample in item] if isinstance(items[0], list) else list(items)
    keyed = [sample if isinstance(sample, dict) else {_BARE: sample} for sample in samples]
    names = [name for name in keyed[0] if _is_uniform([sample.get(name) for sample in keyed])]
    if not names:
        return PendingBatch(list_data_collate([finish(item, run_soon) for item in items]), ())
    memory = {name: _memory([sample[name] for sample in keyed]) for name in names}
    stand_ins = [
        {name: _stand_in(value) if name in memory else finish(value, run_soon) for name, value in sample.items()}
        for sample in keyed
    ]
    collated = list_data_collate(stand_ins)
    for name, voxels in memory.items():
        collated[name] = _dressed(voxels, collated[name])
    work = [
        pool.submit(_timed, _pieces(sample, [(name, memory[name][number]) for name in names]), count)
        for number, sample in enumerate(keyed)
    ]
    return PendingBatch(collated if isinstance(samples[0], dict) else collated[_BARE], work)


def _timed(pieces: Sequence[Piece], count: Callable[[float], None]) -> None:
    begin = time.perf_counter()
    run_soon(pieces)
    count(time.perf_counter() - begin)


def _is_uniform(values: Sequence[Any]) -> bool:
    """Whether all are sketches of one shape, dtype and device, as patches of a batch are."""
    first = values[0]
    return isinstance(first, Sketch) and all(
        isinstance(value, Sketch)
        and (value.shape, value.dtype, value.source.device) == (first.shape, first.dtype, first.source.device)
        for value in values
    )


def _memory(sketches: Sequence[Sketch]) -> torch.Tensor:
    first = sketches[0]
    return torch.empty((len(sketches), *first.shape), dtype=first.dtype, device=first.source.device)


def _stand_in(sketch: Sketch) -> torch.Tensor:
    """A tensor without voxels with the metadata of the one to be made, so that MONAI collates it."""
    return sketch.dressed(torch.empty((0,) * len(sketch.shape), dtype=sketch.dtype, device=sketch.source.device))


def _dressed(voxels: torch.Tensor, collated: torch.Tensor) -> torch.Tensor:
    if not isinstance(collated, MetaTensor):
        return voxels
    dressed = MetaTensor(voxels)
    dressed.copy_meta_from(collated, copy_attr=False)
    batch: torch.Tensor = dressed
    return batch


def _pieces(sample: dict[Any, Any], outs: Sequence[tuple[Any, torch.Tensor]]) -> list[Piece]:
    return [sample[name].piece(out) for name, out in outs]
