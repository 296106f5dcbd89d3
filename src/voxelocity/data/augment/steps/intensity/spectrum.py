"""Changes of a patch's spectrum, in torch: a real patch needs only half of it, a single frequency none."""

from __future__ import annotations

import math

import numpy as np
import torch

from voxelocity.core.region import Index3
from voxelocity.data.augment.steps.intensity.field import LowPass, Spike, Spikes

_AXES = (-3, -2, -1)
_SMALLEST = 1e-10
"""Added to a magnitude before its logarithm is taken, in case it is 0."""


def low_pass(patch: torch.Tensor, step: LowPass) -> None:
    """Applies the step to `patch` (c, x, y, z) in place.

    Taking the real part equals filtering symmetrically: a real patch has the conjugate of frequency f at -f, so f keeps
    half of its weight if only one of the two lies within the radius.
    """
    x, y, z = patch.shape[1:]
    half = torch.fft.rfftn(patch, dim=_AXES)
    half *= _symmetric_mask((x, y, z), step.radius).to(patch.device)
    patch.copy_(torch.fft.irfftn(half, s=(x, y, z), dim=_AXES))


def set_spikes(patch: torch.Tensor, step: Spikes) -> None:
    """Applies the step to `patch` (c, x, y, z) in place: one frequency is one wave, which is added."""
    for spike in step.spikes:
        _add_wave(patch[spike.channel], spike)


def _symmetric_mask(shape: Index3, radius: float) -> torch.Tensor:
    """(x, y, z // 2 + 1): 1 where a frequency and its negative lie within the radius, 1/2 for one of the two."""
    # Four times the squared distance is a whole number, so rounding does not decide what is inside.
    bound = _largest_within(radius)
    masks = []
    for sign in (1, -1):
        squares = []
        for axis, side in enumerate(shape):
            frequencies = np.arange(side) if axis < 2 else np.arange(side // 2 + 1)
            places = (sign * frequencies + side // 2) % side
            squares.append((2 * places - (side - 1)) ** 2)
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
    """Sets one frequency of a channel (x, y, z), in place."""
    tables = []
    for side, place in zip(channel.shape, spike.place, strict=True):
        turns = ((place - side // 2) * np.arange(side)) % side / side
        tables.append(torch.from_numpy(np.exp(2j * np.pi * turns)).to(channel.device))
    along_x, along_y, along_z = tables
    waves = torch.stack([along_z.real, along_z.imag]).float()
    lines = channel.reshape(-1, channel.shape[2])
    parts = (lines @ waves.T).double()
    plane = torch.complex(parts[:, 0], -parts[:, 1]).view(channel.shape[:2])
    found = complex((along_x.conj() @ plane @ along_y.conj()).item())
    magnitude, log_magnitude = abs(found), spike.log_magnitude
    if spike.is_relative:
        log_magnitude *= _mean_log_magnitude(channel)
    phase = found / magnitude if magnitude > 0 else 1.0
    change = (math.exp(log_magnitude) - magnitude) * phase / channel.numel()
    amplitudes = (change * along_x[:, None] * along_y).reshape(-1)
    lines.addmm_(torch.stack([amplitudes.real, -amplitudes.imag], dim=1).float(), waves)


def _mean_log_magnitude(channel: torch.Tensor) -> float:
    """Over the spectrum of a channel (x, y, z), from half of it: the other half mirrors it."""
    logs = (torch.fft.rfftn(channel).abs() + _SMALLEST).log_()
    total = 2 * logs.sum(dtype=torch.float64) - logs[..., 0].sum(dtype=torch.float64)
    if channel.shape[-1] % 2 == 0:
        total -= logs[..., -1].sum(dtype=torch.float64)
    return float(total) / channel.numel()
