"""The denoiser: layers on the waves of a streamline, led by its time, bundle and neighbors and an image along it."""

from __future__ import annotations

import math

import torch
from pydantic import Field

from voxelocity.core.config import Config
from voxelocity_lab.recipes.tractography.exemplars import Frame
from voxelocity_lab.recipes.tractography.volume import ImageSampler
from voxelocity_observe.core.errors import ConfigError

_MOST_PERIOD = 10_000.0


class DenoiserConfig(Config):
    """The denoiser's size."""

    num_points: int = Field(default=32, ge=4, le=512)
    """Points of a streamline."""
    num_waves: int = Field(default=16, ge=1)
    """Cosine waves along a streamline by which it differs from its exemplar; with fewer, differences are smoother."""
    width: int = Field(default=192, ge=8, multiple_of=8)
    """Numbers in each layer."""
    depth: int = Field(default=4, ge=1)
    """Blocks of two linear layers."""


class WaveDecoder(torch.nn.Module):
    """From what a network sees of streamlines to points in RAS mm: `Frame` in torch, kept with the weights."""

    mean_mm: torch.Tensor
    spread_mm: torch.Tensor
    scale_mm: torch.Tensor
    sizes: torch.Tensor
    basis: torch.Tensor

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        for name in ("mean_mm", "spread_mm", "scale_mm", "sizes"):
            self.register_buffer(name, torch.from_numpy(getattr(frame, name)))
        self.register_buffer("basis", torch.from_numpy(frame.basis), persistent=False)

    def changes_mm(self, seen: torch.Tensor, context: torch.Tensor, bundle: torch.Tensor) -> torch.Tensor:
        """How streamlines differ from their exemplars, (b, 3, p), of what is seen of them, (b, 3, c)."""
        scales = self.scale_mm[bundle] * context[:, -1, 0].exp()
        return (seen * self.sizes) @ self.basis * scales[:, None, None]

    def exemplar_mm(self, context: torch.Tensor, bundle: torch.Tensor) -> torch.Tensor:
        """The waves of exemplars as points (b, 3, p), of `Frame.context`, (b, 4 + 3 k, c)."""
        changes = (context[:, :3] * self.sizes) @ self.basis * self.spread_mm[bundle, None, None]
        return self.mean_mm[bundle].transpose(1, 2) + changes


class Denoiser(torch.nn.Module):
    """Answers for noisy streamlines of known times, bundles and neighbors; the answer begins at zero.

    Residual blocks, to each of which time and bundle are added, as in diffusion models of vectors: Kotelnikov et al.,
    "TabDDPM" (2023). A streamline is one vector of few waves, so there are no pieces to attend to.

    Args:
        config: its size.
        frame: of the bundles; buffers, so that a checkpoint has it.
        num_around: exemplars that are shown with each.
        volume: an image along the streamlines, of `read_volume`.

    Raises:
        ConfigError: there are more waves than points.
    """

    frequencies: torch.Tensor

    def __init__(
        self, config: DenoiserConfig, frame: Frame, num_around: int, volume: ImageSampler | None = None
    ) -> None:
        super().__init__()
        if config.num_waves > config.num_points:
            raise ConfigError(
                f"tractography: {config.num_points} points have no {config.num_waves} waves; give network.num_waves of "
                f"at most {config.num_points}"
            )
        self.config = config
        self.decoder = WaveDecoder(frame)
        self.volume = volume
        width = config.width
        num_inputs = config.num_waves * (7 + 3 * num_around)
        if volume is not None:
            num_inputs += config.num_points * volume.num_channels
        self.enter = torch.nn.Linear(num_inputs, width)
        half = width // 2
        self.register_buffer("frequencies", torch.exp(-math.log(_MOST_PERIOD) * torch.arange(half) / half))
        self.time = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.SiLU(), torch.nn.Linear(width, width))
        self.bundle = torch.nn.Embedding(len(frame.scale_mm), width)
        torch.nn.init.normal_(self.bundle.weight, std=0.02)
        self.blocks = torch.nn.ModuleList(_Block(width) for _ in range(config.depth))
        self.last_norm = torch.nn.LayerNorm(width)
        self.leave = torch.nn.Linear(width, 3 * config.num_waves)
        torch.nn.init.zeros_(self.leave.weight)
        torch.nn.init.zeros_(self.leave.bias)

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        """The answer (b, 3, c) for what `pack` has put together."""
        noisy, context, time, bundle = packed[:, :3], packed[:, 3:-2], packed[:, -2, 0], packed[:, -1, 0].long()
        features = [noisy.flatten(1), context.flatten(1)]
        if self.volume is not None:
            place = self.decoder
            points_mm = place.changes_mm(noisy.float(), context.float(), bundle) + place.exemplar_mm(
                context.float(), bundle
            )
            features.append(self.volume(points_mm).flatten(1))
        angles = time[:, None] * self.frequencies
        condition = self.time(torch.cat([angles.cos(), angles.sin()], dim=1)) + self.bundle(bundle)
        condition = torch.nn.functional.silu(condition)
        numbers = self.enter(torch.cat(features, dim=1))
        for block in self.blocks:
            numbers = block(numbers, condition)
        result: torch.Tensor = self.leave(self.last_norm(numbers)).reshape(noisy.shape)
        return result


def pack(noisy: torch.Tensor, context: torch.Tensor, time: torch.Tensor, bundle: torch.Tensor) -> torch.Tensor:
    """One tensor (b, 9 + 3 k, c) of all that the denoiser gets, as a training step takes it.

    Args:
        noisy: (b, c, 3), as `Frame.seen` has them.
        context: (b, 4 + 3 k, c), as `Frame.context` has it.
        time: (b), 0 to `NUM_TIMES` - 1.
        bundle: (b), index of each one's bundle; below 2**24, so that float32 has it.
    """
    shown = torch.stack([time.to(noisy.dtype), bundle.to(noisy.dtype)], dim=1)
    return torch.cat([noisy.transpose(1, 2), context, shown[..., None].expand(-1, -1, noisy.shape[1])], dim=1)


class _Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.widen = torch.nn.Linear(width, 2 * width)
        self.set_by = torch.nn.Linear(width, 2 * width)
        self.narrow = torch.nn.Linear(2 * width, width)

    def forward(self, numbers: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        wide = torch.nn.functional.silu(self.widen(self.norm(numbers)) + self.set_by(condition))
        result: torch.Tensor = numbers + self.narrow(wide)
        return result
