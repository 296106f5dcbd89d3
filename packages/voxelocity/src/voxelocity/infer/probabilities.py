"""Scores of every class of a scan, kept tile by tile in a file, and put back class by class.

As probabilities they are written, a byte for each voxel; as exact scores they are averaged with those of other models.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Array
from voxelocity.data.decode import ScanHeader, write_maps
from voxelocity.data.prepare import Trace, restore_scores
from voxelocity.infer import arrays
from voxelocity.infer.accumulator import unnamed_file
from voxelocity.infer.arrays import Values
from voxelocity.infer.model import PredictionSpec
from voxelocity.infer.stitched import TileSink
from voxelocity.infer.window_config import FLOAT16_SUMS
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.quantities import bytes_text

_ONE = 255
"""Stands for a probability of 1."""
# The float32 below 1 / 255: readers multiply by it, and no probability may exceed 1.
_SCALE = float(np.nextafter(np.float32(1 / _ONE), np.float32(0)))


class Probabilities:
    """Of one scan, on its prepared grid until they are written. A `TileSink`, which hands on what it takes.

    Args:
        shape: of the prepared volume.
        trace: of its preparation.
        spec: of the model.
        folder: for a file without a name, which is gone when the process ends; the system's temporary folder if None.
        labels: the sink that makes classes of the same tiles.

    Raises:
        ScanError: the disk has no room.
    """

    dtype: npt.DTypeLike = np.uint8

    def __init__(
        self, shape: Index3, trace: Trace, spec: PredictionSpec, *, folder: Path | None, labels: TileSink
    ) -> None:
        self._trace, self._spec, self._folder, self._labels = trace, spec, folder, labels
        self._has_regions = bool(spec.region_order)
        self._kept = file_of_scores((spec.num_outputs, *shape), self.dtype, folder)

    def take(self, sums_kxyz: Values, weights_xyz: Values | None, box: Region) -> None:
        self._labels.take(sums_kxyz, weights_xyz, box)
        kept = self._kept[(slice(None), *box.slices)]
        # Plane by plane: a tile may be most of the volume.
        for index in range(sums_kxyz.shape[1]):
            logits = sums_kxyz[:, index]
            if weights_xyz is not None:
                logits = logits / weights_xyz[index]
            kept[:, index] = self._stored(logits)

    def _stored(self, logits: Values) -> Array:
        whole: Array = np.rint(arrays.to_numpy(self._activated(logits) * _ONE))
        return whole

    def _activated(self, logits: Values) -> Values:
        return arrays.sigmoid(logits) if self._has_regions else arrays.softmax(logits)

    def write(self, path: Path, header: ScanHeader) -> None:
        """Writes them as a 4-D NIfTI file on the grid of the scan, one volume for each output of the network.

        Raises:
            OutputError: the file cannot be written.
        """
        _write(path, self._restore(), len(self._kept), header)

    def _restore(self) -> Iterator[Array]:
        for index, kept in enumerate(self._kept):
            # What was cropped away is background.
            is_background = index == 0 and not self._has_regions
            found = restore_scores(_ONE - kept if is_background else kept, self._trace)
            whole = np.rint(found).astype(np.uint8)
            yield _ONE - whole if is_background else whole


class Scores(Probabilities):
    """What is interpolated onto the grid of the scan, logits or probabilities, in float32. Arguments as its base."""

    dtype = np.float32

    @property
    def _are_logits(self) -> bool:
        return self._has_regions or self._spec.restored == "logits"

    def _stored(self, logits: Values) -> Array:
        return arrays.to_numpy(logits if self._are_logits else self._activated(logits))

    def add_to(self, total_kxyz: Array) -> None:
        """Adds the probabilities on the grid of the scan to an array of that shape; what was cropped is background.

        Raises:
            ScanError: the disk has no room for them.
        """
        found = file_of_scores(total_kxyz.shape, np.float32, self._folder)
        for target, kept in zip(found, self._kept, strict=True):
            target[...] = restore_scores(kept, self._trace)
        inside = restore_scores(np.ones(self._kept.shape[1:], np.float32), self._trace)
        for planes, total, share in zip(found.swapaxes(0, 1), total_kxyz.swapaxes(0, 1), inside, strict=True):
            if self._spec.window.blend == FLOAT16_SUMS:
                planes[...] = planes.astype(np.float16)
            if self._are_logits:
                planes[...] = arrays.to_numpy(self._activated(planes))
            total += planes * share
            if not self._has_regions:
                total[0] += 1.0 - share


class MeanProbabilities:
    """Of several models, on the grid of the scan.

    Args:
        mean_kxyz: between 0 and 1.
    """

    def __init__(self, mean_kxyz: Array) -> None:
        self._mean = mean_kxyz

    def write(self, path: Path, header: ScanHeader) -> None:
        """As `Probabilities.write`."""
        _write(path, (np.rint(plane * _ONE).astype(np.uint8) for plane in self._mean), len(self._mean), header)


def file_of_scores(shape_kxyz: tuple[int, ...], dtype: npt.DTypeLike, folder: Path | None) -> Array:
    """Zeros in a file without a name.

    Raises:
        ScanError: the disk has no room.
    """
    folder = folder or Path(tempfile.gettempdir())
    try:
        return unnamed_file(folder, shape_kxyz, dtype)
    except OSError as error:
        size = bytes_text(int(np.prod(shape_kxyz)) * np.dtype(dtype).itemsize)
        raise ScanError(
            f"the probabilities of {shape_kxyz[0]} classes take {size} in {folder}, which has too little space for "
            f"them ({error.strerror}); make space, choose another folder with -o, or leave --probabilities out, or all "
            "models but one"
        ) from None


def _write(path: Path, planes: Iterable[Array], num: int, header: ScanHeader) -> None:
    write_maps(path, planes, num, header.grid, scale=_SCALE, placement=header.placement)
