"""Probabilities of every class: a byte for each voxel, kept tile by tile in a file, put back class by class."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Array
from voxelocity.data.decode import ScanHeader, write_maps
from voxelocity.data.prepare import Trace, restore_scores
from voxelocity.infer import arrays
from voxelocity.infer.accumulator import unnamed_file
from voxelocity.infer.arrays import Values
from voxelocity.infer.model import PredictionSpec
from voxelocity.infer.stitched import TileSink
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

    def __init__(
        self, shape: Index3, trace: Trace, spec: PredictionSpec, *, folder: Path | None, labels: TileSink
    ) -> None:
        self._trace, self._labels, self._has_regions = trace, labels, bool(spec.region_order)
        kept, folder = (spec.num_outputs, *shape), folder or Path(tempfile.gettempdir())
        try:
            self._kept: Array = unnamed_file(folder, kept, np.uint8)
        except OSError as error:
            raise ScanError(
                f"the probabilities of {spec.num_outputs} classes take {bytes_text(int(np.prod(kept)))} in "
                f"{folder}, which has no room for them ({error.strerror}); make space, choose another folder with -o, "
                "or leave --probabilities out"
            ) from None

    def take(self, sums_kxyz: Values, weights_xyz: Values | None, box: Region) -> None:
        self._labels.take(sums_kxyz, weights_xyz, box)
        kept = self._kept[(slice(None), *box.slices)]
        # Plane by plane: a tile may be most of the volume.
        for index in range(sums_kxyz.shape[1]):
            logits = sums_kxyz[:, index]
            if weights_xyz is not None:
                logits = logits / weights_xyz[index]
            found = arrays.sigmoid(logits) if self._has_regions else arrays.softmax(logits)
            kept[:, index] = np.rint(arrays.to_numpy(found * _ONE))

    def write(self, path: Path, header: ScanHeader) -> None:
        """Writes them as a 4-D NIfTI file on the grid of the scan, one volume for each output of the network.

        Raises:
            OutputError: the file cannot be written.
        """
        write_maps(path, self._restore(), len(self._kept), header.grid, scale=_SCALE, placement=header.placement)

    def _restore(self) -> Iterator[Array]:
        for index, kept in enumerate(self._kept):
            # What was cropped away is background.
            is_background = index == 0 and not self._has_regions
            found = restore_scores(_ONE - kept if is_background else kept, self._trace)
            whole = np.rint(found).astype(np.uint8)
            yield _ONE - whole if is_background else whole
