"""nnU-Net's own feed: its data set of Blosc2 files, its loader and its worker processes, wired as its trainer does.

Imported only where nnunetv2 is installed. The trainer itself is not used: it needs plans, named folders, a network.
Source: `get_dataloaders` of nnUNetTrainer in nnunetv2 2.8.1.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import blosc2
import numpy as np
from batchgenerators.dataloading.nondet_multi_threaded_augmenter import NonDetMultiThreadedAugmenter
from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
from nnunetv2.training.dataloading.nnunet_dataset import comp_blosc2_params, nnUNetDatasetBlosc2

from voxelocity.bench.nnunet_side import default_augmentation, loaded_side
from voxelocity.core.region import Index3
from voxelocity.core.volume import Volume

_MAX_LOCATIONS = 10_000
"""Foreground voxels of a class that nnU-Net's preprocessing keeps."""


def write_cases(volumes: Sequence[Volume], folder: Path, patch: Index3) -> None:
    """The cases as nnU-Net's preprocessing leaves them: float32 and int16 in Blosc2 chunks, and foreground places.

    Args:
        volumes: prepared cases with labels.
        folder: made where it is missing.
        patch: for which chunks are sized.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with _keeping_blosc_threads():
        for volume in volumes:
            assert volume.label is not None, "phantoms have labels"
            image, label = volume.intensities(), volume.label.astype(np.int16)[None]
            blocks, chunks = comp_blosc2_params(image.shape, patch, image.itemsize)
            blocks_seg, chunks_seg = comp_blosc2_params(label.shape, patch, label.itemsize)
            properties = {"class_locations": _class_locations(label, rng)}
            nnUNetDatasetBlosc2.save_case(
                image, label, properties, str(folder / volume.case_id),
                chunks=chunks, blocks=blocks, chunks_seg=chunks_seg, blocks_seg=blocks_seg,
            )  # fmt: skip


@contextlib.contextmanager
def opened(
    folder: Path, patch: Index3, *, batch_size: int, num_classes: int, augmented: bool, num_workers: int
) -> Iterator[Iterator[dict[str, Any]]]:
    """Batches of nnU-Net's workers: "data" (b, c, x, y, z) float32 and "target" (b, 1, x, y, z) int16.

    Args:
        folder: that `write_cases` filled.
        patch: of the result; cubic.
        batch_size: patches in a batch.
        num_classes: with the background.
        augmented: by nnU-Net's default augmentation, from the larger cube that it needs; else merely cut.
        num_workers: processes.
    """
    with _keeping_blosc_threads():
        loader = nnUNetDataLoader(
            nnUNetDatasetBlosc2(str(folder)),
            batch_size,
            (loaded_side(patch[0]),) * 3 if augmented else patch,
            patch,
            SimpleNamespace(all_labels=list(range(1, num_classes)), has_ignore_label=False),
            oversample_foreground_percent=0.33,
            transforms=default_augmentation(patch) if augmented else None,
        )
        cached = max(6, num_workers // 2)
        workers = NonDetMultiThreadedAugmenter(loader, None, num_workers, num_cached=cached, wait_time=0.002)
        try:
            yield workers
        finally:
            with _no_word_of_closed_connections():
                workers._finish()


@contextlib.contextmanager
def _no_word_of_closed_connections() -> Iterator[None]:
    """A batch that the augmenter's thread takes while its worker ends is lost; its traceback says no more."""
    before = threading.excepthook

    def tell_others(failure: threading.ExceptHookArgs) -> None:
        if not issubclass(failure.exc_type, (OSError, EOFError)):
            before(failure)

    threading.excepthook = tell_others
    try:
        yield
    finally:
        threading.excepthook = before


@contextlib.contextmanager
def _keeping_blosc_threads() -> Iterator[None]:
    """nnU-Net's data set sets the number of Blosc2's threads for the whole process; it is restored afterwards."""
    before = blosc2.nthreads
    try:
        yield
    finally:
        blosc2.set_nthreads(before)


def _class_locations(label: np.ndarray[Any, Any], rng: np.random.Generator) -> dict[int, Any]:
    """Places (n, 4) of some voxels of each class, channel first."""
    places: dict[int, Any] = {}
    for value in np.unique(label[label > 0]).tolist():
        found = np.argwhere(label == value)
        places[value] = rng.permutation(found)[:_MAX_LOCATIONS]
    return places
