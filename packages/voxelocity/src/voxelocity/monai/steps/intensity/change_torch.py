"""The intensity steps in plain torch, on any device: the simple reference, and the fallback without compiled loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.region import Index3
from voxelocity.data.augment.noise import standard_normal
from voxelocity.monai.steps.engine import send
from voxelocity.monai.steps.intensity.field import (
    Bias,
    Blur,
    Field,
    Fill,
    LowPass,
    Noise,
    NormalField,
    Rician,
    Shuffle,
    Spike,
    Spikes,
    legendre_table,
)
from voxelocity.monai.steps.intensity.pointwise import Clip, Floats, Linear, Pointwise, Power, Threshold
from voxelocity.monai.steps.intensity.statistic import Statistics
from voxelocity.monai.steps.smooth import convolved

_AXES = (-3, -2, -1)
_SMALLEST = 1e-10
"""Added to a magnitude before its logarithm is taken, in case it is 0."""


def make_pointwise(patch: torch.Tensor, steps: Sequence[Pointwise]) -> None:
    """As `change.Backend`."""
    for step in steps:
        _make_one(patch, step)


def make_and_measure(patch: torch.Tensor, steps: Sequence[Pointwise], *, nonzero: bool) -> Statistics:
    """As `change.Backend`."""
    make_pointwise(patch, steps)
    channels = [channel[channel != 0] if nonzero else channel for channel in patch.flatten(1)]
    return Statistics(
        num_voxels=np.array([channel.numel() for channel in channels], np.float64),
        low=_each(torch.amin, channels),
        high=_each(torch.amax, channels),
        mean=_each(lambda channel: channel.double().mean(), channels),
        variance=_each(lambda channel: channel.double().var(unbiased=False), channels),
    )


def make_field(patch: torch.Tensor, step: Field) -> None:
    """As `change.Backend`."""
    if isinstance(step, Noise):
        patch.add_(normal_numbers(step.field, patch[:1] if step.is_shared else patch), alpha=step.std)
    elif isinstance(step, Rician):
        _add_rician(patch, step)
    elif isinstance(step, Bias):
        _apply_bias(patch, step)
    elif isinstance(step, Blur):
        blurred = convolved(patch, step.weights)
        patch.copy_(blurred if step.alpha is None else patch + step.alpha * (patch - blurred))
    elif isinstance(step, LowPass):
        _low_pass(patch, step)
    elif isinstance(step, Spikes):
        for spike in step.spikes:
            _add_wave(patch[spike.channel], spike)
    elif isinstance(step, Shuffle):
        _shuffle(patch, step)
    else:
        _fill(patch, step)


def normal_numbers(field: NormalField, like: torch.Tensor, first_channel: int = 0) -> torch.Tensor:
    """The numbers of a field for a patch (c, x, y, z) of this size, on its device."""
    if not isinstance(field, int):
        return send(field, like.device)
    num_voxels = like[0].numel()
    rows = [standard_normal(field, first_channel + channel, num_voxels) for channel in range(len(like))]
    return send(np.stack(rows).reshape(like.shape), like.device)


def _add_rician(patch: torch.Tensor, step: Rician) -> None:
    mean, std = _column(step.mean, patch), _column(step.std, patch)
    real, imaginary = (
        mean + std * normal_numbers(field, patch, first_channel=number * len(patch))
        for number, field in enumerate(step.fields)
    )
    patch.add_(real).square_().add_(imaginary.square()).sqrt_()


def _make_one(patch: torch.Tensor, step: Pointwise) -> None:
    if isinstance(step, Linear):
        changed = patch if step.center is None else patch - _column(step.center, patch)
        changed = changed * _column(step.scale, patch) + _column(step.shift, patch)
        patch.copy_(torch.where(patch == 0, patch, changed) if step.keeps_zero else changed)
    elif isinstance(step, Clip):
        patch.clamp_(_column(step.low, patch), _column(step.high, patch))
    elif isinstance(step, Threshold):
        patch.masked_fill_(~(patch > step.bound if step.keeps_above else patch < step.bound), step.fill)
    elif isinstance(step, Power):
        unit = ((patch - step.low) / step.divisor).clamp_(min=0.0)
        patch.copy_(unit.pow_(step.gamma).mul_(step.span).add_(step.low))
    else:
        values = send(step.values, patch.device)
        last = len(step.values) - 1
        place = ((patch - step.low) * (last / (step.high - step.low))).clamp_(0, last)
        below = place.long().clamp_(0, last - 1)
        patch.copy_(torch.lerp(values[below], values[below + 1], place - below))


def _apply_bias(patch: torch.Tensor, step: Bias) -> None:
    tables = [
        send(legendre_table(side, degrees), patch.device)
        for side, degrees in zip(patch.shape[1:], step.coefficients.shape, strict=True)
    ]
    coefficients = send(step.coefficients, patch.device)
    patch.mul_(torch.einsum("ijk,xi,yj,zk->xyz", coefficients, *tables).exp_())


def _column(values: Floats, patch: torch.Tensor) -> torch.Tensor:
    return send(values, patch.device).view(-1, 1, 1, 1)


def _each(measure: Callable[[torch.Tensor], torch.Tensor], channels: list[torch.Tensor]) -> npt.NDArray[np.float64]:
    return np.array([float(measure(channel)) if channel.numel() else np.nan for channel in channels], np.float64)


def _low_pass(patch: torch.Tensor, step: LowPass) -> None:
    """From half of the spectrum, as the patch is real.

    Taking the real part equals filtering symmetrically: a real patch has the conjugate of frequency f at -f, so f keeps
    half of its weight if only one of the two lies within the radius.
    """
    x, y, z = patch.shape[1:]
    half = torch.fft.rfftn(patch, dim=_AXES)
    half *= send(_symmetric_mask((x, y, z), step.radius).numpy(), patch.device)
    patch.copy_(torch.fft.irfftn(half, s=(x, y, z), dim=_AXES))


def _symmetric_mask(shape: Index3, radius: float) -> torch.Tensor:
    """(x, y, z // 2 + 1): 1 where a frequency and its negative lie within the radius, 1/2 for one of the two."""
    # Four times the squared distance is a whole number, so rounding does not decide what is inside.
    bound = _largest_within(radius)
    masks = []
    for sign in (1, -1):
        squares = []
        for axis, side in enumerate(shape):
            frequencies = np.arange(side) if axis < 2 else np.arange(side // 2 + 1)
            positions = (sign * frequencies + side // 2) % side
            squares.append((2 * positions - (side - 1)) ** 2)
        along_x, along_y, along_z = (torch.from_numpy(values.astype(np.int32)) for values in squares)
        masks.append(along_x[:, None, None] + along_y[:, None] + along_z <= bound)
    return (masks[0].float() + masks[1].float()) / 2


def _largest_within(radius: float) -> int:
    """The largest whole number n with `sqrt(n / 4) <= radius`; -1 for none."""
    if radius < 0:
        return -1
    guess = math.floor(4 * radius * radius) + 2
    while guess >= 0 and math.sqrt(guess / 4) > radius:
        guess -= 1
    return guess


def _add_wave(channel: torch.Tensor, spike: Spike) -> None:
    """Sets one frequency of a channel (x, y, z), in place: it is one wave, which is added."""
    along_x, along_y, along_z = wave_tables(channel, spike)
    waves = torch.stack([along_z.real, along_z.imag]).float()
    lines = channel.reshape(-1, channel.shape[2])
    parts = (lines @ waves.T).double()
    plane = torch.complex(parts[:, 0], -parts[:, 1]).view(channel.shape[:2])
    found = complex((along_x.conj() @ plane @ along_y.conj()).item())
    magnitude, log_magnitude = abs(found), spike.log_magnitude
    if spike.is_relative:
        log_magnitude *= float(mean_log_magnitude(channel))
    phase = found / magnitude if magnitude > 0 else 1.0
    change = (math.exp(log_magnitude) - magnitude) * phase / channel.numel()
    amplitudes = (change * along_x[:, None] * along_y).reshape(-1)
    lines.addmm_(torch.stack([amplitudes.real, -amplitudes.imag], dim=1).float(), waves)


def wave_tables(channel: torch.Tensor, spike: Spike) -> list[torch.Tensor]:
    """The wave along x, y and z: a complex128 number of size 1 for each voxel of an axis, on the channel's device."""
    return [
        send(np.exp(2j * np.pi * (((place - side // 2) * np.arange(side)) % side / side)), channel.device)
        for side, place in zip(channel.shape, spike.place, strict=True)
    ]


def mean_log_magnitude(channel: torch.Tensor) -> torch.Tensor:
    """Over the spectrum of a channel (x, y, z), from half of it: the other half mirrors it. Waits for no device."""
    logs = (torch.fft.rfftn(channel).abs() + _SMALLEST).log_()
    total = 2 * logs.sum(dtype=torch.float64) - logs[..., 0].sum(dtype=torch.float64)
    if channel.shape[-1] % 2 == 0:
        total -= logs[..., -1].sum(dtype=torch.float64)
    mean: torch.Tensor = total / channel.numel()
    return mean


def _shuffle(patch: torch.Tensor, step: Shuffle) -> None:
    box = tuple(slice(start, start + length) for start, length in zip(step.start, step.shape, strict=True))
    for channel, order in zip(patch, step.orders, strict=True):
        place = channel[box]
        place.copy_(place.reshape(-1)[send(order, patch.device)].view(step.shape))


def _fill(patch: torch.Tensor, step: Fill) -> None:
    low, high = fill_range(patch, step)
    boxes = [(slice(None), *map(slice, start, stop)) for start, stop in step.boxes.tolist()]
    if step.is_outside:
        filled = _values(step, patch, 0, low, high)
        for box in boxes:
            filled[box] = patch[box]
        patch.copy_(filled)
        return
    begin = 0
    for box in boxes:
        part = patch[box]
        part.copy_(_values(step, part, begin, low, high))
        begin += part.numel()


def _values(step: Fill, box: torch.Tensor, begin: int, low: float, high: float) -> torch.Tensor:
    """The fill values of the voxels of `box`, whose noise begins at index `begin`; a new tensor."""
    if step.noise is None:
        return torch.full_like(box, low)
    noise = torch.from_numpy(step.noise[begin : begin + box.numel()]).view(box.shape)
    return (low + noise * (high - low)).to(box)


def fill_range(patch: torch.Tensor, step: Fill) -> tuple[float, float]:
    """The range that the step fills boxes from.

    Raises:
        OverflowError: it is that of the patch, which is not finite.
    """
    if step.low is not None:
        return step.low, step.low if step.high is None else step.high
    least, most = (float(value) for value in patch.aminmax())
    if not np.isfinite(most - least):
        raise OverflowError(
            f"a box should be filled from the patch's own range, which is {least:g} to {most:g}; "
            "remove values that are not finite first, or give the range"
        )
    return least, most
