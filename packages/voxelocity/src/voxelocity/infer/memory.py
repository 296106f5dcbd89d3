"""What predicting a scan will take in memory, from its header: before a voxel of it is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from voxelocity.core.cases import index_dtype
from voxelocity.core.contracts import DeterministicStage
from voxelocity.core.region import Index3
from voxelocity.core.volume import VolumeSpec
from voxelocity.infer.model import Model, PredictionSpec, passes_of
from voxelocity.infer.tiling import tiling_of
from voxelocity.infer.window_config import FLOAT16_SUMS
from voxelocity_observe.core.quantities import bytes_text
from voxelocity_observe.document.blocks import Document, Section, fact_table

_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class ScanMemory:
    """Bytes of the arrays of one scan while it is predicted, besides the network and what it computes inside.

    Attributes:
        shape: of the scan in voxels.
        prepared_shape: after preparation; an upper bound if the preparation crops.
        num_windows: of the prepared volume.
        num_passes: forward passes for the scan by itself, those of mirrored windows and of the preparation included.
        scan_bytes: the scan as decoded.
        preparing_bytes: scan and scratch arrays while it is prepared.
        image_bytes: the prepared image, as stored and as the network takes it.
        scores_bytes: the sum of the logits, of the tiles that are held at once.
        windows_bytes: the windows of a forward pass and their logits.
        labels_bytes: the prediction on the scan's grid, with the copy that is written.
    """

    shape: Index3
    prepared_shape: Index3
    num_windows: int
    num_passes: int
    scan_bytes: int
    preparing_bytes: int
    image_bytes: int
    scores_bytes: int
    windows_bytes: int
    labels_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The larger of preparing and predicting."""
        predicting = self.scan_bytes + self.image_bytes + self.scores_bytes + self.windows_bytes + self.labels_bytes
        return max(self.preparing_bytes, predicting)


def scan_memory(scan: VolumeSpec, spec: PredictionSpec, preparation: DeterministicStage) -> ScanMemory:
    """The memory for a scan of this spec.

    Raises:
        ScanError: the scan cannot be prepared.
    """
    effect = preparation.describe(scan)
    prepared = effect.spec
    window = spec.window.within(prepared.grid.shape).shape_voxel
    x, y, z = (max(n, w) for n, w in zip(prepared.grid.shape, window, strict=True))
    tiling = tiling_of(
        (x, y, z),
        window,
        spec.window.overlap,
        num_outputs=spec.num_outputs,
        spread=spec.window.spread,
        in_order=spec.window.blend == FLOAT16_SUMS,
    )
    num_voxels, num_windows = x * y * z, len(tiling.windows)
    num_mirrorings = 2 ** len(set(spec.window.mirror_axes))
    values_per_window = (prepared.num_channels + spec.num_outputs) * math.prod(window)
    return ScanMemory(
        shape=scan.grid.shape,
        prepared_shape=prepared.grid.shape,
        num_windows=num_windows,
        num_passes=math.ceil(num_windows / spec.window.batch_size) * num_mirrorings + passes_of(preparation, scan),
        scan_bytes=scan.image_bytes,
        preparing_bytes=scan.image_bytes + effect.scratch_bytes,
        image_bytes=prepared.num_channels * num_voxels * (np.dtype(prepared.dtype).itemsize + _FLOAT_BYTES),
        scores_bytes=_FLOAT_BYTES * spec.num_outputs * tiling.peak_voxels,
        windows_bytes=_FLOAT_BYTES * min(spec.window.batch_size, num_windows) * values_per_window,
        labels_bytes=2 * np.dtype(index_dtype(len(spec.labels))).itemsize * scan.grid.num_voxels,
    )


def model_memory(scan: VolumeSpec, model: Model) -> ScanMemory:
    """The memory for a scan of this spec: that of the model's largest part, with the passes of all.

    Raises:
        ScanError: as `scan_memory`.
    """
    parts = [scan_memory(scan, part.spec, part.preparation) for part in model.parts or (model,)]
    largest = max(parts, key=lambda part: part.peak_bytes)
    return replace(largest, num_passes=sum(part.num_passes for part in parts))


def memory_document(case_id: str, memory: ScanMemory, spec: PredictionSpec, *, place: str, free_bytes: int) -> Document:
    """What predicting the largest scan takes, for `voxelocity predict --dry-run`; its scores go to `place`."""
    size, prepared = (" x ".join(map(str, shape)) for shape in (memory.shape, memory.prepared_shape))
    window = " x ".join(map(str, spec.window.within(memory.prepared_shape).shape_voxel))
    rows = [
        (f"scan, {size} voxels", memory.scan_bytes),
        ("scan and scratch arrays while it is prepared", memory.preparing_bytes),
        (f"prepared image, {prepared} voxels", memory.image_bytes),
        (f"scores of {spec.num_outputs} classes, in {place}", memory.scores_bytes),
        (f"a pass of {min(spec.window.batch_size, memory.num_windows)} windows, {window} voxels", memory.windows_bytes),
        ("prediction", memory.labels_bytes),
        ("peak", memory.peak_bytes),
    ]
    table = fact_table(
        f"Memory for the largest scan, case '{case_id}'",
        [(name, bytes_text(num_bytes)) for name, num_bytes in rows],
        heads=("Part", "Bytes"),
    )
    verdict = (
        f"The largest scan, case '{case_id}', takes {bytes_text(memory.peak_bytes)}, not counting the network and its "
        f"features; {bytes_text(free_bytes)} of main memory are free. Its scores go to {place}."
    )
    return Document(
        kind="prediction plan",
        title="Prediction",
        verdict=verdict,
        sections=[Section(title="Memory", blocks=[table])],
        values={"case": case_id, "place": place, "free_bytes": free_bytes, "bytes": dict(rows)},
    )
