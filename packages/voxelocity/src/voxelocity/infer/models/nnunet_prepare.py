"""Scans prepared as nnU-Net v2 prepares them: its axes, crop, intensities and interpolation, from its plans.

The prepared volume has nnU-Net's axes, slowest first, in the order of the plans; the trace leads back. Written after
nnU-Net's `DefaultPreprocessor` and `resample_data_or_seg_to_shape`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from voxelocity.core.axis_order import AxisOrder
from voxelocity.core.contracts import StageEffect
from voxelocity.core.region import Index3
from voxelocity.core.volume import Array, Grid, Spacing, Volume, VolumeSpec
from voxelocity.data.prepare import (
    CropToNonzero,
    OrientToRAS,
    nearest_positions,
    orient_record,
    resize_record,
)
from voxelocity_observe.core.errors import ScanError

_ANISOTROPIC = 3.0
"""A scan or a network whose largest spacing is more than this many times its smallest is interpolated in planes."""
_SMALLEST_STD = 1e-8
_MAX_VOXELS = 2**31 - 1
_ROWS = 32
"""New voxels computed by one product. A spline's weights fall by 0.27 with each voxel, so only old voxels near these
count: a CT of 512 x 512 x 200 takes 1/5 of the time of products with whole matrices."""
_NEGLIGIBLE = {"float32": 1e-9, "float64": 1e-13}
"""Weights below the rounding of a sum."""

Scheme = Literal[
    "CTNormalization", "ZScoreNormalization", "NoNormalization", "RescaleTo01Normalization", "RGBTo01Normalization"
]
"""nnU-Net's names of the normalizations that are known here."""
Float32 = npt.NDArray[np.float32]
Precision = Literal["float32", "float64"]


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """How a channel is normalized.

    Attributes:
        scheme: which one.
        inside_only: ZScore: mean and deviation of the voxels that are not empty, and only these are changed.
        low: CT: intensities below are raised to it.
        high: CT: intensities above are lowered to it.
        mean: CT: subtracted.
        std: CT: divided by.
    """

    scheme: Scheme
    inside_only: bool = False
    low: float = 0.0
    high: float = 0.0
    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Interpolation:
    """How nnU-Net resamples.

    Attributes:
        order: of the splines of images; logits are interpolated linearly.
        image_order_thick: of images along the axis of thick slices.
        logits_order_thick: of logits along it: 0 for the nearest slice, or 1.
        image_in_planes: whether planes of images are interpolated alone; None to decide by the spacing.
        logits_in_planes: the same for logits.
    """

    order: int = 3
    image_order_thick: int = 0
    logits_order_thick: int = 0
    image_in_planes: bool | None = None
    logits_in_planes: bool | None = None


