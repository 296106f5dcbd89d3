"""Compiled loops over the intensities of a patch: bias, noise, blur, brightness, contrast, gamma, boxes, colors.

All work on C-contiguous float32 without the GIL, and all but the blur in place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from voxelocity.core.jit import inlined, kernel
from voxelocity.data.augment.noise import (
    BLOCKS_PER_CHUNK,
    CHUNK_VOXELS,
    FIRST_PIECE,
    FRACTION_BITS,
    FRACTION_STEP,
    KEY_STEPS,
    MULTIPLIERS,
    PIECES,
    ROUNDS,
    STEP,
)

# Minimax-like polynomials (Chebyshev fits of ours) for log2(1 + t) / t on 1 + t in [sqrt(1/2), sqrt(2)], off by at
# most 5e-8, and 2**t on [-1/2, 1/2], off by 2e-9. They vectorize, while calls of the C library's powf do not.
_LOG2 = tuple(
    np.float32(value)
    for value in (
        1.4426950216293335,
        -0.7213473320007324,
        0.48091059923171997,
        -0.36070483922958374,
        0.2879183292388916,
        -0.23892034590244293,
        0.21566985547542572,
        -0.20742103457450867,
        0.12614846229553223,
    )
)
_EXP2 = tuple(
    np.float32(value)
    for value in (
        1.0,
        0.6931471824645996,
        0.24022650718688965,
        0.05550327152013779,
        0.00961802527308464,
        0.0013400432653725147,
        0.00015469732170458883,
    )
)
_LOG2_E = np.float32(1.4426950408889634)
# Of the noise, as `noise` defines it.
_FIRST, _SECOND = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_KEY_STEP_0, _KEY_STEP_1 = np.uint32(KEY_STEPS[0]), np.uint32(KEY_STEPS[1])
_HALF_WORD = np.uint64(32)
_FRACTION_BITS, _FRACTION_MASK = np.uint32(FRACTION_BITS), np.uint32(2**FRACTION_BITS - 1)
_FIRST_PIECE, _ONE = np.uint32(FIRST_PIECE), np.uint32(1)
_FRACTION_STEP, NOISE_STEP = np.float32(FRACTION_STEP), np.float32(STEP)
_PROBABILITY, _SIGN_BIT = np.uint32(0x7FFFFFFF), np.int32(31)


@inlined
def log2(value: Any) -> Any:
    """Of a positive float32."""
    # The bits of sqrt(1/2): anything above it goes into the exponent.
    bits = np.int32(np.float32(value).view(np.int32) - np.int32(0x3F3504F3))
    exponent = bits >> np.int32(23)
    mantissa = np.int32((bits & np.int32(0x7FFFFF)) + np.int32(0x3F3504F3)).view(np.float32)
    t = mantissa - np.float32(1.0)
    total = _LOG2[8]
    total = total * t + _LOG2[7]
    total = total * t + _LOG2[6]
    total = total * t + _LOG2[5]
    total = total * t + _LOG2[4]
    total = total * t + _LOG2[3]
    total = total * t + _LOG2[2]
    total = total * t + _LOG2[1]
    total = total * t + _LOG2[0]
    return np.float32(exponent) + total * t


@inlined
def exp2(value: Any) -> Any:
    """Of a float32 between -126 and 127."""
    whole = np.int32(np.floor(value + np.float32(0.5)))
    t = value - np.float32(whole)
    total = _EXP2[6]
    total = total * t + _EXP2[5]
    total = total * t + _EXP2[4]
    total = total * t + _EXP2[3]
    total = total * t + _EXP2[2]
    total = total * t + _EXP2[1]
    total = total * t + _EXP2[0]
    return total * np.int32((whole + np.int32(127)) << np.int32(23)).view(np.float32)


@kernel
def apply_bias(channel: Any, cube: Any, legendre_x: Any, legendre_y: Any, legendre_z: Any) -> None:
    """Times the bias field. Channel (nx, ny, nz), cube (i, j, k), Legendre tables (nx, i), (ny, j), (k, nz)."""
    nx, ny, nz = channel.shape
    field = np.empty(nz, np.float32)
    for i in range(nx):
        for j in range(ny):
            field[:] = np.float32(0.0)
            for c in range(cube.shape[2]):
                total = np.float32(0.0)
                for a in range(cube.shape[0]):
                    along = np.float32(0.0)
                    for b in range(cube.shape[1]):
                        along += legendre_y[j, b] * cube[a, b, c]
                    total += legendre_x[i, a] * along
                for k in range(nz):
                    field[k] += total * legendre_z[c, k]
            for k in range(nz):
                exponent = min(max(field[k] * _LOG2_E, np.float32(-126.0)), np.float32(126.0))
                channel[i, j, k] *= exp2(exponent)


@inlined
def draw_words(words: Any, start: Any, seed: Any, number: Any) -> None:
    """The bits of a channel's numbers for the chunk that begins at voxel `start`."""
    for b in range(BLOCKS_PER_CHUNK):
        w0, w1 = np.uint32(start // 4 + b), np.uint32(number)
        w2 = w3 = np.uint32(0)
        k0, k1 = np.uint32(seed & 0xFFFFFFFF), np.uint32((seed >> 32) & 0xFFFFFFFF)
        for _ in range(ROUNDS):
            low, high = _FIRST * np.uint64(w0), _SECOND * np.uint64(w2)
            w0 = np.uint32(high >> _HALF_WORD) ^ w1 ^ k0
            w1 = np.uint32(high)
            w2 = np.uint32(low >> _HALF_WORD) ^ w3 ^ k1
            w3 = np.uint32(low)
            k0, k1 = np.uint32(k0 + _KEY_STEP_0), np.uint32(k1 + _KEY_STEP_1)
        words[b] = w0
        words[BLOCKS_PER_CHUNK + b] = w1
        words[2 * BLOCKS_PER_CHUNK + b] = w2
        words[3 * BLOCKS_PER_CHUNK + b] = w3


@inlined
def make_normal(words: Any, beyond: Any, numbers: Any) -> None:
    """Computes `noise.normal_of` for the words of a chunk, in units of `STEP`. `beyond` is scratch."""
    # Numba computes with 32-bit integers in 64 bits; each cast back lets the loop take twice as many lanes.
    signed, bits = words.view(np.int32), beyond.view(np.uint32)
    for t in range(CHUNK_VOXELS):
        beyond[t] = np.float32(np.int32((words[t] & _PROBABILITY) | _ONE))
    for t in range(CHUNK_VOXELS):
        piece = np.uint32((bits[t] >> _FRACTION_BITS) - _FIRST_PIECE)
        fraction = np.float32(np.int32(bits[t] & _FRACTION_MASK)) * _FRACTION_STEP
        first = PIECES[piece]
        width = np.float32(np.int32(PIECES[np.uint32(piece + _ONE)] - first))
        steps = np.int32(first + np.int32(width * fraction))
        sign = np.int32(signed[t] >> _SIGN_BIT)
        numbers[t] = np.float32(np.int32((steps ^ sign) - sign))


@kernel
def add_noise(flat: Any, std: Any, seed: Any, number: Any) -> None:
    """Adds `std` times the numbers of `noise.standard_normal(seed, number, flat.size)`."""
    words = np.empty(CHUNK_VOXELS, np.uint32)
    beyond, numbers = np.empty(CHUNK_VOXELS, np.float32), np.empty(CHUNK_VOXELS, np.float32)
    for start in range(0, flat.size, CHUNK_VOXELS):
        draw_words(words, start, seed, number)
        make_normal(words, beyond, numbers)
        for t in range(min(CHUNK_VOXELS, flat.size - start)):
            flat[start + t] += std * (NOISE_STEP * numbers[t])


@kernel
def blur_mirrored(source: Any, target: Any, weights: Any, axis: Any) -> None:
    """The blur of one axis, mirrored about the outermost voxels: (nx, ny, nz) to another array of that shape."""
    nx, ny, nz = source.shape
    radius = weights.size // 2
    if axis == 2:
        padded = np.empty(nz + 2 * radius, np.float32)
        for i in range(nx):
            for j in range(ny):
                padded[radius : radius + nz] = source[i, j]
                for r in range(1, radius + 1):
                    padded[radius - r] = source[i, j, r]
                    padded[radius + nz - 1 + r] = source[i, j, nz - 1 - r]
                row = target[i, j]
                for k in range(nz):
                    row[k] = weights[0] * padded[k]
                for w in range(1, weights.size):
                    weight = weights[w]
                    for k in range(nz):
                        row[k] += weight * padded[k + w]
        return
    length = nx if axis == 0 else ny
    for i in range(nx):
        for j in range(ny):
            row = target[i, j]
            middle = i if axis == 0 else j
            for w in range(weights.size):
                place = abs(middle + w - radius)
                if place >= length:
                    place = 2 * (length - 1) - place
                line = source[place, j] if axis == 0 else source[i, place]
                weight = weights[w]
                if w == 0:
                    for k in range(nz):
                        row[k] = weight * line[k]
                else:
                    for k in range(nz):
                        row[k] += weight * line[k]


@kernel
def scale_and_shift(flat: Any, scale: Any, shift: Any) -> None:
    """`v * scale + shift`."""
    for t in range(flat.size):
        flat[t] = flat[t] * scale + shift


@kernel
def spread(flat: Any, contrast: Any) -> None:
    """Contrast about the mean, clipped to the range."""
    low, high, mean, _ = moments(flat)
    center = np.float32(mean)
    for t in range(flat.size):
        flat[t] = min(max((flat[t] - center) * contrast + center, low), high)


@kernel
def bend(flat: Any, gamma: Any, is_inverted: Any, keeps_moments: Any) -> None:
    """Gamma from the lower end, or from the upper one if inverted."""
    low, high, mean, std = moments(flat)
    span = high - low
    if span <= np.float32(0.0):
        return
    zero, one = np.float32(0.0), np.float32(1.0)
    sign = -one if is_inverted else one
    base = high if is_inverted else low
    inverse = sign / span
    for t in range(flat.size):
        unit = min(max((flat[t] - base) * inverse, np.float32(1e-30)), one)
        flat[t] = base + sign * span * exp2(max(gamma * log2(unit), np.float32(-126.0)))
    if keeps_moments:
        _, _, new_mean, new_std = moments(flat)
        if new_std > zero:
            factor = np.float32(std / new_std)
            shift = np.float32(mean - new_mean * (std / new_std))
            for t in range(flat.size):
                flat[t] = flat[t] * factor + shift


@kernel
def moments(flat: Any) -> Any:
    """Minimum, maximum, mean and standard deviation of float32 numbers, summed in float64."""
    low = high = flat[0]
    total = squares = 0.0
    # About the first number, so that digits are not lost when the mean is large.
    pivot = np.float64(flat[0])
    for t in range(flat.size):
        value = flat[t]
        low, high = min(low, value), max(high, value)
        centered = np.float64(value) - pivot
        total += centered
        squares += centered * centered
    mean = total / flat.size
    variance = max(squares / flat.size - mean * mean, 0.0)
    return low, high, pivot + mean, np.sqrt(variance)


@kernel
def fill_boxes(patch: Any, places: Any, noise: Any, low: float, width: float) -> None:
    """Fills the boxes in place.

    Args:
        patch: (c, x, y, z) float32.
        places: (n, 2, 3) int64, start and stop.
        noise: float64, a number for each voxel of box after box, or empty.
        low: the fill value without noise.
        width: of the range that the noise is spread over.
    """
    has_noise = len(noise) > 0
    place = 0
    for b in range(len(places)):
        first, last = places[b, 0, 2], places[b, 1, 2]
        for c in range(patch.shape[0]):
            for i in range(places[b, 0, 0], places[b, 1, 0]):
                for j in range(places[b, 0, 1], places[b, 1, 1]):
                    for k in range(first, last):
                        patch[c, i, j, k] = np.float32(low + noise[place] * width) if has_noise else np.float32(low)
                        place += 1


@kernel
def change_color(image: Any, density: Any, color: Any, contrast: Any, gray: Any, least: Any, is_stained: bool) -> None:
    """The loop of `color.ColorAndStain`: stain, then color, then contrast about the mean gray.

    Args:
        image: (3, n) float32, from 0 to 1.
        density: (3, 4) float32, as in `color.ColorChange`.
        color: (3, 3) float32.
        contrast: float32.
        gray: (3,) float32, shares of red, green and blue in gray.
        least: float32; intensities below have the optical density of this one.
        is_stained: whether `density` changes anything; logarithms take most of the time.
    """
    zero, one = np.float32(0.0), np.float32(1.0)
    red, green, blue = image[0], image[1], image[2]
    total = 0.0
    for k in range(red.size):
        p, q, s = min(max(red[k], least), one), min(max(green[k], least), one), min(max(blue[k], least), one)
        if is_stained:
            r, g, b = -math.log(p), -math.log(q), -math.log(s)
            p = min(math.exp(-(density[0, 0] * r + density[0, 1] * g + density[0, 2] * b + density[0, 3])), one)
            q = min(math.exp(-(density[1, 0] * r + density[1, 1] * g + density[1, 2] * b + density[1, 3])), one)
            s = min(math.exp(-(density[2, 0] * r + density[2, 1] * g + density[2, 2] * b + density[2, 3])), one)
        red[k] = color[0, 0] * p + color[0, 1] * q + color[0, 2] * s
        green[k] = color[1, 0] * p + color[1, 1] * q + color[1, 2] * s
        blue[k] = color[2, 0] * p + color[2, 1] * q + color[2, 2] * s
        total += gray[0] * red[k] + gray[1] * green[k] + gray[2] * blue[k]
    mean = np.float32(total / red.size)
    for c in range(3):
        line = image[c]
        for k in range(line.size):
            line[k] = min(max(mean + (line[k] - mean) * contrast, zero), one)
