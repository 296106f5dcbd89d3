"""The gather on a CUDA device: one kernel takes the patches of a batch from flat memory, either boxes that were just
copied there or whole volumes that stay there.

Triton is used only in the modules `triton_*` of this package.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from voxelocity.data.augment.triton_frame import SIZES, _decoding, _put, _whole

# What `gather` reads of each sample, int64 and in this order; steps and offsets count voxels.
PLACE_NAMES: Final = (
    *("image_offset", "image_step_c", "image_step_x", "image_step_y", "image_step_z"),
    *("label_offset", "label_step_x", "label_step_y", "label_step_z"),
    *("size_x", "size_y", "size_z", "base_x", "base_y", "base_z", "elastic_slot"),
)
_NUM_PLACES = tl.constexpr(len(PLACE_NAMES))
# The fractional part of the base (3), and the step matrix (3, 3), column j along patch axis j; float32.
NUM_STEPS: Final = 12
_NUM_STEPS = tl.constexpr(NUM_STEPS)

TILE: Final = (8, 8, 32)
"""Patch voxels of one program along x, y and z. It goes through them plane by plane along x, so that what it looks up
serves many voxels and neighboring planes find their voxels in the L1 cache; 32 along z, so that a warp writes whole
lines. Compact, as turned patches read neighbors of neighbors."""
ELASTIC_BLOCK: Final = 256
SWAP_BLOCK: Final = 1024


@triton.jit(do_not_specialize=SIZES)
def gather(
    image, label, rows, places, steps, scales, lines, out, work, out_label, num_channels, nx, ny, nz, points_z,
    VOTES: tl.constexpr, ELASTIC: tl.constexpr, ALIGN: tl.constexpr, INNER: tl.constexpr,
    TILE_X: tl.constexpr, TILE_Y: tl.constexpr, TILE_Z: tl.constexpr,
):  # fmt: skip
    """Fills warped patches; `triton_crop.crop` fills the others. Programs: (tiles of a patch, samples).

    A place is computed in float32 from the middle of the patch, in voxels from `base`, an integer: its error grows with
    the patch and not with the volume. `places` is (b, 16) int64, `PLACE_NAMES`, `steps` (b, 12) float32, and `lines`
    that of `elastic_lines`; the other arguments are those of `triton_frame`. VOTES: whether labels are voted on.
    ELASTIC: whether a sample may have a deformation, which those have whose `elastic_slot` is not negative.
    """
    row = tl.load(rows + tl.program_id(1)).to(tl.int64)
    place, step = places + row * _NUM_PLACES, steps + row * _NUM_STEPS
    nz = nz // ALIGN * ALIGN
    tiles_y, tiles_z = tl.cdiv(ny, TILE_Y), tl.cdiv(nz, TILE_Z)
    tile = tl.program_id(0)
    j = tile // tiles_z % tiles_y * TILE_Y + tl.arange(0, TILE_Y)[:, None]
    k = tile % tiles_z * TILE_Z + tl.arange(0, TILE_Z)[None, :]
    first = tile // (tiles_y * tiles_z) * TILE_X
    in_patch = (j < ny) & (k < nz)
    # Offsets from the patch's middle: half-integers, exact.
    fj, fk = _from_middle(j, ny), _from_middle(k, nz)
    plane_x, plane_y, plane_z = _in_plane(step + 3, fj, fk), _in_plane(step + 6, fj, fk), _in_plane(step + 9, fj, fk)
    start_x, start_y, start_z = tl.load(step), tl.load(step + 1), tl.load(step + 2)
    along_x, along_y, along_z = tl.load(step + 3), tl.load(step + 6), tl.load(step + 9)
    if ELASTIC:
        slot = tl.load(place + 15)
        first_point, w0, w1, w2, w3 = _spline(k, nz, points_z)
        size = nx * ny * points_z
        line = lines + slot * 3 * size + (j * points_z + first_point)
    image += tl.load(place)
    label += tl.load(place + 5)
    for i in range(first, tl.minimum(first + TILE_X, nx)):
        fi = i * 1.0 - (nx - 1) * 0.5
        x = start_x + (along_x * fi + plane_x)
        y = start_y + (along_y * fi + plane_y)
        z = start_z + (along_z * fi + plane_z)
        if ELASTIC:  # noqa: SIM102 - decided by the compiler
            if slot >= 0:
                of_plane = line + i * ny * points_z
                x += _weighted(of_plane, 1, w0, w1, w2, w3, in_patch)
                y += _weighted(of_plane + size, 1, w0, w1, w2, w3, in_patch)
                z += _weighted(of_plane + 2 * size, 1, w0, w1, w2, w3, in_patch)
        t = (i * ny + j) * nz + k
        _put_images(
            image, place, scales, out, work, row, num_channels, nx * ny * nz, t, x, y, z, in_patch, INNER
        )  # fmt: skip
        if VOTES:  # noqa: SIM108 - decided by the compiler
            found = _majority(label, place, x, y, z, in_patch)
        else:
            found = _nearest(label, place, x, y, z, in_patch)
        tl.store(out_label + row * nx * ny * nz + t, found.to(tl.uint8), mask=in_patch)


@triton.jit
def _put_images(
    image, place, scales, out, work, row, num_channels, num_voxels, t, x, y, z, in_patch, INNER: tl.constexpr
):
    """Stores the voxels t of all channels, each between the eight stored ones around its place."""
    step_x, step_y, step_z = _whole(place + 2), _whole(place + 3), _whole(place + 4)
    ix, wx, in_x0, in_x1 = _below(x, place + 9)
    iy, wy, in_y0, in_y1 = _below(y, place + 10)
    iz, wz, in_z0, in_z1 = _below(z, place + 11)
    in_x0, in_x1 = in_x0 & in_patch, in_x1 & in_patch
    in_00, in_01, in_10, in_11 = in_x0 & in_y0, in_x0 & in_y1, in_x1 & in_y0, in_x1 & in_y1
    at = ix * step_x + iy * step_y + iz * step_z
    # The share of the eight voxels that lie inside: beyond the border, the intensity is 0, not the stored number.
    inside = _share(wx, in_x0, in_x1) * _share(wy, in_y0, in_y1) * _share(wz, in_z0, in_z1)
    step_c = tl.load(place + 1)
    for c in range(num_channels):
        channel = row * num_channels + c
        a, b, fill, is_last = _decoding(scales, channel)
        stored = image + c * step_c
        v00 = _between(stored, at, step_z, wz, in_00 & in_z0, in_00 & in_z1)
        v01 = _between(stored, at + step_y, step_z, wz, in_01 & in_z0, in_01 & in_z1)
        v10 = _between(stored, at + step_x, step_z, wz, in_10 & in_z0, in_10 & in_z1)
        v11 = _between(stored, at + step_x + step_y, step_z, wz, in_11 & in_z0, in_11 & in_z1)
        v0, v1 = v00 + wy * (v01 - v00), v10 + wy * (v11 - v10)
        value = (v0 + wx * (v1 - v0)) * a + (b * inside + fill)
        _put(out, work, channel, is_last, num_voxels, t, value, in_patch, INNER)


@triton.jit
def _majority(label, place, x, y, z, in_patch):
    """The class with the largest share of the eight voxels around each place."""
    step_x, step_y, step_z = _whole(place + 6), _whole(place + 7), _whole(place + 8)
    ix, wx, in_x0, in_x1 = _below(x, place + 9)
    iy, wy, in_y0, in_y1 = _below(y, place + 10)
    iz, wz, in_z0, in_z1 = _below(z, place + 11)
    in_x0, in_x1 = in_x0 & in_patch, in_x1 & in_patch
    in_00, in_01, in_10, in_11 = in_x0 & in_y0, in_x0 & in_y1, in_x1 & in_y0, in_x1 & in_y1
    at = ix * step_x + iy * step_y + iz * step_z
    l0 = _class(label, at, in_00 & in_z0)
    l1 = _class(label, at + step_z, in_00 & in_z1)
    l2 = _class(label, at + step_y, in_01 & in_z0)
    l3 = _class(label, at + step_y + step_z, in_01 & in_z1)
    at += step_x
    l4 = _class(label, at, in_10 & in_z0)
    l5 = _class(label, at + step_z, in_10 & in_z1)
    l6 = _class(label, at + step_y, in_11 & in_z0)
    l7 = _class(label, at + step_y + step_z, in_11 & in_z1)
    found = l0
    differ = (l0 ^ l1) | (l0 ^ l2) | (l0 ^ l3) | (l0 ^ l4) | (l0 ^ l5) | (l0 ^ l6) | (l0 ^ l7)
    # Most planes of a tile lie entirely within one class.
    if tl.max(tl.max(differ, 1), 0) > 0:
        found = _voted(l0, l1, l2, l3, l4, l5, l6, l7, wx, wy, wz)
    return found


@triton.jit
def _nearest(label, place, x, y, z, in_patch):
    ix, in_x = _rounded(x, place + 9)
    iy, in_y = _rounded(y, place + 10)
    iz, in_z = _rounded(z, place + 11)
    at = ix * _whole(place + 6) + iy * _whole(place + 7) + iz * _whole(place + 8)
    return _class(label, at, in_x & in_y & in_z & in_patch)


@triton.jit
def _below(place, size):
    """The last stored voxel of an axis at or before a place, the weight of the next, and which of the two there are."""
    low = tl.floor(place)
    index = low.to(tl.int32) + _whole(size + 3)
    num = _whole(size)
    return index, place - low, (index >= 0) & (index < num), (index >= -1) & (index < num - 1)


@triton.jit
def _rounded(place, size):
    """The stored voxel of an axis nearest to a place, and whether it exists; its base is 3 numbers after its size."""
    index = tl.floor(place + 0.5).to(tl.int32) + _whole(size + 3)
    return index, (index >= 0) & (index < _whole(size))


@triton.jit
def swap_classes(label, rows, swapped, num_voxels, BLOCK: tl.constexpr):
    """Replaces each class of some samples by its entry in a table. Programs: (blocks of a patch, samples).

    A separate pass, as in `gather` it would cost registers in every batch: ptxas then spills some.

    Args:
        label: (b, x, y, z) uint8.
        rows: (n,) int32, which rows of the batch these samples are.
        swapped: (256,) uint8.
        num_voxels: of a patch.
        BLOCK: voxels of a program.
    """
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_used = t < num_voxels
    label += tl.load(rows + tl.program_id(1)).to(tl.int64) * num_voxels
    found = tl.load(label + t, mask=is_used, other=0).to(tl.int32)
    tl.store(label + t, tl.load(swapped + found), mask=is_used)


@triton.jit(do_not_specialize=SIZES)
def elastic_lines(control, lines, nx, ny, points_x, points_y, points_z, BLOCK: tl.constexpr):
    """The spline of each deformation, summed along x and y; along z it stays in control points.

    Programs: (blocks of nx * ny * points_z, deformations).

    Args:
        control: (n, 3, points_x, points_y, points_z) float32, shifts in the volume.
        lines: (n, 3, nx, ny, points_z) float32, written.
        nx: of the patch.
        ny: of the patch.
        points_x: control points along x.
        points_y: along y.
        points_z: along z.
        BLOCK: elements of a program.
    """
    deformation = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    num = nx * ny * points_z
    is_used = t < num
    q, j, i = t % points_z, t // points_z % ny, t // (points_z * ny)
    i = tl.minimum(i, nx - 1)
    first_x, x0, x1, x2, x3 = _spline(i, nx, points_x)
    first_y, y0, y1, y2, y3 = _spline(j, ny, points_y)
    for axis in range(3):
        at = control + (deformation * 3 + axis) * points_x * points_y * points_z
        at += (first_x * points_y + first_y) * points_z + q
        next_x = points_y * points_z
        total = x0 * _weighted(at, points_z, y0, y1, y2, y3, is_used)
        total += x1 * _weighted(at + next_x, points_z, y0, y1, y2, y3, is_used)
        total += x2 * _weighted(at + 2 * next_x, points_z, y0, y1, y2, y3, is_used)
        total += x3 * _weighted(at + 3 * next_x, points_z, y0, y1, y2, y3, is_used)
        tl.store(lines + (deformation * 3 + axis) * num + t, total, mask=is_used)


@triton.jit
def _from_middle(index, side):
    return index.to(tl.float32) - (side - 1) * 0.5


@triton.jit
def _in_plane(column, fj, fk):
    return tl.load(column + 1) * fj + tl.load(column + 2) * fk


@triton.jit
def _spline(index, side, points):
    """`params.four_weights`: the first of the four control points, and their shares."""
    intervals = points - 3
    place = index.to(tl.float32) * (intervals.to(tl.float32) / tl.maximum(side - 1, 1).to(tl.float32))
    first = tl.minimum(place.to(tl.int32), intervals - 1)
    t = place - first.to(tl.float32)
    u = 1.0 - t
    sixth = 1.0 / 6.0
    w1 = ((3.0 * t - 6.0) * t * t + 4.0) * sixth
    w2 = (((-3.0 * t + 3.0) * t + 3.0) * t + 1.0) * sixth
    return first, u * u * u * sixth, w1, w2, t * t * t * sixth


@triton.jit
def _weighted(at, step, w0, w1, w2, w3, mask):
    total = w0 * tl.load(at, mask=mask, other=0.0) + w1 * tl.load(at + step, mask=mask, other=0.0)
    return total + w2 * tl.load(at + 2 * step, mask=mask, other=0.0) + w3 * tl.load(at + 3 * step, mask=mask, other=0.0)


@triton.jit
def _share(w, in_first, in_second):
    return tl.where(in_first, 1.0 - w, 0.0) + tl.where(in_second, w, 0.0)


@triton.jit
def _between(stored, at, step_z, wz, in_first, in_second):
    low = tl.load(stored + at, mask=in_first, other=0.0).to(tl.float32)
    high = tl.load(stored + (at + step_z), mask=in_second, other=0.0).to(tl.float32)
    return low + wz * (high - low)


@triton.jit
def _class(label, at, mask):
    return tl.load(label + at, mask=mask, other=0).to(tl.int32)


@triton.jit
def _voted(l0, l1, l2, l3, l4, l5, l6, l7, wx, wy, wz):
    """The class with the largest summed weight; the smaller index of equals."""
    ux, uy, uz = 1.0 - wx, 1.0 - wy, 1.0 - wz
    labels = (l0, l1, l2, l3, l4, l5, l6, l7)
    uu, uw, wu, ww = ux * uy, ux * wy, wx * uy, wx * wy
    shares = (uu * uz, uu * wz, uw * uz, uw * wz, wu * uz, wu * wz, ww * uz, ww * wz)
    best, best_share = l0, ux * 0.0 - 1.0
    for a in tl.static_range(8):
        share = ux * 0.0
        for b in tl.static_range(8):
            share += tl.where(labels[a] == labels[b], shares[b], 0.0)
        is_better = (share > best_share) | ((share == best_share) & (labels[a] < best))
        best, best_share = tl.where(is_better, labels[a], best), tl.where(is_better, share, best_share)
    return best
