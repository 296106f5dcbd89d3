"""Changes of a patch's intensities, as plain data: any implementation can be fed the same.

A step maps an array (c, x, y, z) float32 to one of the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxelocity.data.augment.steps.fill import Fill


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """`v * scale + shift`, each (c,) float32, one for each channel."""

    scale: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]


IntensityStep = Linear | Fill
