"""The augmentation of a whole batch on a CUDA device: one copy to it, one crop, one gather, then a pass for the changes
that only some channels drew. The host never waits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton

from voxelocity.core.device import as_current
from voxelocity.core.kernels import launch
from voxelocity.core.region import Index3, Region
from voxelocity.data.augment import triton_crop, triton_warp
from voxelocity.data.augment import triton_intensity as intensity
from voxelocity.data.augment import triton_tables as tables
from voxelocity.data.augment import triton_tone as tone
from voxelocity.data.augment.memory import ArrayLayout, Staging
from voxelocity.data.augment.noise import CHUNK_VOXELS, PIECES
from voxelocity.data.augment.params import AugmentParams
from voxelocity.data.augment.placement import ResidentSource, Source

_KERNEL_DTYPES = ("int16", "uint8", "float16", "float32")
GATHER_WARPS = 8
"""One voxel per thread and plane."""
SUMMING_WARPS = 8
"""Four voxels per thread; with eight, ptxas had to spill registers of `bend` for sm_80."""
_VOXELS_PER_PART = 4096
MAX_PARTS = 1024
"""Of a channel's sums: 512 programs for 128 x 128 x 128 voxels, which keep all of a large GPU busy."""


def augment_batch(
    sources: Sequence[Source | ResidentSource],
    regions: Sequence[Region],
    params: AugmentParams,
    image: torch.Tensor,
    label: torch.Tensor,
) -> None:
    """Fills a batch on the current stream of its device. Safe to use from several threads.

    Args:
        sources: one per sample, the box from `placement.needed_box`, on the host or on the device.
        regions: one per sample, of the patch in its volume.
        params: of the batch.
        image: (b, c, x, y, z) float32 in C order.
        label: (b, x, y, z) uint8 in C order, on the same device.
    """
    assert image.is_contiguous(), f"image with strides {image.stride()}"
    assert label.is_contiguous(), f"label with strides {label.stride()}"
    staging = Staging()
    gather = _Gather(staging, sources, regions, params)
    changes = _Changes(staging, params, regions[0].shape)
    with as_current(image.device):
        memory = staging.to(image.device)
        gather.launch(memory, image, label)
        changes.launch(memory, image)


def alignment(*sides: int) -> int:
    """How many numbers a thread may load or store at once: the sides are multiples of them."""
    return 4 if math.gcd(*sides) % 4 == 0 else 1


@dataclass(frozen=True)
class _Boxes:
    """Samples whose voxels lie in the same memory in the same dtype; without their own memory, in the staged one."""

    memory: torch.Tensor | None
    dtype: str
    is_warped: bool
    rows: ArrayLayout