@dataclass(frozen=True, kw_only=True)
class NnunetPreparation:
    """Stage: the scan as nnU-Net's network expects it, float32. Its label is dropped.

    Attributes:
        axes: new axis i is axis `axes[i]` of the scan.
        is_reoriented: whether the scan is first turned to RAS.
        spacing_mm: of the result, along its axes; None for the one that the scan has along this axis.
        channels: how each is normalized.
        interpolation: how it is resampled.
    """

    axes: Index3
    is_reoriented: bool
    spacing_mm: tuple[float | None, float, float]
    channels: tuple[Normalization, ...]
    interpolation: Interpolation

    def describe(self, spec: VolumeSpec) -> StageEffect:
        """The effect on a scan of this spec; an upper bound, as only the voxels show what is cropped.

        Raises:
            ScanError: the scan's spacing is not a positive number, or the result would have too many voxels.
        """
        if self.is_reoriented:
            spec = OrientToRAS().describe(spec).spec
        turned = self._order.turn_grid(spec.grid)
        grid = _resized(turned, self._new_shape(turned, who="the scan"))
        new = VolumeSpec(num_channels=spec.num_channels, grid=grid, dtype="float32")
        # All channels are normalized first; resizing one holds two arrays between its size and the new one.
        scratch_bytes = 4 * (spec.num_channels * turned.num_voxels + 2 * max(turned.num_voxels, grid.num_voxels))
        return StageEffect(spec=new, scratch_bytes=scratch_bytes)

    def fingerprint(self) -> str:
        return f"nnunet-v1-{hashlib.blake2b(repr(self).encode(), digest_size=12).hexdigest()}"

    def __call__(self, volume: Volume) -> Volume:
        """The prepared volume.

        Raises:
            ScanError: as `describe`, or an RGB channel has values outside 0 to 255.
        """
        return self.resample(self.crop(volume.with_(label=None)))

    def crop(self, volume: Volume) -> Volume:
        """The volume with the axes of the network, without its empty border; views, with the label if it has one."""
        if self.is_reoriented:
            volume = OrientToRAS()(volume)
        label = volume.label
        volume = volume.with_(
            image=self._order.turn(volume.image),
            label=None if label is None else self._order.turn(label),
            grid=self._order.turn_grid(volume.grid),
            trace=(*volume.trace, orient_record(self._order)),
        )
        return CropToNonzero()(volume)

    def resample(self, volume: Volume) -> Volume:
        """What `crop` gave, normalized and at the spacing of the network. Its label is dropped.

        Raises:
            ScanError: as `__call__`.
        """
        who = f"case '{volume.case_id}'"
        shape = self._new_shape(volume.grid, who=who)
        image = normalize(volume.image, self.channels, who=who)
        if shape == volume.grid.shape:
            return volume.with_(image=image, label=None)
        spacing_mm, target_mm = self.spacings_of(volume.grid)
        thick = thick_axis(spacing_mm, target_mm, in_planes=self.interpolation.image_in_planes)
        back = thick_axis(target_mm, spacing_mm, in_planes=self.interpolation.logits_in_planes)
        nearest_axes = [back] if back is not None and self.interpolation.logits_order_thick == 0 else []
        return volume.with_(
            image=resize(image, shape, self.interpolation, thick=thick),
            label=None,
            grid=_resized(volume.grid, shape),
            trace=(*volume.trace, resize_record(volume.grid.shape, shape, nearest_axes=nearest_axes)),
        )

    def spacings_of(self, grid: Grid) -> tuple[Spacing, Spacing]:
        """Of a turned grid, the spacing as nnU-Net reads it, and the one that the network needs."""
        spacing_mm = _spacing_mm(grid)
        first, second, third = self.spacing_mm
        return spacing_mm, (spacing_mm[0] if first is None else first, second, third)

    @property
    def _order(self) -> AxisOrder:
        return AxisOrder(axes=self.axes, flips=(False, False, False))

    def _new_shape(self, grid: Grid, *, who: str) -> Index3:
        spacing_mm, target_mm = self.spacings_of(grid)
        if not all(math.isfinite(length) and length > 0.0 for length in spacing_mm):
            raise ScanError(f"infer: {who} has the spacing {spacing_mm} mm; fix its header, or leave it out")
        x, y, z = (max(1, round(old / new * n)) for old, new, n in zip(spacing_mm, target_mm, grid.shape, strict=True))
        if x * y * z > _MAX_VOXELS:
            raise ScanError(
                f"infer: {who} would have {x} x {y} x {z} voxels at the spacing of the network, {target_mm} mm, "
                f"more than the supported {_MAX_VOXELS:,}; check the spacing {grid.spacing_mm} mm in its header, or "
                "crop it"
            )
        return (x, y, z)


def normalize(
    image_cxyz: Array, channels: Sequence[Normalization], *, who: str, inside_xyz: npt.NDArray[np.bool_] | None = None
) -> Float32:
    """The channels normalized, in a new array in C order.

    Args:
        image_cxyz: of any number type and order in memory; nnU-Net's order also gives its rounding of means.
        channels: how, one each.
        who: the case, for messages.
        inside_xyz: the voxels that are not empty; found here, if it is needed and not given.

    Raises:
        ScanError: an RGB channel has values outside 0 to 255.
    """
    image = np.array(image_cxyz, dtype=np.float32, order="C")
    for values, source, channel in zip(image, image_cxyz, channels, strict=True):
        if channel.scheme == "CTNormalization":
            np.clip(values, channel.low, channel.high, out=values)
            values -= channel.mean
            values /= max(channel.std, _SMALLEST_STD)
        elif channel.scheme == "ZScoreNormalization":
            if channel.inside_only and inside_xyz is None:
                from scipy.ndimage import binary_fill_holes

                inside_xyz = binary_fill_holes((image_cxyz != 0).any(axis=0))
            chosen = source.astype(np.float32, copy=False)
            if channel.inside_only:
                chosen = chosen[inside_xyz]
            scaled = (chosen - chosen.mean()) / max(chosen.std(), _SMALLEST_STD)
            values[inside_xyz if channel.inside_only else ...] = scaled
        elif channel.scheme == "RescaleTo01Normalization":
            values -= values.min()
            values /= max(values.max(), _SMALLEST_STD)
        elif channel.scheme == "RGBTo01Normalization":
            if values.min() < 0 or values.max() > 255:
                raise ScanError(
                    f"infer: {who} has values from {values.min():g} to {values.max():g} in a channel that the model "
                    "takes for RGB, 0 to 255; check that it is the kind of image the model was trained on"
                )
            values /= 255.0
    return image


