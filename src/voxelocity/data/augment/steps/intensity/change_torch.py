"""The intensity steps in plain torch, on any device: the simple reference, and the fallback without Numba."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.data.augment.noise import standard_normal
from voxelocity.data.augment.steps.intensity.field import Bias, Blur, Field, LowPass, Noise, NormalField, Rician, Spikes
from voxelocity.data.augment.steps.intensity.legendre import legendre_table
from voxelocity.data.augment.steps.intensity.pointwise import Clip, Floats, Linear, Pointwise, Power, Threshold
from voxelocity.data.augment.steps.intensity.shuffle import shuffle
from voxelocity.data.augment.steps.intensity.spectrum import low_pass, set_spikes
from voxelocity.data.augment.steps.intensity.statistic import Statistics


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
        patch.add_(normal(step.field, patch[:1] if step.is_shared else patch), alpha=step.std)
    elif isinstance(step, Rician):
        add_rician(patch, step)
    elif isinstance(step, Bias):
        _apply_bias(patch, step)
    elif isinstance(step, Blur):
        blurred = _blurred(patch, step)
        patch.copy_(blurred if step.alpha is None else patch + step.alpha * (patch - blurred))
    elif isinstance(step, LowPass):
        low_pass(patch, step)
    elif isinstance(step, Spikes):
        set_spikes(patch, step)
    else:
        shuffle(patch, step)


def normal(field: NormalField, like: torch.Tensor, first_channel: int = 0) -> torch.Tensor:
    """The numbers of a field for a patch (c, x, y, z) of this size, on its device."""
    if not isinstance(field, int):
        return torch.from_numpy(field).to(like.device)
    num_voxels = like[0].numel()
    rows = [standard_normal(field, first_channel + channel, num_voxels) for channel in range(len(like))]
    return torch.from_numpy(np.stack(rows)).view(like.shape).to(like.device)


def add_rician(patch: torch.Tensor, step: Rician) -> None:
    """Applies the step in place."""
    mean, std = _column(step.mean, patch), _column(step.std, patch)
    real, imaginary = (
        mean + std * normal(field, patch, first_channel=number * len(patch)) for number, field in enumerate(step.fields)
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
        values = torch.from_numpy(step.values).to(patch.device)
        last = len(step.values) - 1
        place = ((patch - step.low) * (last / (step.high - step.low))).clamp_(0, last)
        below = place.long().clamp_(0, last - 1)
        patch.copy_(torch.lerp(values[below], values[below + 1], place - below))


def _apply_bias(patch: torch.Tensor, step: Bias) -> None:
    tables = [
        torch.from_numpy(legendre_table(side, degrees)).to(patch.device)
        for side, degrees in zip(patch.shape[1:], step.coefficients.shape, strict=True)
    ]
    coefficients = torch.from_numpy(step.coefficients).to(patch.device)
    patch.mul_(torch.einsum("ijk,xi,yj,zk->xyz", coefficients, *tables).exp_())


def _blurred(patch: torch.Tensor, step: Blur) -> torch.Tensor:
    blurred = patch.unsqueeze(1)
    for axis, weights in enumerate(step.weights):
        shape, padding = [1, 1, 1, 1, 1], [0, 0, 0]
        shape[axis + 2], padding[axis] = len(weights), len(weights) // 2
        kernel = torch.from_numpy(weights).to(patch.device).view(shape)
        blurred = torch.nn.functional.conv3d(blurred, kernel, padding=padding)
    return blurred.squeeze(1)


def _column(values: Floats, patch: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values).to(patch.device).view(-1, 1, 1, 1)


def _each(measure: Callable[[torch.Tensor], torch.Tensor], channels: list[torch.Tensor]) -> npt.NDArray[np.float64]:
    return np.array([float(measure(channel)) if channel.numel() else np.nan for channel in channels], np.float64)
