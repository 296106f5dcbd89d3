"""The compiled loop of `color.ColorAndStain`, in place on C-contiguous float32, without the GIL."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from voxelocity.core.jit import kernel

_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


@kernel
def change(image: Any, density: Any, color: Any, contrast: Any, gray: Any, least: Any, is_stained: bool) -> None:
    """Stain, then color, then contrast about the mean gray.

    Args:
        image: (3, n) float32, from 0 to 1.
        density: (3, 4) float32, as in `color.ColorChange`.
        color: (3, 3) float32.
        contrast: float32.
        gray: (3,) float32, shares of red, green and blue in gray.
        least: float32; intensities below have the optical density of this one.
        is_stained: whether `density` changes anything; logarithms take most of the time.
    """
    red, green, blue = image[0], image[1], image[2]
    total = 0.0
    for k in range(red.size):
        p, q, s = min(max(red[k], least), _ONE), min(max(green[k], least), _ONE), min(max(blue[k], least), _ONE)
        if is_stained:
            r, g, b = -math.log(p), -math.log(q), -math.log(s)
            p = min(math.exp(-(density[0, 0] * r + density[0, 1] * g + density[0, 2] * b + density[0, 3])), _ONE)
            q = min(math.exp(-(density[1, 0] * r + density[1, 1] * g + density[1, 2] * b + density[1, 3])), _ONE)
            s = min(math.exp(-(density[2, 0] * r + density[2, 1] * g + density[2, 2] * b + density[2, 3])), _ONE)
        red[k] = color[0, 0] * p + color[0, 1] * q + color[0, 2] * s
        green[k] = color[1, 0] * p + color[1, 1] * q + color[1, 2] * s
        blue[k] = color[2, 0] * p + color[2, 1] * q + color[2, 2] * s
        total += gray[0] * red[k] + gray[1] * green[k] + gray[2] * blue[k]
    mean = np.float32(total / red.size)
    for c in range(3):
        line = image[c]
        for k in range(line.size):
            line[k] = min(max(mean + (line[k] - mean) * contrast, _ZERO), _ONE)
