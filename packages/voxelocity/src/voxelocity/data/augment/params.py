"""What is done to each sample of a batch, as plain data: where in its volume it finds its voxels, and the tables that
engines look up for each voxel of an axis.

An elastic deformation is a uniform cubic B-spline: control points on a coarse grid, smooth between them. Source:
Rueckert et al., "Nonrigid registration using free-form deformations", IEEE TMI 18(8), 1999.

The smooth brightness field of an MR coil is exp of a polynomial of degree 3 over the patch. Source: van Leemput et al.,
"Automated model-based bias field correction of MR images of the brain", IEEE TMI 18(10), 1999; the same form as MONAI's
RandBiasField.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from voxelocity.core.contracts import ResidentBox
from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Array, Scaling

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int32]

DEGREES = tuple((i, j, k) for i in range(4) for j in range(4) for k in range(4) if i + j + k <= 3)
"""Degrees along (x, y, z) of each product of Legendre polynomials, in the order of the coefficients."""
TRUNCATE = 4.0
"""Standard deviations of a blur."""
NUM_BIAS_COEFFICIENTS = len(DEGREES)


def _unchanged(value: Any, *shape: str | int, dtype: Any = np.float32) -> dict[str, Any]:
    """Of a field: the value that changes nothing, and its shape, with sizes by name ("b", "c", "points", "boxes")."""
    return {"unchanged": (value, shape, dtype)}


@dataclass(frozen=True, kw_only=True, eq=False)
class AugmentParams:
    """What is done to each of b samples with c channels, in this order. Each step may do nothing to a sample.

    1. Warp, straight from the volume, which continues with intensity 0 and class 0 beyond its borders. The voxel at
       offset `o` from the patch's center takes the value found at offset `matrix @ f + offset_voxel` from it, with
       `f = o * (-1 where flipped) + elastic(o)`: images by trilinear interpolation, labels as `votes` says.
       `elastic(o)` is a uniform cubic B-spline over the patch (`four_weights`) with the control points `elastic`.
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
    10. Cutout: `cutout_value` in all channels inside the boxes `cutout`; the label stays.

    Attributes:
        is_warped: (b,) bool; where False, `matrix` is the identity, `offset_voxel` 0 and nothing is elastic.
        matrix: (b, 3, 3) float32, on axes (x, y, z).
        offset_voxel: (b, 3) float32.
        flips: (b, 3) bool, along (x, y, z).
        is_swapped: (b,) bool; where True, the label found is replaced by its entry in `swapped_classes`.
        swapped_classes: (256,) uint8, the class that replaces each, or int32 for more classes; size 0 if no sample ever
            swaps any.
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
        coarse_axes: along which of (x, y, z) that is done, for all samples.
        gamma_inverted: (b, c) float32, 1 for none.
        gamma: (b, c) float32, 1 for none.
        gamma_keeps_moments: for all samples.
        cutout: (b, n, 2, 3) int64, where each of n boxes starts and stops in the patch; empty boxes for none.
        cutout_value: (b,) float32.
    """

    is_warped: Bools = field(metadata=_unchanged(False, "b", dtype=np.bool_))
    matrix: Floats = field(metadata=_unchanged(np.eye(3), "b", 3, 3))
    offset_voxel: Floats = field(metadata=_unchanged(0.0, "b", 3))
    flips: Bools = field(metadata=_unchanged(False, "b", 3, dtype=np.bool_))
    is_swapped: Bools = field(metadata=_unchanged(False, "b", dtype=np.bool_))
    swapped_classes: Array
    is_elastic: Bools = field(metadata=_unchanged(False, "b", dtype=np.bool_))
    elastic: Floats = field(metadata=_unchanged(0.0, "b", 3, "points"))
    votes: bool
    has_bias: Bools = field(metadata=_unchanged(False, "b", dtype=np.bool_))
    bias: Floats = field(metadata=_unchanged(0.0, "b", "c", NUM_BIAS_COEFFICIENTS))
    noise_std: Floats = field(metadata=_unchanged(0.0, "b"))
    noise_seed: npt.NDArray[np.int64] = field(metadata=_unchanged(0, "b", dtype=np.int64))
    blur_sigma_voxel: Floats = field(metadata=_unchanged(0.0, "b", "c", 3))
    scale: Floats = field(metadata=_unchanged(1.0, "b", "c"))
    shift: Floats = field(metadata=_unchanged(0.0, "b", "c"))
    contrast: Floats = field(metadata=_unchanged(1.0, "b", "c"))
    low_resolution: Floats = field(metadata=_unchanged(1.0, "b", "c"))
    gamma_inverted: Floats = field(metadata=_unchanged(1.0, "b", "c"))
    gamma: Floats = field(metadata=_unchanged(1.0, "b", "c"))
    gamma_keeps_moments: bool
    coarse_axes: tuple[bool, bool, bool] = (True, True, True)
    cutout: npt.NDArray[np.int64] = field(metadata=_unchanged(0, "b", "boxes", 2, 3, dtype=np.int64))
    cutout_value: Floats = field(metadata=_unchanged(0.0, "b"))

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
        cutout_boxes: int = 0,
        swapped_classes: Sequence[int] = (),
        votes: bool = False,
        gamma_keeps_moments: bool = True,
        coarse_axes: tuple[bool, bool, bool] = (True, True, True),
    ) -> Self:
        """Parameters that change nothing, in arrays that may be written."""
        sizes = {"b": (num_samples,), "c": (num_channels,), "points": elastic_points, "boxes": (cutout_boxes,)}
        arrays: dict[str, Any] = unchanged(_UNCHANGED, sizes)
        table = swap_table(swapped_classes)
        return cls(
            **arrays,
            swapped_classes=table,
            votes=votes,
            gamma_keeps_moments=gamma_keeps_moments,
            coarse_axes=coarse_axes,
        )

    def zooms(self, row: int, channel: int) -> list[float]:
        """The zoom of the low resolution along each of (x, y, z)."""
        zoom = float(self.low_resolution[row, channel])
        return [zoom if is_coarse else 1.0 for is_coarse in self.coarse_axes]


def unchanged(names: Iterable[str], sizes: Mapping[str, tuple[int, ...]]) -> dict[str, npt.NDArray[Any]]:
    """New arrays of these fields of `AugmentParams` that change nothing; `sizes` of "b", "c", "points" and "boxes"."""
    made = {}
    for name in names:
        value, shape, dtype = _UNCHANGED[name]
        # One size may stand for several axes.
        sides = [sizes[side] if isinstance(side, str) else (side,) for side in shape]
        made[name] = np.full([*itertools.chain(*sides)], value, dtype)
    return made


_UNCHANGED = {entry.name: entry.metadata["unchanged"] for entry in fields(AugmentParams) if entry.metadata}


def swap_table(swapped_classes: Sequence[int]) -> Array:
    """`AugmentParams.swapped_classes` of the replacements of the first classes; the others stay."""
    num = len(swapped_classes)
    table = np.arange(num, dtype=np.int32) if num > 256 else np.arange(256 if num else 0, dtype=np.uint8)
    table[:num] = swapped_classes
    return table


@dataclass(frozen=True, kw_only=True)
class Source:
    """All stored voxels that one sample needs: `needed_box` of its volume, read.

    Attributes:
        image: (c, *shape) as stored, any memory order.
        label: (*shape) uint8, or uint16 of more than 256 classes.
        start: of the box in the volume.
        scaling: stored number to intensity, one for each channel; empty if they are the same.
    """

    image: Array
    label: Array
    start: Index3
    scaling: tuple[Scaling, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ResidentSource:
    """As `Source`, with voxels that are already on the device.

    Attributes:
        box: where they lie.
        start: of the box in the volume.
        scaling: as there.
    """

    box: ResidentBox
    start: Index3
    scaling: tuple[Scaling, ...]


def scalings(sources: Sequence[Source | ResidentSource], num_channels: int) -> npt.NDArray[np.float32]:
    """(b, c, 2) float32: stored number to intensity, of every sample."""
    plain = ((1.0, 0.0),) * num_channels
    pairs = [
        [(channel.slope, channel.inter) for channel in source.scaling] if source.scaling else plain
        for source in sources
    ]
    return np.array(pairs, dtype=np.float32)


def needed_box(params: AugmentParams, row: int, region: Region, shape: Index3) -> Region:
    """The part of a volume of this shape that sample `row` at `region` needs; the rest lies beyond the volume.

    Empty if the sample lies wholly outside the volume.
    """
    if not params.is_warped[row]:
        return region.clip(shape)
    half = _half(region)
    if params.is_elastic[row]:
        # A B-spline never leaves the range of its control points.
        half = half + np.abs(params.elastic[row].astype(np.float64)).max(axis=(1, 2, 3))
    reach = (np.abs(params.matrix[row].astype(np.float64)) * half).sum(axis=-1)
    middle = _center(region) + params.offset_voxel[row].astype(np.float64)
    # One voxel more on each side than exact arithmetic needs, as engines compute places in float32.
    start, stop = np.floor(middle - reach).astype(int) - 1, np.floor(middle + reach).astype(int) + 3
    (x0, y0, z0), (x1, y1, z1) = start.tolist(), stop.tolist()
    return Region((x0, y0, z0), (x1, y1, z1)).clip(shape)


def needed_boxes(params: AugmentParams, regions: Sequence[Region], shapes: Sequence[Index3]) -> list[Region]:
    """`needed_box` of every sample of a batch, computed at once."""
    corners = np.array([region.start + region.stop for region in regions])
    rows = np.flatnonzero(params.is_warped)
    if rows.size > 0:
        start, stop = corners[rows, :3], corners[rows, 3:]
        half, is_elastic = (stop - start - 1) / 2.0, params.is_elastic[rows]
        if is_elastic.any():
            half[is_elastic] += np.abs(params.elastic[rows[is_elastic]].astype(np.float64)).max(axis=(2, 3, 4))
        reach = (np.abs(params.matrix[rows].astype(np.float64)) * half[:, None, :]).sum(axis=-1)
        middle = (start + stop - 1) / 2.0 + params.offset_voxel[rows]
        corners[rows, :3] = np.floor(middle - reach) - 1
        corners[rows, 3:] = np.floor(middle + reach) + 3
    limits = np.array([shape + shape for shape in shapes])
    ends = np.minimum(np.maximum(corners, 0), limits).tolist()
    return [Region((a, b, c), (d, e, f)) for a, b, c, d, e, f in ends]


def origin_and_step(
    params: AugmentParams, row: int, region: Region, start: Index3
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Where voxel (0, 0, 0) of the sample is found in a box that begins at `start`, and its step along each axis.

    Returns:
        origin (3,), and step (3, 3) with the step along patch axis j in column j. Elastic shifts `e` come on top, as
        `matrix @ e`.
    """
    step = params.matrix[row].astype(np.float64) * np.where(params.flips[row], -1.0, 1.0)[None, :]
    middle = _center(region) + params.offset_voxel[row].astype(np.float64) - np.array(start)
    return middle - step @ _half(region), step


