"""The augmentation of a whole batch on a CUDA device: one copy to it, one gather, then a pass for the changes that only
some channels drew. The host never waits.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton

from voxelocity.core.device import as_current
from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Array
from voxelocity.data.augment import triton_intensity as intensity
from voxelocity.data.augment import triton_tone as tone
from voxelocity.data.augment import triton_warp
from voxelocity.data.augment.memory import ArrayLayout, Staging
from voxelocity.data.augment.noise import CHUNK_VOXELS, PIECES
from voxelocity.data.augment.params import AugmentParams
from voxelocity.data.augment.placement import ResidentSource, Source, middle_and_step, slopes_and_inters
from voxelocity.data.augment.tables import blur_weights, coefficient_cube, low_positions

_KERNEL_DTYPES = ("int16", "uint8", "float16", "float32")
GATHER_WARPS = 8
"""Two voxels per thread: about 80 registers; four voxels take 128, so only half the threads fit."""
SUMMING_WARPS = 8
"""Four voxels per thread; with eight, ptxas had to spill registers of `bend` for sm_80."""
_VOXELS_PER_PART = 8192
_MAX_PARTS = 128
_Bools = npt.NDArray[np.bool_]
# Triton compiles a kernel on its first launch with arguments of a kind, and does not document that this is thread-safe;
# each thread would compile its own. Launches are Python, which runs in one thread at a time anyway.
_launching = threading.Lock()


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
        with _launching:
            gather.launch(memory, image, label)
            changes.launch(memory, image)


@dataclass(frozen=True)
class _Boxes:
    """Samples whose voxels lie in the same memory in the same dtype; without their own memory, in the staged one."""

    memory: torch.Tensor | None
    dtype: str
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
        places = np.zeros((params.num_samples, len(triton_warp.PLACE_NAMES)), dtype=np.int64)
        steps = np.zeros((params.num_samples, triton_warp.NUM_STEPS), dtype=np.float32)
        slots = np.where(params.is_elastic, np.cumsum(params.is_elastic) - 1, -1)
        rows: dict[tuple[int, str], list[int]] = defaultdict(list)
        memories: dict[int, torch.Tensor | None] = {}
        for row, (source, region) in enumerate(zip(sources, regions, strict=True)):
            memory, dtype, where = _stored(staging, source)
            memories[id(memory)] = memory
            rows[id(memory), dtype].append(row)
            middle, step = middle_and_step(params, row, region, source.start)
            base = np.floor(middle)
            places[row] = (*where, *base.astype(np.int64), params.is_warped[row], slots[row])
            steps[row] = (*(middle - base), *step.ravel())
        self._groups = [
            _Boxes(memories[number], dtype, staging.add(np.array(some, dtype=np.int32)))
            for (number, dtype), some in rows.items()
        ]
        self._places, self._steps = staging.add(places), staging.add(steps)
        self._scales = staging.add(_scales(sources, params))
        controls = np.einsum("bij,bjxyz->bixyz", params.matrix, params.elastic)[params.is_elastic]
        self._controls = staging.add(np.ascontiguousarray(controls, dtype=np.float32))
        self._votes = params.votes
        self._swapped_rows = _listed(staging, params.is_swapped)
        self._swapped_classes = staging.add(params.swapped_classes)

    def launch(self, memory: torch.Tensor, image: torch.Tensor, label: torch.Tensor) -> None:
        num_channels, (nx, ny, nz) = image.shape[1], image.shape[2:]
        controls = self._controls.of(memory)
        gx, gy, gz = controls.shape[2:]
        lines = torch.empty((len(controls), 3, nx, ny, gz), dtype=torch.float32, device=image.device)
        if lines.numel() > 0:
            block = triton_warp.ELASTIC_BLOCK
            triton_warp.elastic_lines[(triton.cdiv(nx * ny * gz, block), len(controls))](
                controls, lines, nx, ny, gx, gy, gz, BLOCK=block
            )
        tiles = [triton.cdiv(side, tile) for side, tile in zip((nx, ny, nz), triton_warp.TILE, strict=True)]
        constants = dict(zip(("TILE_X", "TILE_Y", "TILE_Z"), triton_warp.TILE, strict=True))
        constants |= {"VOTES": self._votes, "num_warps": GATHER_WARPS}
        for group in self._groups:
            stored = memory if group.memory is None else group.memory
            tables = [piece.of(memory) for piece in (group.rows, self._places, self._steps, self._scales)]
            patches = (lines, image, label, num_channels, nx, ny, nz, gz)
            triton_warp.gather[(math.prod(tiles), group.rows.shape[0])](
                stored.view(getattr(torch, group.dtype)), stored, *tables, *patches, **constants
            )
        if self._swapped_rows.shape[0] > 0:
            block, num_voxels = triton_warp.SWAP_BLOCK, nx * ny * nz
            tables = [piece.of(memory) for piece in (self._swapped_rows, self._swapped_classes)]
            triton_warp.swap_classes[(triton.cdiv(num_voxels, block), self._swapped_rows.shape[0])](
                label, *tables, num_voxels, BLOCK=block
            )


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


def _scales(sources: Sequence[Source | ResidentSource], params: AugmentParams) -> npt.NDArray[np.float32]:
    """Decoding, combined with the brightness of channels where nothing comes in between: (b, c, 3)."""
    is_folded = ~(_are_blurred(params) | _are_changed(params))
    slope, inter = np.moveaxis(np.stack([slopes_and_inters(one, params.num_channels) for one in sources]), 2, 0)
    factor, fill = np.where(is_folded, params.scale, 1.0), np.where(is_folded, params.shift, 0.0)
    return np.stack([slope * factor, inter * factor, fill], axis=2).astype(np.float32)


def _are_blurred(params: AugmentParams) -> _Bools:
    is_blurred: _Bools = np.asarray((params.blur_sigma_voxel > 0.0).any(axis=2))
    return is_blurred


def _are_changed(params: AugmentParams) -> _Bools:
    """Which channels get a bias or noise: (b, c)."""
    is_changed: _Bools = np.asarray(params.has_bias | (params.noise_std > 0.0))
    return np.repeat(is_changed[:, None], params.num_channels, axis=1)


class _Changes:
    """All changes to intensities, each only where it was drawn."""

    def __init__(self, staging: Staging, params: AugmentParams, shape: Index3) -> None:
        self._shape = shape
        self._num_voxels = shape[0] * shape[1] * shape[2]
        parts = triton.next_power_of_2(triton.cdiv(self._num_voxels, _VOXELS_PER_PART))
        self._num_parts = min(parts, _MAX_PARTS)
        self._keeps_moments = params.gamma_keeps_moments
        contrasted, coarse = params.contrast != 1.0, params.low_resolution != 1.0
        inverted, straight = params.gamma_inverted != 1.0, params.gamma != 1.0
        bent = inverted | straight
        self._changed, self._blurred = _listed(staging, _are_changed(params)), _listed(staging, _are_blurred(params))
        # Channels that are coarsened without contrast are measured during coarsening, not here.
        self._measured = _listed(staging, contrasted | (bent & ~coarse))
        self._coarse = _listed(staging, coarse)
        self._bent = _listed(staging, bent | (contrasted & ~coarse))
        self._bent_twice = _listed(staging, inverted & straight)
        self._restored = _listed(staging, bent & params.gamma_keeps_moments)
        self._still_contrasted = _flags(staging, contrasted & ~coarse, of=bent | (contrasted & ~coarse))
        self._were_bent_twice = _flags(staging, inverted & straight, of=bent & params.gamma_keeps_moments)
        self._values = staging.add(_values(params))
        self._seeds = staging.add(params.noise_seed)
        self._cubes = staging.add(_cubes(params))
        self._pieces = staging.add(PIECES if self._changed.shape[0] > 0 else PIECES[:0])
        taps, radii = _taps(params, shape)
        self._taps, self._radii = staging.add(taps), staging.add(radii)
        below, above, shares = _coarse_tables(params, shape)
        self._below, self._above, self._shares = staging.add(below), staging.add(above), staging.add(shares)

    def launch(self, memory: torch.Tensor, image: torch.Tensor) -> None:
        if self._changed.shape[0] > 0:
            pieces = (self._changed, self._values, self._cubes, self._seeds, self._pieces)
            intensity.change_points[(triton.cdiv(self._num_voxels, CHUNK_VOXELS), self._changed.shape[0])](
                image, *(piece.of(memory) for piece in pieces), image.shape[1], *self._shape
            )
        if self._blurred.shape[0] > 0:
            self._blur(memory, image)
        self._bend(memory, image)

    def _blur(self, memory: torch.Tensor, image: torch.Tensor) -> None:
        nx, ny, nz = self._shape
        listed, block = self._blurred.shape[0], intensity.BLOCK
        scratch = torch.empty((2, listed, self._num_voxels), dtype=torch.float32, device=image.device)
        tables = [piece.of(memory) for piece in (self._blurred, self._taps, self._radii, self._values)]
        stations = (image, scratch[0], scratch[1], image)
        for axis, (side, inner) in enumerate(((nx, ny * nz), (ny, nz), (nz, 1))):
            numbers = (axis, self._taps.shape[2], side, inner, self._num_voxels)
            constants = {"FROM_IMAGE": axis == 0, "TO_IMAGE": axis == 2, "BLOCK": block}
            intensity.blur_along[(triton.cdiv(self._num_voxels, block), listed)](
                *stations[axis : axis + 2], *tables, *numbers, **constants
            )

    def _bend(self, memory: torch.Tensor, image: torch.Tensor) -> None:
        """Contrast, low resolution and gamma."""
        num_channels = image.shape[0] * image.shape[1]
        slot_size = num_channels * 4 * self._num_parts
        sums = torch.empty(tone.NUM_SLOTS * slot_size, dtype=torch.float64, device=image.device)
        values, size = self._values.of(memory), (slot_size, self._num_voxels)
        constants = {"PARTS": self._num_parts, "BLOCK": intensity.BLOCK, "num_warps": SUMMING_WARPS}
        if self._measured.shape[0] > 0:
            tone.measure[self._grid(self._measured)](image, self._measured.of(memory), sums, *size, **constants)
        if self._coarse.shape[0] > 0:
            listed = self._coarse.of(memory)
            scratch = torch.empty((len(listed), self._num_voxels), dtype=torch.float32, device=image.device)
            tone.spread[self._grid(self._coarse)](image, scratch, listed, values, sums, *size, **constants)
            tables = (self._below.of(memory), self._above.of(memory), self._shares.of(memory))
            tone.coarsen[self._grid(self._coarse)](
                scratch, image, listed, *tables, sums, slot_size, *self._shape, **constants
            )
        if self._bent.shape[0] > 0:
            flags = self._still_contrasted.of(memory)
            tone.bend[self._grid(self._bent)](image, self._bent.of(memory), values, flags, sums, *size, **constants)
        if self._bent_twice.shape[0] > 0:
            listed = self._bent_twice.of(memory)
            tone.bend_again[self._grid(self._bent_twice)](
                image, listed, values, sums, *size, KEEPS_MOMENTS=self._keeps_moments, **constants
            )
        if self._restored.shape[0] > 0:
            flags = self._were_bent_twice.of(memory)
            tone.restore[self._grid(self._restored)](image, self._restored.of(memory), flags, sums, *size, **constants)

    def _grid(self, listed: ArrayLayout) -> tuple[int, int]:
        return (self._num_parts, listed.shape[0])


def _listed(staging: Staging, channels: _Bools) -> ArrayLayout:
    return staging.add(np.flatnonzero(channels).astype(np.int32))


def _flags(staging: Staging, channels: _Bools, *, of: _Bools) -> ArrayLayout:
    return staging.add(channels[of].astype(np.int32))


def _values(params: AugmentParams) -> Array:
    per_channel = np.ones(params.gamma.shape, dtype=np.float32)
    return np.stack(
        [
            per_channel * params.noise_std[:, None],
            params.scale,
            params.shift,
            per_channel * params.has_bias[:, None],
            params.contrast,
            params.gamma_inverted,
            params.gamma,
            _are_blurred(params).astype(np.float32),
        ],
        axis=2,
    )


def _cubes(params: AugmentParams) -> Array:
    cubes = np.zeros((params.num_samples, params.num_channels, 64), dtype=np.float32)
    for row in np.flatnonzero(params.has_bias):
        cubes[row] = [coefficient_cube(coefficients).ravel() for coefficients in params.bias[row]]
    return cubes


def _taps(params: AugmentParams, shape: Index3) -> tuple[Array, Array]:
    """Weights (n, 3, taps) of each blurred channel, and their radii (n, 3)."""
    kernels = [
        [blur_weights(float(sigma), side) for sigma, side in zip(sigmas, shape, strict=True)]
        for sigmas in params.blur_sigma_voxel[_are_blurred(params)]
    ]
    num_taps = max((kernel.size for three in kernels for kernel in three), default=1)
    taps, radii = np.zeros((len(kernels), 3, num_taps), np.float32), np.zeros((len(kernels), 3), np.int32)
    for place, three in enumerate(kernels):
        for axis, kernel in enumerate(three):
            taps[place, axis, : kernel.size], radii[place, axis] = kernel, kernel.size // 2
    return taps, radii


def _coarse_tables(params: AugmentParams, shape: Index3) -> tuple[Array, Array, Array]:
    """`low_positions` along x, y and z of each coarse channel: three arrays (n, nx + ny + nz)."""
    zooms = params.low_resolution[params.low_resolution != 1.0]
    tables = [[low_positions(side, float(zoom)) for side in shape] for zoom in zooms]
    below, above, shares = (
        np.array([np.concatenate([axis[number] for axis in axes]) for axes in tables]) for number in range(3)
    )
    return below.astype(np.int32), above.astype(np.int32), shares.astype(np.float32)
