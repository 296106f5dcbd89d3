"""Compiled loops over the intensities of a patch: bias, noise, blur, brightness, contrast, low resolution, gamma.

All work in place on C-contiguous float32 and hold no GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import inlined, kernel
from voxelocity.data.augment.noise import (
    BITS_PER_LEVEL,
    BLOCKS_PER_CHUNK,
    CHUNK_VOXELS,
    KEY_STEPS,
    MULTIPLIERS,
    NUM_LEVELS,
    QUANTILES,
    ROUNDS,
)

_FIRST, _SECOND = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_KEY_STEP_0, _KEY_STEP_1 = np.uint32(KEY_STEPS[0]), np.uint32(KEY_STEPS[1])
_HALF_WORD = np.uint64(32)
_LEVEL_MASK = np.uint32(NUM_LEVELS - 1)
_LEVEL_BITS = np.uint32(BITS_PER_LEVEL)
_HALF_CHUNK = CHUNK_VOXELS // 2

# Minimax-like polynomials (Chebyshev fits of ours) for log2(1 + t) / t on 1 + t in [sqrt(1/2), sqrt(2)], off by at
# most 5e-8, and 2**t on [-1/2, 1/2], off by 2e-9. They vectorise, which calls of the C library's powf do not.
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


@inlined
def _log2(value: Any) -> Any:
    """Of a positive float32."""
    # The bits of sqrt(1/2): what is above it goes into the exponent.
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
def _exp2(value: Any) -> Any:
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
    """Times the bias field. Channel (nx, ny, nz), cube (4, 4, 4) of coefficients, Legendre tables (n, 4)."""
    nx, ny, nz = channel.shape
    for i in range(nx):
        for j in range(ny):
            c0 = c1 = c2 = c3 = np.float32(0.0)
            for a in range(4):
                for b in range(4):
                    product = legendre_x[i, a] * legendre_y[j, b]
                    c0 += product * cube[a, b, 0]
                    c1 += product * cube[a, b, 1]
                    c2 += product * cube[a, b, 2]
                    c3 += product * cube[a, b, 3]
            for k in range(nz):
                field = c0 + c1 * legendre_z[k, 1] + c2 * legendre_z[k, 2] + c3 * legendre_z[k, 3]
                field = min(max(field * _LOG2_E, np.float32(-126.0)), np.float32(126.0))
                channel[i, j, k] *= _exp2(field)


@kernel
def add_noise(flat: Any, std: Any, seed: Any, number: Any) -> None:
    """Plus `std` times the numbers of `noise.standard_normal(seed, number, flat.size)`."""
    words = np.empty(4 * BLOCKS_PER_CHUNK, np.uint32)
    for start in range(0, flat.size, CHUNK_VOXELS):
        for b in range(BLOCKS_PER_CHUNK):
            w0, w1 = np.uint32(start // 8 + b), np.uint32(number)
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
        for t in range(min(_HALF_CHUNK, flat.size - start)):
            flat[start + t] += std * QUANTILES[words[t] & _LEVEL_MASK]
        second = start + _HALF_CHUNK
        for t in range(min(_HALF_CHUNK, flat.size - second)):
            flat[second + t] += std * QUANTILES[(words[t] >> _LEVEL_BITS) & _LEVEL_MASK]


@kernel
def blur_along(source: Any, target: Any, weights: Any, axis: Any) -> None:
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
def coarsen(
    source: Any,
    target: Any,
    below_x: Any,
    above_x: Any,
    weight_x: Any,
    below_y: Any,
    above_y: Any,
    weight_y: Any,
    below_z: Any,
    above_z: Any,
    weight_z: Any,
) -> None:
    """The coarser look at a channel: each voxel between the kept ones that `lowres.low_positions` names."""
    nx, ny, nz = source.shape
    row = np.empty(nz, np.float32)
    for i in range(nx):
        wx = weight_x[i]
        for j in range(ny):
            wy = weight_y[j]
            r00, r01 = source[below_x[i], below_y[j]], source[below_x[i], above_y[j]]
            r10, r11 = source[above_x[i], below_y[j]], source[above_x[i], above_y[j]]
            for k in range(nz):
                low = r00[k] + wy * (r01[k] - r00[k])
                high = r10[k] + wy * (r11[k] - r10[k])
                row[k] = low + wx * (high - low)
            for k in range(nz):
                low = row[below_z[k]]
                target[i, j, k] = low + weight_z[k] * (row[above_z[k]] - low)


@kernel
def scale_and_shift(flat: Any, scale: Any, shift: Any) -> None:
    """`v * scale + shift`."""
    for t in range(flat.size):
        flat[t] = flat[t] * scale + shift


@kernel
def spread(flat: Any, contrast: Any) -> None:
    """Contrast about the mean, clipped to the range."""
    low, high, mean, _ = moments(flat)
    centre = np.float32(mean)
    for t in range(flat.size):
        flat[t] = min(max((flat[t] - centre) * contrast + centre, low), high)


@kernel
def bend(flat: Any, gamma: Any, is_inverted: Any, keeps_moments: Any) -> None:
    """Gamma from the lower end, or from the upper one where inverted."""
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
        flat[t] = base + sign * span * _exp2(max(gamma * _log2(unit), np.float32(-126.0)))
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
    # About the first number, so that digits are not lost where the mean is large.
    pivot = np.float64(flat[0])
    for t in range(flat.size):
        value = flat[t]
        low, high = min(low, value), max(high, value)
        centred = np.float64(value) - pivot
        total += centred
        squares += centred * centred
    mean = total / flat.size
    variance = max(squares / flat.size - mean * mean, 0.0)
    return low, high, pivot + mean, np.sqrt(variance)