def _half(region: Region) -> npt.NDArray[np.float64]:
    return (np.array(region.shape, dtype=np.float64) - 1.0) / 2.0


def _center(region: Region) -> npt.NDArray[np.float64]:
    center: npt.NDArray[np.float64] = (np.array(region.start, dtype=np.float64) + np.array(region.stop) - 1.0) / 2.0
    return center


def elastic_points(patch_shape: Index3, spacing_voxel: float) -> Index3:
    """Control points along (x, y, z) of a patch, no farther apart than `spacing_voxel`."""
    x, y, z = (max(1, math.ceil((side - 1) / spacing_voxel)) + 3 for side in patch_shape)
    return (x, y, z)


def spline_weights(side: int, points: int) -> Floats:
    """The share of each control point in each voxel of an axis: (side, points) float32, four nonzero per row."""
    first, shares = four_weights(side, points)
    table = np.zeros((side, points), dtype=np.float32)
    for number in range(4):
        table[np.arange(side), first + number] = shares[:, number]
    return table


def four_weights(side: int, points: int) -> tuple[Indices, Floats]:
    """For each voxel of an axis the first of the four control points that move it (side,), and their shares (side, 4).

    The first and the last voxel lie on the second and the second-to-last control point.
    """
    intervals = points - 3
    place = np.arange(side, dtype=np.float64) * (intervals / max(1, side - 1))
    first = np.minimum(place.astype(np.int64), intervals - 1)
    t = place - first
    shares = np.stack([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], axis=1) / 6.0
    return first.astype(np.int32), shares.astype(np.float32)


