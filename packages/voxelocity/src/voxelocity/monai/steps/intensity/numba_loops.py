"""Compiled loops of intensity steps: programs, fills, noise and filters with zeros beyond the border, without the GIL.

All work in place on C-contiguous float32, except `smooth`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import exact_kernel, fused_multiply_add, inlined, kernel
from voxelocity.data.augment.noise import CHUNK_VOXELS
from voxelocity.monai.steps.intensity.numba_numbers import NOISE_STEP, draw_words, exp2, log2, make_normal

_fma = fused_multiply_add()
LINEAR, LINEAR_BUT_ZERO, CLIP, KEEP_ABOVE, KEEP_BELOW, POWER, CURVE = range(7)
"""The steps of a program."""
_PROGRAM_VOXELS = 2048
"""Voxels that go through all steps of a program before the next ones: they stay in the first-level cache."""
_TINY = np.float32(1e-37)
"""Smallest number whose logarithm is taken: just above the denormal ones."""
_MAGNITUDE = np.int32(0x7FFFFFFF)
"""The bits of a float without its sign."""


@kernel
def _make_one(chunk: Any, code: Any, numbers: Any, at: Any) -> None:
    """Applies one step of a program, whose numbers begin at index `at`, to a chunk of voxels."""
    zero = np.float32(0.0)
    a, b = numbers[at], numbers[at + 1]
    if code == LINEAR:
        c = numbers[at + 2]
        for t in range(chunk.size):
            chunk[t] = (chunk[t] - a) * b + c
    elif code == LINEAR_BUT_ZERO:
        c = numbers[at + 2]
        for t in range(chunk.size):
            value = chunk[t]
            chunk[t] = value if value == zero else (value - a) * b + c
    elif code == CLIP:
        for t in range(chunk.size):
            value = chunk[t]
            value = a if value < a else value
            chunk[t] = b if value > b else value
    elif code == KEEP_ABOVE:
        for t in range(chunk.size):
            chunk[t] = chunk[t] if chunk[t] > a else b
    elif code == KEEP_BELOW:
        for t in range(chunk.size):
            chunk[t] = chunk[t] if chunk[t] < a else b
    elif code == POWER:
        gamma, span, at_zero = numbers[at + 2], numbers[at + 3], numbers[at + 4]
        for t in range(chunk.size):
            unit = (chunk[t] - a) * b
            exponent = min(max(gamma * log2(max(unit, _TINY)), np.float32(-126.0)), np.float32(126.0))
            chunk[t] = (at_zero if unit <= zero else exp2(exponent)) * span + a
    elif code == CURVE:
        last = np.int64(numbers[at + 2])
        for t in range(chunk.size):
            place = min(max((chunk[t] - a) * b, zero), np.float32(last))
            # Clamped for a NaN too, whose place is an arbitrary number.
            below = max(min(np.int64(place), last - np.int64(1)), np.int64(0))
            value = numbers[at + 3 + below]
            chunk[t] = value + (place - np.float32(below)) * (numbers[at + 4 + below] - value)


@kernel
def _measure(chunk: Any, keys: Any, sums: Any, is_nonzero: Any) -> None:
    """Adds a chunk to the statistics: keys of the extremes; number of voxels, sum and squares about `sums[3]`."""
    zero = np.float32(0.0)
    # The bits of floats mapped to integers of the same order: their extremes vectorize, while those of floats do not if
    # a NaN must not get lost (1.1 to 0.3 ms for 96^3 voxels, with the two loops separate).
    bits = chunk.view(np.int32)
    low, high = keys[0], keys[1]
    pivot, count = sums[3], 0
    total = squares = np.float64(0.0)
    if is_nonzero:
        for t in range(chunk.size):
            key = bits[t] ^ ((bits[t] >> np.int32(31)) & _MAGNITUDE)
            is_some = chunk[t] != zero
            low = min(low, key if is_some else low)
            high = max(high, key if is_some else high)
        for t in range(chunk.size):
            is_some = chunk[t] != zero
            count += 1 if is_some else 0
            centered = np.float64(chunk[t]) - pivot if is_some else np.float64(0.0)
            total += centered
            squares += centered * centered
    else:
        count = chunk.size
        for t in range(chunk.size):
            key = bits[t] ^ ((bits[t] >> np.int32(31)) & _MAGNITUDE)
            low, high = min(low, key), max(high, key)
        for t in range(chunk.size):
            centered = np.float64(chunk[t]) - pivot
            total += centered
            squares += centered * centered
    keys[0], keys[1] = low, high
    sums[0] += count
    sums[1] += total
    sums[2] += squares


@kernel
def run_program(flat: Any, codes: Any, starts: Any, numbers: Any, facts: Any, takes: Any) -> None:
    """Applies the steps of a program to a channel, chunk by chunk, and computes statistics of the result.

    Args:
        flat: of the channel.
        codes: (n,) of the steps.
        starts: (n,) where the numbers of each step begin.
        numbers: float32, of all steps.
        facts: (5,) float64, filled where `takes` is not 0: number of voxels, smallest, largest, mean, variance.
        takes: 0 for no statistics, 1 for those of all voxels, 2 for those of voxels that are not 0.
    """
    keys = np.array([_MAGNITUDE, ~_MAGNITUDE], np.int32)
    sums = np.zeros(4, np.float64)
    for start in range(0, flat.size, _PROGRAM_VOXELS):
        chunk = flat[start : min(start + _PROGRAM_VOXELS, flat.size)]
        for o in range(codes.size):
            _make_one(chunk, codes[o], numbers, starts[o])
        if takes != 0:
            if start == 0:
                sums[3] = chunk[0]
            _measure(chunk, keys, sums, takes == 2)
    if takes == 0:
        return
    keys ^= (keys >> np.int32(31)) & _MAGNITUDE
    count, mean = sums[0], sums[1] / sums[0]
    facts[0], facts[1], facts[2] = count, keys.view(np.float32)[0], keys.view(np.float32)[1]
    facts[3], facts[4] = sums[3] + mean, max(sums[2] / count - mean * mean, np.float64(0.0))
    if count == 0 or np.isnan(mean):
        facts[1:] = np.nan


@kernel
def fill_outside(patch: Any, places: Any, noise: Any, low: float, width: float) -> None:
    """As `fill_boxes`, for all voxels outside the boxes; `noise` has a number for each voxel of the patch."""
    has_noise = len(noise) > 0
    num_channels, nx, ny, nz = patch.shape
    is_kept = np.empty(nz, np.bool_)
    for i in range(nx):
        for j in range(ny):
            is_kept[:] = False
            for b in range(len(places)):
                if places[b, 0, 0] <= i < places[b, 1, 0] and places[b, 0, 1] <= j < places[b, 1, 1]:
                    is_kept[places[b, 0, 2] : places[b, 1, 2]] = True
            for c in range(num_channels):
                place = ((c * nx + i) * ny + j) * nz
                for k in range(nz):
                    if not is_kept[k]:
                        patch[c, i, j, k] = np.float32(low + noise[place + k] * width) if has_noise else np.float32(low)


@kernel
def add_rician(flat: Any, mean: Any, std: Any, seed: Any, number: Any, other: Any) -> None:
    """The magnitude, with noise of channel `number` in the real part and of channel `other` in the imaginary part."""
    words, beyond = np.empty(CHUNK_VOXELS, np.uint32), np.empty(CHUNK_VOXELS, np.float32)
    reals, imaginaries = np.empty(CHUNK_VOXELS, np.float32), np.empty(CHUNK_VOXELS, np.float32)
    for start in range(0, flat.size, CHUNK_VOXELS):
        draw_words(words, start, seed, number)
        make_normal(words, beyond, reals)
        draw_words(words, start, seed, other)
        make_normal(words, beyond, imaginaries)
        for t in range(min(CHUNK_VOXELS, flat.size - start)):
            real = flat[start + t] + (mean + std * (NOISE_STEP * reals[t]))
            imaginary = mean + std * (NOISE_STEP * imaginaries[t])
            flat[start + t] = np.sqrt(real * real + imaginary * imaginary)


@inlined
def _blur_plane(plane: Any, weights_y: Any, weights_z: Any, padded: Any, along_z: Any, target: Any) -> None:
    """The blur within a plane (ny, nz), into `target`; `padded` has zeros before and after the nz places."""
    ny, nz = plane.shape
    radius_y, radius_z = weights_y.size // 2, weights_z.size // 2
    for j in range(ny):
        line = plane[j]
        for k in range(nz):
            padded[radius_z + k] = line[k]
        row = along_z[j]
        middle = weights_z[radius_z]
        for k in range(nz):
            row[k] = middle * padded[radius_z + k]
        for r in range(1, radius_z + 1):
            weight = weights_z[radius_z - r]
            for k in range(nz):
                row[k] += weight * (padded[radius_z + k - r] + padded[radius_z + k + r])
    for j in range(ny):
        row, line = target[j], along_z[j]
        middle = weights_y[radius_y]
        for k in range(nz):
            row[k] = middle * line[k]
        for r in range(1, radius_y + 1):
            weight = weights_y[radius_y - r]
            if j >= r:
                before = along_z[j - r]
                for k in range(nz):
                    row[k] += weight * before[k]
            if j + r < ny:
                after = along_z[j + r]
                for k in range(nz):
                    row[k] += weight * after[k]


@kernel
def blur_in_zeros(channel: Any, weights_x: Any, weights_y: Any, weights_z: Any, alpha: Any, sharpens: Any) -> None:
    """`steps.field.Blur` on a channel (nx, ny, nz), in place; `alpha` is only used if it `sharpens`.

    One pass, which keeps only the blurred planes that it needs.
    """
    nx, ny, nz = channel.shape
    radius = weights_x.size // 2
    padded = np.zeros(nz + 2 * (weights_z.size // 2), np.float32)
    along_z = np.empty((ny, nz), np.float32)
    # Blurred planes i - radius to i + radius, plane p in slot p % num_slots.
    num_slots = min(2 * radius + 1, nx)
    ring = np.empty((num_slots, ny, nz), np.float32)
    row = np.empty(nz, np.float32)
    for p in range(min(radius, nx)):
        _blur_plane(channel[p], weights_y, weights_z, padded, along_z, ring[p % num_slots])
    for i in range(nx):
        if i + radius < nx:
            ahead = i + radius
            _blur_plane(channel[ahead], weights_y, weights_z, padded, along_z, ring[ahead % num_slots])
        first, last = max(i - radius, 0), min(i + radius, nx - 1)
        for j in range(ny):
            line = channel[i, j]
            row[:] = np.float32(0.0)
            for p in range(first, last + 1):
                weight = weights_x[p - i + radius]
                plane_row = ring[p % num_slots, j]
                for k in range(nz):
                    row[k] += weight * plane_row[k]
            if sharpens:
                for k in range(nz):
                    line[k] = line[k] + alpha * (line[k] - row[k])
            else:
                for k in range(nz):
                    line[k] = row[k]


@exact_kernel
def smooth(fields: Any, weights: Any, out: Any) -> None:
    """Fills `out` with fields (c, x, y, z) float32 smoothed along x, y and z, with zeros beyond them.

    The products of a voxel are summed in the kernel's order, each added before it is rounded, as torch's convolutions
    do with several threads, so that the results are equal bit for bit.

    Plane by plane: the sum along x goes into a scratch plane, which is immediately smoothed along y and z.

    Args:
        fields: in C order.
        weights: (2 * radius + 1,) float32, symmetric.
        out: of the fields' shape, in C order.
    """
    num_fields, nx, ny, nz = fields.shape
    radius = weights.size // 2
    plane = np.empty((ny, nz), np.float32)
    row = np.zeros(nz + 2 * radius, np.float32)
    for c in range(num_fields):
        for i in range(nx):
            _sum_along(fields[c].reshape(nx, ny * nz), i, weights, plane.reshape(-1))
            for j in range(ny):
                _sum_along(plane, j, weights, row[radius : radius + nz])
                _smooth_row(row, weights, out[c, i, j])


@exact_kernel
def _sum_along(lines: Any, place: Any, weights: Any, out: Any) -> None:
    """The weighted sum of the lines around one of them."""
    radius, block = weights.size // 2, 1024
    first, last = max(0, radius - place), min(weights.size, lines.shape[0] + radius - place)
    for begin in range(0, out.size, block):
        part = out[begin : begin + block]
        part[:] = np.float32(0.0)
        for tap in range(first, last):
            line, weight = lines[place + tap - radius, begin : begin + block], weights[tap]
            for k in range(part.size):
                part[k] = _fma(line[k], weight, part[k])


@exact_kernel
def _smooth_row(row: Any, weights: Any, out: Any) -> None:
    """Smooths a row that is padded with the kernel's radius of zeros on each side."""
    out[:] = np.float32(0.0)
    for tap in range(weights.size):
        line, weight = row[tap : tap + out.size], weights[tap]
        for k in range(out.size):
            out[k] = _fma(line[k], weight, out[k])
