"""nnU-Net's preprocessed cases: in memory as far as a budget reaches, others read from their files box by box."""

from __future__ import annotations

import contextlib
import pickle
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Array
from voxelocity.data.augment import Source
from voxelocity_observe.core.errors import DatasetError

MOST_CLASSES = 254
"""The largest value of a label: the engine's labels are uint8 and hold nnU-Net's plus 1, as its least is -1."""
_UNREADABLE = (
    *(OSError, EOFError, RuntimeError, ValueError, KeyError),
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error),
)


@dataclass(frozen=True, kw_only=True)
class NnunetCase:
    """A case as nnU-Net's data set gives it out.

    Attributes:
        identifier: nnU-Net's name of it.
        image: (c, x, y, z) float32: an array, or a file that is read where it is sliced.
        labels: (x, y, z) each: the truth, and what the previous stage of a cascade predicted. uint8 and 1 more than
            nnU-Net's if `is_resident`, else (1, x, y, z) of a file, or nnU-Net's own.
        shape: (x, y, z).
        class_locations: of its properties.
        is_resident: whether all of it is in memory.
    """

    identifier: str
    image: Any
    labels: tuple[Any, ...]
    shape: Index3
    class_locations: Mapping[Any, Array]
    is_resident: bool

    def read(self, box: Region, number: int, part: Region | None = None) -> Source:
        """The part of a box, whose first voxel counts as (0, 0, 0), that lies in the volume.

        Args:
            box: in the volume; it may reach beyond it.
            number: of the label.
            part: what is needed of the box, counted from its first voxel; all of it if None.

        Raises:
            DatasetError: its file cannot be read, or the label has values that the engine cannot hold.
        """
        inside = (box if part is None else part.shifted(box.start)).clip(self.shape)
        label, slices = self.labels[number], inside.slices
        (x, y, z), (ox, oy, oz) = inside.start, box.start
        start = (x - ox, y - oy, z - oz)
        if self.is_resident:
            return Source(image=self.image[(slice(None), *slices)], label=label[slices], start=start)
        with errors_of(self.identifier):
            image = np.asarray(self.image[(slice(None), *slices)], dtype=np.float32)
            whole = self._label_box(label, inside)
        return Source(image=image, label=stored_label(whole, self.identifier), start=start)

    @staticmethod
    def _label_box(label: Any, inside: Region) -> Array:
        whole = len(label.shape) == 4
        box: Array = np.asarray(label[(0, *inside.slices) if whole else inside.slices])
        return box


def stored_label(label: Array, identifier: str) -> Array:
    """nnU-Net's label plus 1, as uint8.

    Raises:
        DatasetError: it has values that do not fit; names the case.
    """
    if label.size > 0 and (label.min() < -1 or label.max() > MOST_CLASSES):
        raise DatasetError(
            f"nnunet: the label of {identifier} holds values from {label.min()} to {label.max()}; our trainer "
            f"takes -1 to {MOST_CLASSES}; train this data set with nnU-Net's own trainer"
        )
    return (label + 1).astype(np.uint8)


@contextlib.contextmanager
def errors_of(identifier: str) -> Iterator[None]:
    """Errors of nnU-Net's readers within the block name the case.

    Raises:
        DatasetError: a file is missing, damaged, or lacks what this release of nnU-Net writes into it.
    """
    try:
        yield
    except _UNREADABLE as error:
        raise DatasetError(
            f"nnunet: the preprocessed files of {identifier} cannot be read ({type(error).__name__}: {error}); "
            "preprocess this data set again, with the nnU-Net that trains on it"
        ) from error


class NnunetCases:
    """The cases of one of nnU-Net's data sets, opened once each. Safe to use from several threads.

    Args:
        dataset: nnU-Net's, with `identifiers` and `load_case`.
        max_bytes: of memory for voxels.

    Attributes:
        num_resident: cases whose voxels are in memory so far.
        num_bytes: what they take.
    """

    def __init__(self, dataset: Any, *, max_bytes: int) -> None:
        self._dataset, self._max_bytes = dataset, max_bytes
        self._opened: dict[str, NnunetCase] = {}
        self._locks = {identifier: threading.Lock() for identifier in dataset.identifiers}
        self._turn = threading.Lock()
        self.num_resident = self.num_bytes = 0

    def open(self, identifier: str) -> NnunetCase:
        """The case; the first call reads it.

        Raises:
            DatasetError: its files cannot be read, or a label has values that the engine cannot hold.
        """
        with self._locks[identifier]:
            found = self._opened.get(identifier)
            if found is None:
                found = self._opened[identifier] = self._load(identifier)
            return found

    def _load(self, identifier: str) -> NnunetCase:
        with errors_of(identifier):
            image, label, previous, properties = self._dataset.load_case(identifier)
            class_locations = properties["class_locations"]
        labels: tuple[Any, ...] = (label,) if previous is None else (label, previous)
        x, y, z = (int(side) for side in image.shape[1:])
        for part in labels:
            if tuple(part.shape[-3:]) != (x, y, z):
                raise DatasetError(
                    f"nnunet: the preprocessed image of {identifier} has {(x, y, z)} voxels and its label "
                    f"{tuple(part.shape[-3:])}; preprocess this data set again"
                )
        is_resident = self._takes(x * y * z * (4 * int(image.shape[0]) + len(labels)))
        if is_resident:
            with errors_of(identifier):
                image = np.ascontiguousarray(image[:], dtype=np.float32)
                read = [np.asarray(part[:]).reshape(-1, x, y, z)[0] for part in labels]
            labels = tuple(np.ascontiguousarray(stored_label(part, identifier)) for part in read)
        return NnunetCase(
            identifier=identifier,
            image=image,
            labels=labels,
            shape=(x, y, z),
            class_locations=class_locations,
            is_resident=is_resident,
        )

    def _takes(self, num_bytes: int) -> bool:
        with self._turn:
            if self.num_bytes + num_bytes > self._max_bytes:
                return False
            self.num_bytes += num_bytes
            self.num_resident += 1
            return True
