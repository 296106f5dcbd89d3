"""The intensity steps on a device, in place, by kernels and torch's own operations: nothing waits for the device.

Results agree with `change_torch`, the reference, which waits wherever a step depends on the patch's own values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch

from voxelocity.data.augment.noise import CHUNK_VOXELS, PIECES
from voxelocity.monai.steps.engine import send, step_engine
from voxelocity.monai.steps.intensity import change_torch, facts
from voxelocity.monai.steps.intensity.field import (
    Bias,
    Blur,
    Field,
    Fill,
    Noise,
    Rician,
    Shuffle,
    Spike,
    Spikes,
    legendre_table,
)
from voxelocity.monai.steps.intensity.pointwise import Clip, Curve, Floats, Linear, Pointwise, Threshold
from voxelocity.monai.steps.intensity.statistic import (
    Contrast,
    HistogramShift,
    IntensityStep,
    PercentileRange,
    RelativeRician,
    Rematch,
    RescaleRange,
    ScaleAboutMean,
    Standardize,
    Statistic,
    StdShift,
)
from voxelocity_observe.core.device import as_current


def change_on_device(patch: torch.Tensor, steps: Sequence[IntensityStep], *, uses_kernels: bool | None = None) -> None:
    """As `change`, on the current stream of the patch's device.

    Where boxes are filled from the patch's own range, a range that is not finite is not refused, as seeing it would
    have to wait: the boxes then hold what that range gives.

    Args:
        patch: (c, x, y, z) float32 in C order.
        steps: as drawn.
        uses_kernels: Triton's, for noise and blurs; None where they can be launched.
    """
    kernels = step_engine("auto", patch.device) == "triton" if uses_kernels is None else uses_kernels
    with as_current(patch.device):
        for step in steps:
            if isinstance(step, Pointwise):
                _make_pointwise(patch, step)
            elif isinstance(step, PercentileRange):
                facts.within_percentiles(patch, step)
            elif isinstance(step, Statistic):
                _make_statistic(patch, step, kernels)
            else:
                _make_field(patch, step, kernels)


def _make_pointwise(patch: torch.Tensor, step: Pointwise) -> None:
    device = patch.device
    if isinstance(step, Linear):
        center = None if step.center is None else _each(step.center, device)
        scale, shift = _each(step.scale, device), _each(step.shift, device)
        facts.DeviceLinear(scale=scale, shift=shift, center=center, keeps_zero=step.keeps_zero)(patch)
    elif isinstance(step, Clip):
        low, high = (facts.as_column(send(bound, device)) for bound in (step.low, step.high))
        patch.clamp_(low, high)
    elif isinstance(step, Threshold | Curve):
        change_torch.make_pointwise(patch, [step])
    else:
        patch.sub_(step.low).div_(step.divisor).clamp_(min=0.0)
        patch.pow_(step.gamma).mul_(step.span).add_(step.low)


def _each(values: Floats, device: torch.device) -> torch.Tensor | float:
    """A value for each channel, or one number where they are all the same: that needs no copy to the device."""
    return float(values[0]) if (values == values[0]).all() else send(values, device)


def _make_statistic(patch: torch.Tensor, step: Statistic, kernels: bool) -> None:
    if isinstance(step, StdShift):
        facts.shift_by_std(patch, step)
    elif isinstance(step, Standardize):
        facts.standardize(patch, step)
    elif isinstance(step, RescaleRange):
        facts.rescale(patch, step)
    elif isinstance(step, ScaleAboutMean):
        facts.scale_about_mean(patch, step)
    elif isinstance(step, Contrast):
        facts.change_contrast(patch, step)
    elif isinstance(step, HistogramShift):
        facts.map_along(patch, step.points)
    elif isinstance(step, Rematch):
        found = facts.DeviceFacts(patch, per_channel=False, nonzero=False)
        scale = step.std / (found.sample_std + 1e-8)
        facts.DeviceLinear(center=found.mean, scale=scale, shift=step.mean)(patch)
    else:
        assert isinstance(step, RelativeRician), step
        found = facts.DeviceFacts(patch, per_channel=step.per_channel, nonzero=step.nonzero)
        std = (send(step.rician.std, patch.device) * found.sample_std).float()
        _add_rician(patch, step.rician, std, kernels)


def _make_field(patch: torch.Tensor, step: Field, kernels: bool) -> None:
    if isinstance(step, Noise):
        _add_noise(patch, step, kernels)
    elif isinstance(step, Rician):
        _add_rician(patch, step, send(step.std, patch.device), kernels)
    elif isinstance(step, Bias):
        _apply_bias(patch, step)
    elif isinstance(step, Blur) and kernels:
        blurred = _blur(patch, step.weights)
        if step.alpha is None:
            patch.copy_(blurred)
        else:
            patch.add_(patch - blurred, alpha=step.alpha)
    elif isinstance(step, Spikes):
        for spike in step.spikes:
            _add_wave(patch[spike.channel], spike)
    elif isinstance(step, Shuffle):
        change_torch.make_field(patch, step)
    elif isinstance(step, Fill):
        _fill(patch, step)
    else:
        change_torch.make_field(patch, step)


def _add_noise(patch: torch.Tensor, step: Noise, kernels: bool) -> None:
    if not (kernels and isinstance(step.field, int)):
        change_torch.make_field(patch, step)
        return
    stds = torch.full((len(patch),), step.std, device=patch.device)
    ints = np.array([step.field, 0, 0 if step.is_shared else 1], np.int64)
    _launch_noise(patch, ints, torch.zeros_like(stds), stds, is_rician=False)


def _add_rician(patch: torch.Tensor, step: Rician, std: torch.Tensor, kernels: bool) -> None:
    mean = send(step.mean, patch.device)
    first, second = step.fields
    if kernels and isinstance(first, int):
        _launch_noise(patch, np.array([first, len(patch), 1], np.int64), mean, std, is_rician=True)
        return
    for number, field in enumerate((first, second)):
        numbers = change_torch.normal_numbers(field, patch, first_channel=number * len(patch))
        noise = facts.as_column(mean) + facts.as_column(std) * numbers
        if number == 0:
            patch.add_(noise).square_()
        else:
            patch.add_(noise.square()).sqrt_()


def _launch_noise(
    patch: torch.Tensor,
    ints: np.ndarray[tuple[int], np.dtype[np.int64]],
    means: torch.Tensor,
    stds: torch.Tensor,
    *,
    is_rician: bool,
) -> None:
    from voxelocity.core.kernels import launch
    from voxelocity.monai.steps.intensity import triton_change

    num_voxels = patch[0].numel()
    grid = (math.ceil(num_voxels / CHUNK_VOXELS), len(patch))
    tables = (send(ints, patch.device), means, stds, _pieces(patch.device))
    launch(triton_change.add_noise, grid, patch, *tables, num_voxels, RICIAN=is_rician)


@functools.cache
def _pieces(device: torch.device) -> torch.Tensor:
    """`noise.PIECES`, copied once. It waits, so that every stream may read them afterwards."""
    return torch.from_numpy(PIECES.copy()).to(device)


def _blur(patch: torch.Tensor, weights: Sequence[Floats]) -> torch.Tensor:
    from voxelocity.core.kernels import launch
    from voxelocity.monai.steps.intensity import triton_change

    num_voxels, block = patch[0].numel(), triton_change.BLUR_BLOCK
    _, nx, ny, nz = patch.shape
    blurred = patch
    for side, inner, taps in zip((nx, ny, nz), (ny * nz, nz, 1), weights, strict=True):
        if len(taps) == 1 and taps[0] == 1.0:
            continue
        target, grid = torch.empty_like(patch), (math.ceil(num_voxels / block), len(patch))
        numbers = (len(taps), side, inner, num_voxels)
        launch(triton_change.blur, grid, blurred, target, send(taps, patch.device), *numbers, BLOCK=block)
        blurred = target
    return blurred


def _apply_bias(patch: torch.Tensor, step: Bias) -> None:
    """In float64, which no setting makes coarser: products of float32 may be made of their first ten bits."""
    tables = [
        send(legendre_table(side, degrees), patch.device).double()
        for side, degrees in zip(patch.shape[1:], step.coefficients.shape, strict=True)
    ]
    coefficients = send(step.coefficients, patch.device).double()
    patch.mul_(torch.einsum("ijk,xi,yj,zk->xyz", coefficients, *tables).exp_().float())


def _add_wave(channel: torch.Tensor, spike: Spike) -> None:
    """As `change_torch`, with the wave's size left on the device."""
    along_x, along_y, along_z = change_torch.wave_tables(channel, spike)
    lines = channel.reshape(-1, channel.shape[2])
    waves = torch.stack([along_z.real, along_z.imag])
    parts = lines.double() @ waves.T
    plane = torch.complex(parts[:, 0], -parts[:, 1]).view(channel.shape[:2])
    found = along_x.conj() @ plane @ along_y.conj()
    magnitude = found.abs()
    log_magnitude: torch.Tensor | float = spike.log_magnitude
    if spike.is_relative:
        log_magnitude = log_magnitude * change_torch.mean_log_magnitude(channel)
    wanted = torch.exp(torch.as_tensor(log_magnitude, dtype=torch.float64))
    is_some = magnitude > 0
    phase = torch.where(is_some, found / torch.where(is_some, magnitude, 1.0), 1.0)
    change = (wanted - magnitude) * phase / channel.numel()
    amplitudes = (change * along_x[:, None] * along_y).reshape(-1)
    lines.add_((torch.stack([amplitudes.real, -amplitudes.imag], dim=1) @ waves).float())


def _fill(patch: torch.Tensor, step: Fill) -> None:
    low: torch.Tensor | float
    high: torch.Tensor | float
    if step.low is None:
        low, high = (value.double() for value in patch.aminmax())
    else:
        low, high = step.low, step.low if step.high is None else step.high
    noise = None if step.noise is None else low + send(step.noise, patch.device) * (high - low)
    boxes = [(slice(None), *map(slice, start, stop)) for start, stop in step.boxes.tolist()]
    if step.is_outside:
        filled = torch.zeros_like(patch).add_(low)
        if noise is not None:
            filled.copy_(noise.view(patch.shape))
        for box in boxes:
            filled[box] = patch[box]
        patch.copy_(filled)
        return
    begin = 0
    for box in boxes:
        part = patch[box]
        if noise is None:
            part.copy_(low) if isinstance(low, torch.Tensor) else part.fill_(low)
        else:
            part.copy_(noise[begin : begin + part.numel()].view(part.shape))
        begin += part.numel()