def legendre(side: int) -> Floats:
    """The Legendre polynomials of degree 0 to 3 at the voxels of an axis that runs from -1 to 1: (side, 4) float32."""
    t = np.linspace(-1.0, 1.0, side) if side > 1 else np.zeros(1)
    return np.stack([np.ones_like(t), t, (3 * t**2 - 1) / 2, (5 * t**3 - 3 * t) / 2], axis=1).astype(np.float32)


def coefficient_cube(coefficients: Floats) -> Floats:
    """The 20 coefficients by degrees along (x, y, z): (4, 4, 4), zero where the degrees add up to more than 3."""
    cube = np.zeros((4, 4, 4), dtype=np.float32)
    for value, degrees in zip(coefficients, DEGREES, strict=True):
        cube[degrees] = value
    return cube


def blur_weights(sigma_voxel: float, side: int) -> Floats:
    """Weights from -r to r, summing to one; r is four standard deviations, rounded, and below `side`."""
    radius = min(int(TRUNCATE * sigma_voxel + 0.5), side - 1)
    if sigma_voxel <= 0.0 or radius <= 0:
        return np.ones(1, dtype=np.float32)
    offsets = np.arange(-radius, radius + 1, dtype=np.float64)
    weights = np.exp(-0.5 * (offsets / sigma_voxel) ** 2)
    normalized: Floats = (weights / weights.sum()).astype(np.float32)
    return normalized


def low_positions(side: int, zoom: float) -> tuple[Indices, Indices, Floats]:
    """For each voxel of an axis: the two kept voxels it lies between, and the weight of the second. Each (side,).

    `round(side * zoom)` voxels are kept, those nearest to the centers of that many equal parts ("nearest-exact" of
    torch's `interpolate`). Interpolation between them is linear, without aligned corners, as in torch.
    """
    num_low = max(1, math.floor(side * zoom + 0.5))
    kept = np.minimum(((np.arange(num_low) + 0.5) * (side / num_low)).astype(np.int64), side - 1)
    place = np.clip((np.arange(side) + 0.5) * (num_low / side) - 0.5, 0.0, num_low - 1.0)
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, num_low - 1)
    return kept[below].astype(np.int32), kept[above].astype(np.int32), (place - below).astype(np.float32)
