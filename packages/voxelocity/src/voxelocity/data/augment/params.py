"""What is done to each sample of a batch, as plain data that any implementation can take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

NUM_BIAS_COEFFICIENTS = 20
"""Products of Legendre polynomials of x, y and z whose degrees add up to at most 3."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AugmentParams:
    """What is done to each of b samples with c channels, in this order. Each step may do nothing to a sample.

    1. Warp, straight from the volume, which continues with intensity 0 and class 0 beyond its borders. The voxel at
       offset `o` from the patch's center takes the value found at offset `matrix @ f + offset_voxel` from it, with
       `f = o * (-1 where flipped) + elastic(o)`: images by trilinear interpolation, labels as `votes` says.
       `elastic(o)` is a uniform cubic B-spline over the patch (`tables.py`) with the control points `elastic`.
       Where `is_swapped`, the classes of a pair then swap: `swapped_classes[label]`.
    2. Bias: times `exp(sum of bias[i] * product i of Legendre polynomials)`, over -1..1 along each axis of the patch.
    3. Noise: plus `noise_std` times standard normal numbers from a counter-based generator (`noise.py`).
    4. Blur: Gaussian along each axis, up to 4 standard deviations, mirrored about the outermost voxels.
    5. Brightness: `v * scale + shift`.
    6. Contrast: `(v - mean) * contrast + mean`, clipped to the channel's range before this step.
    7. Low resolution: `round(n * zoom)` voxels of an axis of n are picked (the nearest ones), and the patch is
       interpolated linearly between them, both with pixel centers at half-integers.
    8. Gamma from the upper end: the negative is changed as in 9 and negated again.
    9. Gamma: `((v - low) / span) ** gamma * span + low`, with the channel's own `low` and `span`; where
       `gamma_keeps_moments`, the result then gets the mean and standard deviation that the channel had.

    Attributes:
        is_warped: (b,) bool; where False, `matrix` is the identity, `offset_voxel` 0 and nothing is elastic.
        matrix: (b, 3, 3) float32, on axes (x, y, z).
        offset_voxel: (b, 3) float32.
        flips: (b, 3) bool, along (x, y, z).
        is_swapped: (b,) bool; where True, the label found is replaced by its entry in `swapped_classes`.
        swapped_classes: (256,) uint8, the class that replaces each; size 0 if no sample ever swaps any.
        is_elastic: (b,) bool.
        elastic: (b, 3, gx, gy, gz) float32 shifts of control points in voxels; size 0 where no sample is elastic.
        votes: whether the label of a warped sample is the class with the largest summed linear weight (the smaller
            index of equals) instead of the nearest voxel's.
        has_bias: (b,) bool.
        bias: (b, c, 20) float32.
        noise_std: (b,) float32, 0 for none.
        noise_seed: (b,) int64, not negative.
        blur_sigma_voxel: (b, c, 3) float32, 0 for none.
        scale: (b, c) float32, 1 for none.
        shift: (b, c) float32, 0 for none.
        contrast: (b, c) float32, 1 for none.
        low_resolution: (b, c) float32 zoom, 1 for none.
        gamma_inverted: (b, c) float32, 1 for none.
        gamma: (b, c) float32, 1 for none.
        gamma_keeps_moments: for all samples.
    """

    is_warped: npt.NDArray[np.bool_]
    matrix: Floats
    offset_voxel: Floats
    flips: npt.NDArray[np.bool_]
    is_swapped: npt.NDArray[np.bool_]
    swapped_classes: npt.NDArray[np.uint8]
    is_elastic: npt.NDArray[np.bool_]
    elastic: Floats
    votes: bool
    has_bias: npt.NDArray[np.bool_]
    bias: Floats
    noise_std: Floats
    noise_seed: npt.NDArray[np.int64]
    blur_sigma_voxel: Floats
    scale: Floats
    shift: Floats
    contrast: Floats
    low_resolution: Floats
    gamma_inverted: Floats
    gamma: Floats
    gamma_keeps_moments: bool

    @property
    def num_samples(self) -> int:
        return len(self.flips)

    @property
    def num_channels(self) -> int:
        return int(self.gamma.shape[1])

    @classmethod
    def identity(
        cls,
        num_samples: int,
        num_channels: int,
        *,
        elastic_points: tuple[int, int, int] = (0, 0, 0),
        swapped_classes: Sequence[int] = (),
        votes: bool = False,
        gamma_keeps_moments: bool = True,
    ) -> Self:
        """Parameters that change nothing, in arrays that may be written."""
        per_sample, per_channel = (num_samples,), (num_samples, num_channels)

        def filled(shape: tuple[int, ...], value: float) -> Floats:
            return np.full(shape, value, dtype=np.float32)

        return cls(
            is_warped=np.zeros(per_sample, dtype=np.bool_),
            matrix=np.tile(np.eye(3, dtype=np.float32), (num_samples, 1, 1)),
            offset_voxel=filled((num_samples, 3), 0.0),
            flips=np.zeros((num_samples, 3), dtype=np.bool_),
            is_swapped=np.zeros(per_sample, dtype=np.bool_),
            swapped_classes=swap_table(swapped_classes),
            is_elastic=np.zeros(per_sample, dtype=np.bool_),
            elastic=filled((num_samples, 3, *elastic_points), 0.0),
            votes=votes,
            has_bias=np.zeros(per_sample, dtype=np.bool_),
            bias=filled((*per_channel, NUM_BIAS_COEFFICIENTS), 0.0),
            noise_std=filled(per_sample, 0.0),
            noise_seed=np.zeros(per_sample, dtype=np.int64),
            blur_sigma_voxel=filled((*per_channel, 3), 0.0),
            scale=filled(per_channel, 1.0),
            shift=filled(per_channel, 0.0),
            contrast=filled(per_channel, 1.0),
            low_resolution=filled(per_channel, 1.0),
            gamma_inverted=filled(per_channel, 1.0),
            gamma=filled(per_channel, 1.0),
            gamma_keeps_moments=gamma_keeps_moments,
        )


def swap_table(swapped_classes: Sequence[int]) -> npt.NDArray[np.uint8]:
    """`AugmentParams.swapped_classes` of the replacements of the first classes; the others stay."""
    table = np.arange(256 if len(swapped_classes) > 0 else 0, dtype=np.uint8)
    table[: len(swapped_classes)] = swapped_classes
    return table
