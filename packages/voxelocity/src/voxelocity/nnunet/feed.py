"""Batches for nnU-Net's training loop, made in threads: its loader says which patches, our engine makes them."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from voxelocity.core.native import use_one_core
from voxelocity.core.region import Index3, Region
from voxelocity.data.augment import AugmentParams, augment, filling_device
from voxelocity.nnunet.cases import NnunetCase, NnunetCases
from voxelocity.nnunet.chain import NnunetChain

Batch = dict[str, Any]
"""As nnU-Net's loop takes it: "data" (b, c, ...) float32, "target" (b, 1, ...) or one such tensor for each scale of
deep supervision, and "keys", the identifiers."""


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """What a batch will be, drawn before it is made.

    Attributes:
        keys: identifiers of its cases.
        cases: those cases.
        boxes: where nnU-Net cuts each sample from its case.
        params: what the engine does to each.
    """

    keys: Sequence[str]
    cases: Sequence[NnunetCase]
    boxes: Sequence[Region]
    params: AugmentParams


class NnunetFeed:
    """An endless iterator in place of nnU-Net's augmenter and its worker processes.

    Numbers for the engine are drawn in the consumer's thread, in the order of the batches, from numpy's and torch's
    global generators: equal seeds give equal batches, with any number of threads. Transforms left to nnU-Net
    (`chain.rest`) draw where they run, in any order.

    Args:
        loader: nnU-Net's, with its transforms.
        cases: of its data set.
        num_threads: that make batches.
        num_ahead: batches made or being made beyond the one in use.
        device: of the training. A CUDA device makes them itself, if its kernels are there and nnU-Net's part can; else
            they lie in pinned memory.
        asks_nnunet: whether every number is drawn by nnU-Net's own objects, which takes longer (`draws`).

    Attributes:
        chain: nnU-Net's transforms, and what of them is left to it.
        made_on: where batches are made.
    """

    def __init__(
        self,
        loader: Any,
        cases: NnunetCases,
        *,
        num_threads: int,
        num_ahead: int,
        device: torch.device,
        asks_nnunet: bool = False,
    ) -> None:
        self._loader, self._cases, self._num_ahead = loader, cases, num_ahead
        self._crop, patch = _index3(loader.patch_size), _index3(loader.final_patch_size)
        transforms = loader.transforms
        self.chain = NnunetChain(
            [] if transforms is None else getattr(transforms, "transforms", [transforms]),
            crop=self._crop,
            patch=patch,
            is_flat=loader.patch_size_was_2d,
            asks_nnunet=asks_nnunet,
        )
        self.made_on = filling_device("auto", device) if self.chain.can_finish_on_device else torch.device("cpu")
        self._is_pinned = device.type == "cuda" and self.made_on.type == "cpu"
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(num_threads, "voxelocity-nnunet", _begin_thread)
        self._pending: deque[Future[Batch]] = deque()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        while len(self._pending) <= self._num_ahead:
            self._pending.append(self._pool.submit(self._make, self._draw()))
        batch = self._pending.popleft().result()
        if self.made_on.type == "cuda":
            targets = batch["target"]
            # Made on another stream: its memory must not be reused before this stream is done with it.
            for tensor in (batch["data"], *(targets if isinstance(targets, list) else [targets])):
                tensor.record_stream(torch.cuda.current_stream(self.made_on))
        return batch

    def close(self) -> None:
        """Ends the threads; batches that are not yet begun are dropped."""
        self._pool.shutdown(cancel_futures=True)
        self._pending.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw(self) -> _Drawn:
        keys = list(self._loader.get_indices())
        cases = [self._cases.open(key) for key in keys]
        boxes = []
        params = self.chain.unchanged(len(keys), int(cases[0].image.shape[0]))
        # In the order in which nnU-Net draws.
        for number, case in enumerate(cases):
            is_forced = self._loader.get_do_oversample(number)
            start, stop = self._loader.get_bbox(np.array(case.shape), is_forced, case.class_locations)
            boxes.append(Region(_index3(start), _index3(stop)))
            self.chain.draw(params, number)
        return _Drawn(keys=keys, cases=cases, boxes=boxes, params=params)

    def _make(self, drawn: _Drawn) -> Batch:
        with self._own_stream():
            return self._made(drawn)

    @contextlib.contextmanager
    def _own_stream(self) -> Iterator[None]:
        """Work on a CUDA device goes to this thread's stream, and is finished at the end of the block."""
        if self.made_on.type != "cuda":
            yield
            return
        stream: torch.cuda.Stream | None = getattr(self._own, "stream", None)
        if stream is None:
            stream = self._own.stream = torch.cuda.Stream(self.made_on, priority=-1)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            yield
            stream.synchronize()

    def _made(self, drawn: _Drawn) -> Batch:
        image, target = self.chain.finish(*self._voxels(drawn))
        kept = [self._kept(scale) for scale in target] if isinstance(target, list) else self._kept(target)
        return {"data": self._kept(image), "target": kept, "keys": np.array(drawn.keys)}

    def _voxels(self, drawn: _Drawn) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (b, c, x, y, z) float32 and labels (b, k, x, y, z) uint8, nnU-Net's plus 1, of the engine's part."""
        num, num_labels, shape = len(drawn.keys), len(drawn.cases[0].labels), self.chain.shape
        regions = [self.chain.region] * num
        size = (num, drawn.params.num_channels, *shape)
        image = torch.empty(size, device=self.made_on, pin_memory=self._is_pinned)
        # Each label whole, as the engine takes it.
        labels = torch.empty((num_labels, num, *shape), dtype=torch.uint8, device=self.made_on)
        # A box of nnU-Net's holds what the largest turn and zoom need; most samples need less.
        parts = self.chain.needed(drawn.params)
        for number, label in enumerate(labels):
            needed = zip(drawn.cases, drawn.boxes, parts, strict=True)
            sources = [case.read(box, number, part) for case, box, part in needed]
            # Each label is moved with the image, which comes out the same each time.
            augment(sources, regions, drawn.params, image, label)
        return image, labels.transpose(0, 1)

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, in pinned memory where it is to be copied to a device."""
        return tensor.pin_memory() if self._is_pinned else tensor


def _begin_thread() -> None:
    """Torch works in the calling thread alone, as in nnU-Net's workers: teams of threads would take cores away."""
    # Torch settles its own number when it is asked for it, and not again.
    torch.get_num_threads()
    use_one_core()


def _index3(values: Sequence[int]) -> Index3:
    x, y, z = (int(value) for value in values)
    return x, y, z
