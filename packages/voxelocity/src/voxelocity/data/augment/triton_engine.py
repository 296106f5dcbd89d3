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

from voxelocity.core.kernels import launch
from voxelocity.core.region import Index3, Region
from voxelocity.data.augment import triton_crop, triton_warp
from voxelocity.data.augment import triton_intensity as intensity
from voxelocity.data.augment import triton_tables as tables
from voxelocity.data.augment import triton_tone as tone
from voxelocity.data.augment.memory import ArrayLayout, Staged, Staging
from voxelocity.data.augment.noise import CHUNK_VOXELS, PIECES
from voxelocity.data.augment.params import AugmentParams, ResidentSource, Source
from voxelocity.data.augment.torch_engine import cut_out
from voxelocity.data.augment.triton_tables import ChangeKernel
from voxelocity_observe.core.device import as_current

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
        sources: one per sample, the box from `params.needed_box`, on the host or on the device.
        regions: one per sample, of the patch in its volume.
        params: of the batch.
        image: (b, c, x, y, z) of any floating-point dtype, in C order or channels_last_3d. Every change is computed in
            float32 and rounded once, by the kernel that makes a channel's last one.
        label: (b, x, y, z) uint8 in C order, on the same device.
    """
    assert label.is_contiguous(), f"label with strides {label.stride()}"
    staging = Staging()
    lists = tables.lists(params)
    gather = _Gather(staging, sources, regions, params, lists)
    changes = _Changes(staging, params, lists, regions[0].shape)
    with as_current(image.device):
        patches = _Patches.of(image, label, is_changed=any(lists.sizes))
        memory = staging.to(image.device)
        gather.launch(memory, patches)
        changes.launch(memory, patches)
        for row in np.flatnonzero(params.cutout.any(axis=(1, 2, 3))).tolist():
            cut_out(image[row], params, row)


def alignment(*sides: int) -> int:
    """How many numbers a thread may load or store at once: the sides are multiples of them."""
    return 4 if math.gcd(*sides) % 4 == 0 else 1


@dataclass(frozen=True)
class _Patches:
    """Where the patches of a batch go.

    Attributes:
        out: the images as they are given out.
        work: `triton_frame`; without any voxels if nothing is changed.
        label: of the batch.
        inner: INNER of `triton_frame`.
    """

    out: torch.Tensor
    work: torch.Tensor
    label: torch.Tensor
    inner: int

    @classmethod
    def of(cls, image: torch.Tensor, label: torch.Tensor, *, is_changed: bool) -> _Patches:
        is_c_order = image.is_contiguous()
        assert is_c_order or image.is_contiguous(memory_format=torch.channels_last_3d), f"strides {image.stride()}"
        work = image
        if not is_c_order or image.dtype != torch.float32:
            shape = image.shape if is_changed else (0,)
            work = torch.empty(shape, dtype=torch.float32, device=image.device)
        return cls(image, work, label, 1 if is_c_order else image.shape[1])


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
        lists: tables.Lists,
    ) -> None:
        rows: dict[tuple[int, str, bool], list[int]] = defaultdict(list)
        memories: dict[int, torch.Tensor | None] = {}
        found = []
        for row, (source, is_warped) in enumerate(zip(sources, params.is_warped.tolist(), strict=True)):
            memory, dtype, where = _stage_source(staging, source)
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
        self._scales = staging.add(tables.scales(sources, params, lists))
        controls = params.elastic[params.is_elastic]
        if len(controls) > 0:
            controls = np.einsum("bij,bjxyz->bixyz", params.matrix[params.is_elastic], controls)
        self._controls = staging.add(np.ascontiguousarray(controls, dtype=np.float32))
        self._votes, self._is_elastic = params.votes, params.elastic.size > 0
        self._swapped_rows = staging.add(np.flatnonzero(params.is_swapped).astype(np.int32))
        self._swapped_classes = staging.add(params.swapped_classes)

    def launch(self, memory: Staged, patches: _Patches) -> None:
        lines = self._lines(memory, patches.out)
        for group in self._groups:
            stored = memory.memory if group.memory is None else group.memory
            boxes = (stored.view(getattr(torch, group.dtype)), stored, memory.of(group.rows))
            if group.is_warped:
                self._warp(boxes, lines, memory, patches)
            else:
                self._crop(boxes, memory, patches)
        if self._swapped_rows.shape[0] > 0:
            block, num_voxels = triton_warp.SWAP_BLOCK, math.prod(patches.out.shape[2:])
            looked_up = [memory.of(piece) for piece in (self._swapped_rows, self._swapped_classes)]
            grid = (blocks(num_voxels, block), self._swapped_rows.shape[0])
            launch(triton_warp.swap_classes, grid, patches.label, *looked_up, num_voxels, BLOCK=block)

    def _lines(self, memory: Staged, image: torch.Tensor) -> torch.Tensor:
        """The deformations, summed along x and y."""
        num, _, gx, gy, gz = self._controls.shape
        nx, ny = image.shape[2:4]
        lines = torch.empty((num, 3, nx, ny, gz), dtype=torch.float32, device=image.device)
        if lines.numel() > 0:
            block = triton_warp.ELASTIC_BLOCK
            grid = (blocks(nx * ny * gz, block), num)
            controls = memory.of(self._controls)
            launch(triton_warp.elastic_lines, grid, controls, lines, nx, ny, gx, gy, gz, BLOCK=block)
        return lines

    def _warp(
        self,
        boxes: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        lines: torch.Tensor,
        memory: Staged,
        patches: _Patches,
    ) -> None:
        num_channels, *shape = patches.out.shape[1:]
        tiles = [blocks(side, tile) for side, tile in zip(shape, triton_warp.TILE, strict=True)]
        constants = dict(zip(("TILE_X", "TILE_Y", "TILE_Z"), triton_warp.TILE, strict=True))
        constants |= {"VOTES": self._votes, "ELASTIC": self._is_elastic, "ALIGN": alignment(shape[2])}
        constants |= {"INNER": patches.inner, "num_warps": GATHER_WARPS}
        looked_up = [memory.of(piece) for piece in (self._places, self._steps, self._scales)]
        filled = (patches.out, patches.work, patches.label)
        grid = (math.prod(tiles), len(boxes[2]))
        numbers = (num_channels, *shape, lines.shape[4])
        launch(triton_warp.gather, grid, *boxes, *looked_up, lines, *filled, *numbers, **constants)

    def _crop(self, boxes: tuple[torch.Tensor, torch.Tensor, torch.Tensor], memory: Staged, patches: _Patches) -> None:
        num_channels, nx, ny, nz = patches.out.shape[1:]
        # Two kinds of stores take more registers: with as many voxels a thread, ptxas spilled some for sm_80 and 120.
        block = triton_crop.CROP_BLOCK // (1 if patches.work is patches.out else 2)
        planes = triton_crop.CROP_PLANES
        constants = {"ALIGN": alignment(nz), "INNER": patches.inner, "PLANES": planes, "BLOCK": block}
        looked_up = (memory.of(self._crops), memory.of(self._scales))
        filled = (patches.out, patches.work, patches.label)
        grid = (blocks(ny * nz, block), blocks(nx, planes), len(boxes[2]))
        arguments = (*boxes, *looked_up, *filled, num_channels, nx, ny, nz)
        launch(triton_crop.crop, grid, *arguments, **constants, num_warps=triton_crop.CROP_WARPS)


def _stage_source(
    staging: Staging, source: Source | ResidentSource
) -> tuple[torch.Tensor | None, str, tuple[int, ...]]:
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

    def __init__(self, staging: Staging, params: AugmentParams, lists: tables.Lists, shape: Index3) -> None:
        self._shape, self._sizes = shape, lists.sizes
        if not any(self._sizes):
            return
        self._num_voxels = shape[0] * shape[1] * shape[2]
        self._num_parts = min(blocks(self._num_voxels, _VOXELS_PER_PART), MAX_PARTS)
        self._keeps_moments = params.gamma_keeps_moments
        self._entries = staging.add(lists.entries)
        is_blurred = lists.chosen[ChangeKernel.BLUR]
        self._values = staging.add(tables.values(params, is_blurred))
        if self._sizes[ChangeKernel.POINTS]:
            self._points = [staging.add(array) for array in (tables.cubes(params), params.noise_seed, PIECES)]
        if self._sizes[ChangeKernel.BLUR]:
            self._kernels = [staging.add(array) for array in tables.taps(params, is_blurred, shape)]
        if self._sizes[ChangeKernel.COARSEN]:
            self._low = [staging.add(array) for array in tables.coarse_tables(params, shape)]

    def launch(self, memory: Staged, patches: _Patches) -> None:
        if not any(self._sizes):
            return
        lists, values = memory.of(self._entries), memory.of(self._values)
        if self._sizes[ChangeKernel.POINTS]:
            grid = (blocks(self._num_voxels, CHUNK_VOXELS), self._sizes[ChangeKernel.POINTS])
            looked_up = (lists[ChangeKernel.POINTS], values, *map(memory.of, self._points))
            numbers = (self._num_voxels, patches.out.shape[1], *self._shape)
            filled = (patches.out, patches.work)
            launch(intensity.change_points, grid, *filled, *looked_up, *numbers, INNER=patches.inner)
        if self._sizes[ChangeKernel.BLUR]:
            self._blur(memory, patches, lists[ChangeKernel.BLUR], values)
        if any(self._sizes[ChangeKernel.COARSEN :]):
            self._bend(memory, patches, lists, values)

    def _blur(self, memory: Staged, patches: _Patches, listed: torch.Tensor, values: torch.Tensor) -> None:
        nx, ny, nz = self._shape
        num, block = self._sizes[ChangeKernel.BLUR], intensity.BLOCK
        looked_up = (listed, *map(memory.of, self._kernels), values)
        first, second = (self._scratch(num, patches) for _ in range(2))
        stations, grid = (patches.work, first, second, patches.work), (blocks(self._num_voxels, block), num)
        for axis, (side, inner) in enumerate(((nx, ny * nz), (ny, nz), (nz, 1))):
            numbers = (self._kernels[0].shape[2], side, inner, self._num_voxels)
            constants = {"AXIS": axis, "ALIGN": alignment(nz), "INNER": patches.inner, "BLOCK": block}
            filled = (stations[axis], patches.out, stations[axis + 1])
            launch(intensity.blur_along, grid, *filled, *looked_up, *numbers, **constants)

    def _bend(self, memory: Staged, patches: _Patches, lists: torch.Tensor, values: torch.Tensor) -> None:
        """Contrast, low resolution and gamma."""
        out, work, size, sizes = patches.out, patches.work, self._num_voxels, self._sizes
        num_sums = len(out) * out.shape[1] * tone.NUM_SLOTS * 4 * MAX_PARTS
        sums = torch.empty(num_sums, dtype=torch.float64, device=out.device)
        summed = {"PARTS": MAX_PARTS, "BLOCK": intensity.BLOCK, "num_warps": SUMMING_WARPS}
        stored = summed | {"INNER": patches.inner}
        used = [which for which in ChangeKernel if which >= ChangeKernel.COARSEN and sizes[which]]
        at = {which: ((self._num_parts, sizes[which]), lists[which]) for which in used}
        if sizes[ChangeKernel.MEASURE]:
            grid, listed = at[ChangeKernel.MEASURE]
            launch(tone.measure, grid, work, listed, sums, size, **summed)
        if sizes[ChangeKernel.COARSEN]:
            grid, listed = at[ChangeKernel.COARSEN]
            scratch = self._scratch(sizes[ChangeKernel.COARSEN], patches)
            launch(tone.spread, grid, work, scratch, listed, values, sums, size, **summed)
            arguments = (scratch, out, work, listed, *map(memory.of, self._low), sums, size, *self._shape)
            launch(tone.coarsen, grid, *arguments, **stored, ALIGN=alignment(*self._shape))
        if sizes[ChangeKernel.BEND]:
            grid, listed = at[ChangeKernel.BEND]
            launch(tone.bend, grid, out, work, listed, values, sums, size, **stored)
        if sizes[ChangeKernel.BEND_AGAIN]:
            grid, listed = at[ChangeKernel.BEND_AGAIN]
            keeps = {"KEEPS_MOMENTS": self._keeps_moments}
            launch(tone.bend_again, grid, out, work, listed, values, sums, size, **stored, **keeps)
        if sizes[ChangeKernel.RESTORE]:
            grid, listed = at[ChangeKernel.RESTORE]
            launch(tone.restore, grid, out, work, listed, sums, size, **stored)

    def _scratch(self, num_channels: int, patches: _Patches) -> torch.Tensor:
        # Each in memory of its own, so that it begins at a multiple of 16 bytes, as what is compiled ahead expects.
        return torch.empty((num_channels, self._num_voxels), dtype=torch.float32, device=patches.out.device)


def blocks(count: int, size: int) -> int:
    """Programs of `size` for `count`."""
    return -(-count // size)