class _Gather:
    """Crop, warp, labels, decoding and, if nothing comes in between, brightness."""

    def __init__(
        self,
        staging: Staging,
        sources: Sequence[Source | ResidentSource],
        regions: Sequence[Region],
        params: AugmentParams,
    ) -> None:
        rows: dict[tuple[int, str, bool], list[int]] = defaultdict(list)
        memories: dict[int, torch.Tensor | None] = {}
        found = []
        for row, (source, is_warped) in enumerate(zip(sources, params.is_warped.tolist(), strict=True)):
            memory, dtype, where = _stored(staging, source)
            memories[id(memory)] = memory
            rows[id(memory), dtype, is_warped].append(row)
            found.append(where)
        stored = np.array(found, dtype=np.int64)
        tables.check_reach(stored, params.is_warped)
        self._groups = [
            _Boxes(memories[number], dtype, is_warped, staging.add(np.array(some, dtype=np.int32)))
            for (number, dtype, is_warped), some in rows.items()
        ]
        self._places, self._steps, self._crops = (
            staging.add(table) for table in tables.placed(stored, sources, regions, params)
        )
        self._scales = staging.add(tables.scales(sources, params))
        controls = params.elastic[params.is_elastic]
        if len(controls) > 0:
            controls = np.einsum("bij,bjxyz->bixyz", params.matrix[params.is_elastic], controls)
        self._controls = staging.add(np.ascontiguousarray(controls, dtype=np.float32))
        self._votes, self._is_elastic = params.votes, params.elastic.size > 0
        self._swapped_rows = _listed(staging, params.is_swapped)
        self._swapped_classes = staging.add(params.swapped_classes)

    def launch(self, memory: torch.Tensor, image: torch.Tensor, label: torch.Tensor) -> None:
        lines = self._lines(memory, image)
        for group in self._groups:
            stored = memory if group.memory is None else group.memory
            boxes = (stored.view(getattr(torch, group.dtype)), stored, group.rows.of(memory))
            if group.is_warped:
                self._warp(boxes, lines, memory, image, label)
            else:
                self._crop(boxes, memory, image, label)
        if self._swapped_rows.shape[0] > 0:
            block, num_voxels = triton_warp.SWAP_BLOCK, math.prod(image.shape[2:])
            looked_up = [piece.of(memory) for piece in (self._swapped_rows, self._swapped_classes)]
            grid = (triton.cdiv(num_voxels, block), self._swapped_rows.shape[0])
            launch(triton_warp.swap_classes, grid, label, *looked_up, num_voxels, BLOCK=block)

    def _lines(self, memory: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        """The deformations, summed along x and y."""
        controls, (nx, ny) = self._controls.of(memory), image.shape[2:4]
        gx, gy, gz = controls.shape[2:]
        lines = torch.empty((len(controls), 3, nx, ny, gz), dtype=torch.float32, device=image.device)
        if lines.numel() > 0:
            block = triton_warp.ELASTIC_BLOCK
            grid = (triton.cdiv(nx * ny * gz, block), len(controls))
            launch(triton_warp.elastic_lines, grid, controls, lines, nx, ny, gx, gy, gz, BLOCK=block)
        return lines

    def _warp(
        self,
        boxes: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        lines: torch.Tensor,
        memory: torch.Tensor,
        image: torch.Tensor,
        label: torch.Tensor,
    ) -> None:
        shape = tuple(image.shape[2:])
        tiles = [triton.cdiv(side, tile) for side, tile in zip(shape, triton_warp.TILE, strict=True)]
        constants = dict(zip(("TILE_X", "TILE_Y", "TILE_Z"), triton_warp.TILE, strict=True))
        constants |= {"VOTES": self._votes, "ELASTIC": self._is_elastic, "ALIGN": alignment(shape[2])}
        looked_up = [piece.of(memory) for piece in (self._places, self._steps, self._scales)]
        patches = (lines, image, label, image.shape[1], *shape, lines.shape[4])
        grid = (math.prod(tiles), len(boxes[2]))
        launch(triton_warp.gather, grid, *boxes, *looked_up, *patches, **constants, num_warps=GATHER_WARPS)

    def _crop(
        self,
        boxes: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        memory: torch.Tensor,
        image: torch.Tensor,
        label: torch.Tensor,
    ) -> None:
        nx, ny, nz = image.shape[2:]
        planes, block = triton_crop.CROP_PLANES, triton_crop.CROP_BLOCK
        constants = {"ALIGN": alignment(nz), "PLANES": planes, "BLOCK": block, "num_warps": triton_crop.CROP_WARPS}
        looked_up = (self._crops.of(memory), self._scales.of(memory))
        grid = (triton.cdiv(ny * nz, block), triton.cdiv(nx, planes), len(boxes[2]))
        launch(triton_crop.crop, grid, *boxes, *looked_up, image, label, image.shape[1], nx, ny, nz, **constants)


def _stored(staging: Staging, source: Source | ResidentSource) -> tuple[torch.Tensor | None, str, tuple[int, ...]]:
    """The memory that holds a sample's voxels, its dtype, and the places of its voxels, as `gather` takes them."""
    if isinstance(source, ResidentSource):
        box = source.box
        where = (box.image_offset, *box.image_steps, box.label_offset, *box.label_steps, *box.shape)
        return box.memory, box.dtype, where
    is_known = source.image.dtype.name in _KERNEL_DTYPES and source.image.dtype.isnative
    image = staging.add(source.image, source.image.dtype.name if is_known else "float32")
    label = staging.add(source.label)
    return None, image.dtype, (image.offset, *image.steps, label.offset, *label.steps, *label.shape)


class _Changes:
    """All changes to intensities, each only where it was drawn."""

    def __init__(self, staging: Staging, params: AugmentParams, shape: Index3) -> None:
        self._shape = shape
        self._num_voxels = shape[0] * shape[1] * shape[2]
        self._num_parts = min(triton.cdiv(self._num_voxels, _VOXELS_PER_PART), MAX_PARTS)
        self._keeps_moments = params.gamma_keeps_moments
        contrasted, coarse = params.contrast != 1.0, params.low_resolution != 1.0
        inverted, straight = params.gamma_inverted != 1.0, params.gamma != 1.0
        bent = inverted | straight
        self._changed, self._blurred = (
            _listed(staging, tables.are_changed(params)),
            _listed(staging, tables.are_blurred(params)),
        )
        # Channels that are coarsened without contrast are measured during coarsening, not here.
        self._measured = _listed(staging, contrasted | (bent & ~coarse))
        self._coarse = _listed(staging, coarse)
        self._bent = _listed(staging, bent | (contrasted & ~coarse))
        self._bent_twice = _listed(staging, inverted & straight)
        self._restored = _listed(staging, bent & params.gamma_keeps_moments)
        self._still_contrasted = _flags(staging, contrasted & ~coarse, of=bent | (contrasted & ~coarse))
        self._were_bent_twice = _flags(staging, inverted & straight, of=bent & params.gamma_keeps_moments)
        self._values = staging.add(tables.values(params))
        self._seeds = staging.add(params.noise_seed)
        self._cubes = staging.add(tables.cubes(params))
        self._pieces = staging.add(PIECES if self._changed.shape[0] > 0 else PIECES[:0])
        taps, radii = tables.taps(params, shape)
        self._taps, self._radii = staging.add(taps), staging.add(radii)
        below, above, shares = tables.coarse_tables(params, shape)
        self._below, self._above, self._shares = staging.add(below), staging.add(above), staging.add(shares)

    def launch(self, memory: torch.Tensor, image: torch.Tensor) -> None:
        if self._changed.shape[0] > 0:
            pieces = (self._changed, self._values, self._cubes, self._seeds, self._pieces)
            launch(
                intensity.change_points,
                (triton.cdiv(self._num_voxels, CHUNK_VOXELS), self._changed.shape[0]),
                *(image, *(piece.of(memory) for piece in pieces), self._num_voxels, image.shape[1], *self._shape),
            )
        if self._blurred.shape[0] > 0:
            self._blur(memory, image)
        self._bend(memory, image)

    def _blur(self, memory: torch.Tensor, image: torch.Tensor) -> None:
        nx, ny, nz = self._shape
        listed, block = self._blurred.shape[0], intensity.BLOCK
        scratch = [self._scratch(listed, image.device) for _ in range(2)]
        looked_up = [piece.of(memory) for piece in (self._blurred, self._taps, self._radii, self._values)]
        stations = (image, *scratch, image)
        for axis, (side, inner) in enumerate(((nx, ny * nz), (ny, nz), (nz, 1))):
            numbers = (self._taps.shape[2], side, inner, self._num_voxels)
            constants = {"AXIS": axis, "ALIGN": alignment(nz), "BLOCK": block}
            grid = (triton.cdiv(self._num_voxels, block), listed)
            launch(intensity.blur_along, grid, *stations[axis : axis + 2], *looked_up, *numbers, **constants)

    def _bend(self, memory: torch.Tensor, image: torch.Tensor) -> None:
        """Contrast, low resolution and gamma."""
        num_channels = image.shape[0] * image.shape[1]
        sums = torch.empty(num_channels * tone.NUM_SLOTS * 4 * MAX_PARTS, dtype=torch.float64, device=image.device)
        values, size = self._values.of(memory), self._num_voxels
        constants = {"PARTS": MAX_PARTS, "BLOCK": intensity.BLOCK, "num_warps": SUMMING_WARPS}
        if self._measured.shape[0] > 0:
            listed = self._measured.of(memory)
            launch(tone.measure, self._grid(self._measured), image, listed, sums, size, **constants)
        if self._coarse.shape[0] > 0:
            listed, grid = self._coarse.of(memory), self._grid(self._coarse)
            scratch = self._scratch(len(listed), image.device)
            launch(tone.spread, grid, image, scratch, listed, values, sums, size, **constants)
            looked_up = (self._below.of(memory), self._above.of(memory), self._shares.of(memory))
            aligned = constants | {"ALIGN": alignment(*self._shape)}
            launch(tone.coarsen, grid, scratch, image, listed, *looked_up, sums, size, *self._shape, **aligned)
        if self._bent.shape[0] > 0:
            listed, flags = self._bent.of(memory), self._still_contrasted.of(memory)
            launch(tone.bend, self._grid(self._bent), image, listed, values, flags, sums, size, **constants)
        if self._bent_twice.shape[0] > 0:
            listed, twice = self._bent_twice.of(memory), constants | {"KEEPS_MOMENTS": self._keeps_moments}
            launch(tone.bend_again, self._grid(self._bent_twice), image, listed, values, sums, size, **twice)
        if self._restored.shape[0] > 0:
            listed, flags = self._restored.of(memory), self._were_bent_twice.of(memory)
            launch(tone.restore, self._grid(self._restored), image, listed, flags, sums, size, **constants)

    def _scratch(self, num_channels: int, device: torch.device) -> torch.Tensor:
        # Each in memory of its own, so that it begins at a multiple of 16 bytes, as what is compiled ahead expects.
        return torch.empty((num_channels, self._num_voxels), dtype=torch.float32, device=device)

    def _grid(self, listed: ArrayLayout) -> tuple[int, int]:
        return (self._num_parts, listed.shape[0])


def _listed(staging: Staging, channels: tables.Bools) -> ArrayLayout:
    return staging.add(np.flatnonzero(channels).astype(np.int32))


def _flags(staging: Staging, channels: tables.Bools, *, of: tables.Bools) -> ArrayLayout:
    return staging.add(channels[of].astype(np.int32))
