"""Fields smoothed by one kernel along each axis, with zeros beyond their border."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.jit import has_numba, kernel_imports

Floats = npt.NDArray[np.float32]


def smoothed(fields: Floats, kernel: Floats, *, engine: str = "auto") -> Floats:
    """New fields (c, x, y, z) float32, smoothed along x, then y, then z.

    Args:
        fields: (c, x, y, z) float32, only read.
        kernel: (2 * radius + 1,) float32, symmetric.
        engine: "auto" is a compiled loop if Numba is installed, "torch" plain torch.
    """
    if engine == "torch" or not has_numba():
        return _by_torch(fields, kernel)
    # Imported here, as Numba may be missing.
    with kernel_imports:
        from voxelocity.data.augment import numba_filters

    made = np.empty(fields.shape, np.float32)
    numba_filters.smooth(np.ascontiguousarray(fields), kernel, made)
    return made


def _by_torch(fields: Floats, kernel: Floats) -> Floats:
    values = torch.from_numpy(fields)[:, None]
    radius = len(kernel) // 2
    for axis in range(3):
        shape, pad = [1, 1, 1, 1, 1], [0, 0, 0]
        shape[axis + 2], pad[axis] = -1, radius
        values = torch.nn.functional.conv3d(values, torch.from_numpy(kernel).view(shape), padding=pad)
    made: Floats = values[:, 0].numpy()
    return made
