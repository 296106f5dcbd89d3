"""What makes a prediction doubtful without preventing it: a scan unlike the training scans, a slow device.

Each doubt is part of a sentence, with its numbers. The prediction itself is not judged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voxelocity.core.scan_formats import NIFTI, format_named
from voxelocity.core.volume import Array, Volume, VolumeSpec
from voxelocity.data.decode import ScanHeader
from voxelocity.data.prepare import OrientToRAS
from voxelocity.infer.model import PredictionSpec
from voxelocity.infer.models.spec import ModelSpec
from voxelocity.step import precision_on
from voxelocity_observe.core.device import Device

# Training varies the scale by tens of percent; half and double are beyond that.
_MOST_RATIO = 2.0
# Share of the range of the training intensities that a scan may leave on either side.
_MARGIN = 0.1
_SAMPLED_PER_AXIS = 40


def device_doubts(spec: PredictionSpec, device: Device) -> list[str]:
    """Doubts about the device the model runs on, as whole sentences."""
    used = precision_on(spec.precision, device).compute
    # Those of other toolkits compute in float32 there as well.
    if used == spec.precision.compute or not isinstance(spec, ModelSpec):
        return []
    return [
        f"the model computes in {spec.precision.compute}, which is slower than float32 on this device ({device}); "
        f"{used} is used"
    ]


def grid_doubts(headers: Sequence[ScanHeader], spec: PredictionSpec) -> list[str]:
    """Doubts about the position of a scan's voxels. Reads only headers."""
    first = headers[0]
    placement, grid = first.placement, first.grid
    doubts = []
    if placement.form == "none":
        why = (format_named(first.path) or NIFTI).unplaced
        doubts.append(f"its header gives no position in space ({why}), so left and right are uncertain")
    elif first.is_placed_twice:
        doubts.append(
            f"its sform and qform lie up to {placement.forms_apart_mm:.4g} mm apart; the sform is used, and programs "
            "that use the qform show scan and prediction at another position"
        )
    if first.is_spaced_twice:
        given, used = (
            " x ".join(f"{step:.4g}" for step in spacing) for spacing in (placement.pixdim_mm or (), grid.spacing_mm)
        )
        doubts.append(
            f"its pixdim gives voxels of {given} mm, and its {placement.form}, which is used, voxels of {used} mm"
        )
    if spec.trained_on is None:
        return doubts
    stored = VolumeSpec(num_channels=first.num_channels, grid=grid, dtype=first.dtype)
    grid = OrientToRAS().describe(stored).spec.grid
    extent_mm = np.multiply(grid.shape, grid.spacing_mm)
    for what, values, ranges in (
        ("spacing", grid.spacing_mm, spec.trained_on.spacing_mm),
        ("size", extent_mm, spec.trained_on.extent_mm),
    ):
        for axis, value, (low, high) in zip("xyz", values, ranges, strict=True):
            if not low / _MOST_RATIO <= value <= high * _MOST_RATIO:
                doubts.append(
                    f"its {what} along {axis} is {value:.4g} mm (training scans: {_range_text(low, high)} mm)"
                )
    return doubts


def intensity_doubts(scan: Volume, spec: PredictionSpec) -> list[str]:
    """Doubts about the voxel values of a decoded scan, from a few ten thousand voxels of each channel."""
    doubts = []
    for index, name in enumerate(spec.channels):
        channel = scan.image[index]
        values = channel[tuple(slice(None, None, max(1, n // _SAMPLED_PER_AXIS)) for n in channel.shape)]
        low, high = (float(value) for value in np.percentile(values, [0.5, 99.5]))
        who = "its values" if len(spec.channels) == 1 else f"its values of {name}"
        if values.min() == values.max() and not channel.min() < channel.max():
            doubts.append(f"{who} are {low:.4g} everywhere")
        elif spec.trained_on is not None and _is_unlike(values, low, high, spec, index):
            trained = _range_text(*spec.trained_on.intensity[index])
            doubts.append(f"{who} run from {low:.4g} to {high:.4g} (training scans: {trained})")
    return doubts


def _is_unlike(values: Array, low: float, high: float, spec: PredictionSpec, index: int) -> bool:
    # Each scan is normalized by its own mean and deviation, so its scale does not matter.
    if spec.is_scale_free:
        return False
    assert spec.trained_on is not None
    lowest, highest = spec.trained_on.intensity[index]
    median = spec.trained_on.foreground_median[index]
    margin = _MARGIN * (highest - lowest)
    lost_sign = lowest < -margin and float(values.min()) >= 0.0
    return low < lowest - margin or high > highest + margin or not low <= median <= high or lost_sign


def _range_text(low: float, high: float) -> str:
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