def thick_axis(first_mm: Sequence[float], second_mm: Sequence[float], *, in_planes: bool | None) -> int | None:
    """The axis across planes that are interpolated alone, or None if all axes are interpolated together.

    The first spacing decides if it is anisotropic, else the second; two equally thick axes do not count.
    """
    for spacing_mm in (first_mm, second_mm):
        if in_planes or (in_planes is None and max(spacing_mm) / min(spacing_mm) > _ANISOTROPIC):
            thick = [axis for axis, length in enumerate(spacing_mm) if length == max(spacing_mm)]
            return thick[0] if len(thick) == 1 else None
    return None


def resize(
    image_cxyz: Float32,
    shape: Index3,
    interpolation: Interpolation,
    *,
    thick: int | None,
    compute: Precision = "float32",
) -> Float32:
    """The image at another number of voxels, as nnU-Net computes it with scikit-image; a new array in C order.

    Splines never leave the range of the channel (with `thick`, of the plane), as in `skimage.transform.resize`. They
    are separable, so each axis is a product with a banded matrix; SciPy sums over 64 neighbors a voxel.

    Args:
        image_cxyz: float32.
        shape: of the result along (x, y, z).
        interpolation: the orders of the splines.
        thick: the axis across planes that are interpolated alone, if any.
        compute: "float64" rounds as nnU-Net does, in twice the memory.
    """
    result = np.empty((len(image_cxyz), *shape), dtype=np.float32)
    together = [axis for axis in range(3) if axis != thick]
    for source, target in zip(image_cxyz, result, strict=True):
        limits = tuple(together) if thick is not None else None
        low, high = source.min(axis=limits, keepdims=True), source.max(axis=limits, keepdims=True)
        values: Array = source
        # The axis that shrinks most comes first, so that the others have less to do.
        for axis in sorted(together, key=lambda axis: shape[axis] / source.shape[axis]):
            values = _resize_along(values, shape[axis], axis, interpolation.order, compute)
        values = np.clip(values, low, high, out=None if values is source else values)
        if thick is not None:
            values = _resize_along(values, shape[thick], thick, interpolation.image_order_thick, compute)
        target[...] = values
    return result


def _resize_along(values: Array, num: int, axis: int, order: int, compute: Precision) -> Array:
    num_before = values.shape[axis]
    if num == num_before:
        return values
    if order == 0:
        return values.take(nearest_positions(num_before, num).astype(np.intp), axis=axis)
    result = np.empty([num if other == axis else n for other, n in enumerate(values.shape)], dtype=compute)
    weights = _spline(num_before, num, order, compute)
    for start in range(0, num, _ROWS):
        rows = weights[start : start + _ROWS]
        near = np.flatnonzero(np.abs(rows).max(axis=0) > _NEGLIGIBLE[compute])
        first, stop = int(near[0]), int(near[-1]) + 1
        source = values[(slice(None),) * axis + (slice(first, stop),)]
        target = result[(slice(None),) * axis + (slice(start, start + _ROWS),)]
        band = rows[:, first:stop]
        if axis == 0:
            np.matmul(band, source.reshape(stop - first, -1), out=target.reshape(len(rows), -1))
        elif axis == 1:
            np.matmul(band, source, out=target)
        else:
            np.matmul(source, band.T, out=target)
    return result


@lru_cache(maxsize=64)
def _spline(num_before: int, num: int, order: int, compute: Precision) -> Array:
    """(num, num_before): what each old voxel adds to each new one. Kept, so do not change it."""
    from scipy.ndimage import zoom

    unit = np.eye(num_before)
    # The other axis keeps its voxels, on which a spline is exact.
    weights: Array = zoom(unit, (num / num_before, 1), order=order, mode="nearest", grid_mode=True).astype(compute)
    return weights


def _spacing_mm(grid: Grid) -> Spacing:
    # nnU-Net reads float32 from the header; the length of a rotated axis is a little off that, and 24.5 voxels of a
    # network with twice the spacing are rounded up or down.
    near = ((length, round(length, 4)) for length in grid.spacing_mm)
    x, y, z = (float(np.float32(b if math.isclose(a, b, rel_tol=1e-6) else a)) for a, b in near)
    return (x, y, z)


def _resized(grid: Grid, shape: Index3) -> Grid:
    """The same field of view with another number of voxels."""
    affine = grid.matrix
    center_mm = affine @ [*((n - 1) / 2 for n in grid.shape), 1.0]
    affine[:3, :3] *= [old / new for old, new in zip(grid.shape, shape, strict=True)]
    affine[:3, 3] = center_mm[:3] - affine[:3, :3] @ [(n - 1) / 2 for n in shape]
    return Grid.of(shape, affine)
