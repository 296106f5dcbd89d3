"""How windows are combined: the weights of their voxels, and the sum of the weights of all windows.

For any number of spatial axes; independent of the network and of the order in which windows are predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from voxelocity.infer import arrays
from voxelocity.infer.arrays import Values
from voxelocity.infer.window_config import Blend
from voxelocity_observe.core.device import Device


@lru_cache(maxsize=8)
def importance(shape: tuple[int, ...], blend: Blend, sigma_scale: float | tuple[float, ...], device: Device) -> Values:
    """Weights of a window's voxels, of `shape`, float32, positive; made once and kept, so do not change them.

    Args:
        shape: voxels of a window on each axis.
        blend: falling from the center to the edges, 1 everywhere, or the weights of nnU-Net's predictor.
        sigma_scale: standard deviation of the Gaussian as a share of the window's edge, for all axes or for each.
        device: where the weights will be.
    """
    # The kept tensor must not become an inference tensor just because the first caller was in inference mode.
    with arrays.outside_inference_mode(device):
        if blend == "uniform":
            return arrays.zeros(shape, device) + 1.0
        scales = sigma_scale if isinstance(sigma_scale, tuple) else (sigma_scale,) * len(shape)
        if blend.startswith("nnunet"):
            return arrays.moved(arrays.of_numpy(_as_nnunet(shape, scales), device), device)
        weights = arrays.zeros((), device) + 1.0
        for length, scale in zip(shape, scales, strict=True):
            weights = weights[..., None] * _bell(length, length * scale, device)
        # A corner's weight would otherwise be lost to rounding; the minimum is MONAI's.
        return weights.clip(min=1e-3)


def _as_nnunet(shape: tuple[int, ...], scales: Sequence[float]) -> npt.NDArray[np.float32]:
    """The weights of nnU-Net v2's `compute_gaussian`: 10 at voxel n // 2 of each axis, rounded to float16."""
    from scipy.ndimage import gaussian_filter1d

    weights = np.ones(())
    for length, scale in zip(shape, scales, strict=True):
        peak = np.zeros(length)
        peak[length // 2] = 1.0
        weights = weights[..., np.newaxis] * gaussian_filter1d(peak, length * scale, mode="constant")
    # Rounded twice, as torch rounds float64.
    rounded: npt.NDArray[np.float32] = (
        (weights / (weights.max() / 10.0)).astype(np.float32).astype(np.float16).astype(np.float32)
    )
    return rounded.clip(min=rounded[rounded > 0].min())


def weight_sums(weights: Values, starts: Sequence[Sequence[int]], shape: Sequence[int]) -> Values:
    """What the weights of all windows add up to at each voxel of a volume, in the weights' dtype, on their device.

    Windows are at every combination of the `starts` of the axes, so the sum is computed one axis at a time: a window's
    weights are added up along the last axis first, then that strip along the axis before, and so on. With n starts on
    each of three axes, that adds 3n arrays, not n**3; the weights need not be a product.

    Args:
        weights: of one window, one axis for each of `shape`.
        starts: for each axis, the first voxel of each window.
        shape: of the volume.
    """
    strip = weights
    for axis in reversed(range(len(shape))):
        length = strip.shape[axis]
        longer = arrays.zeros_like(strip, (*strip.shape[:axis], shape[axis], *strip.shape[axis + 1 :]))
        for start in starts[axis]:
            longer[(slice(None),) * axis + (slice(start, start + length),)] += strip
        strip = longer
    return strip


def _bell(length: int, sigma: float, device: Device) -> Values:
    offsets = np.arange(length, dtype=np.float32) - np.float32((length - 1) / 2.0)
    return arrays.exp(arrays.moved(arrays.of_numpy(offsets * offsets, device), device) / (-2.0 * sigma**2))
