"""The denoiser: a transformer on pieces of a streamline, led by its time, its bundle and the image along its points."""

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
    points_per_token: int = Field(default=8, ge=1)
    """Neighboring points that make one token; more are quicker, as streamlines are smooth."""
    width: int = Field(default=192, ge=8, multiple_of=8)
    """Numbers of a token."""
    depth: int = Field(default=4, ge=1)
    """Blocks of attention and two linear layers."""
    num_heads: int = Field(default=4, ge=1)
    """Heads of the attention."""


class Denoiser(torch.nn.Module):
    """Answers for noisy streamlines of known times and bundles; the answer begins at zero.

    Transformer blocks whose norms are set by time and bundle (adaLN-Zero), as in Peebles and Xie, "Scalable diffusion
    models with transformers" (2023).

    Args:
        config: its size.
        frame: of the bundles; buffers, so that a checkpoint has it.
        volume: an image along the streamlines, of `read_volume`.

    Raises:
        ConfigError: the points do not make whole tokens, or the width is not a multiple of the heads.
    """

    mean_mm: torch.Tensor
    spread_mm: torch.Tensor
    scale_mm: torch.Tensor
    frequencies: torch.Tensor

    def __init__(self, config: DenoiserConfig, frame: Frame, volume: ImageSampler | None = None) -> None:
        super().__init__()
        if config.num_points % config.points_per_token or config.width % config.num_heads:
            raise ConfigError(
                f"tractography: {config.num_points} points do not make tokens of {config.points_per_token}, or a width "
                f"of {config.width} is not divisible by {config.num_heads} heads; change network.points_per_token or "
                "network.num_heads"
            )
        self.config = config
        for name in ("mean_mm", "spread_mm", "scale_mm"):
            self.register_buffer(name, torch.from_numpy(getattr(frame, name)))
        self.volume = volume
        num_channels = 0 if volume is None else volume.num_channels
        per_token, width = config.points_per_token, config.width
        self.enter = torch.nn.Linear(per_token * (6 + num_channels), width)
        self.places = torch.nn.Parameter(0.02 * torch.randn(config.num_points // per_token, width))
        half = width // 2
        self.register_buffer("frequencies", torch.exp(-math.log(_MOST_PERIOD) * torch.arange(half) / half))
        self.time = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.SiLU(), torch.nn.Linear(width, width))
        self.bundle = torch.nn.Embedding(len(frame.scale_mm), width)
        torch.nn.init.normal_(self.bundle.weight, std=0.02)
        self.blocks = torch.nn.ModuleList(_Block(width, config.num_heads) for _ in range(config.depth))
        self.last_norm = torch.nn.LayerNorm(width, elementwise_affine=False)
        self.last_shift = torch.nn.Linear(width, 2 * width)
        self.leave = torch.nn.Linear(width, per_token * 3)
        for layer in (self.last_shift, self.leave):
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.zeros_(layer.bias)

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        """The answer (b, 3, p) for what `pack` has put together."""
        noisy, exemplar_mm, time, bundle = packed[:, :3], packed[:, 3:6], packed[:, 6, 0], packed[:, 7, 0].long()
        exemplar = (exemplar_mm - self.mean_mm[bundle].transpose(1, 2)) / self.spread_mm[bundle, None, None]
        features = [noisy, exemplar]
        if self.volume is not None:
            features.append(self.volume(noisy.float() * self.scale_mm[bundle, None, None] + exemplar_mm))
        angles = time[:, None] * self.frequencies
        condition = self.time(torch.cat([angles.cos(), angles.sin()], dim=1)) + self.bundle(bundle)
        condition = torch.nn.functional.silu(condition)
        num, per_token = len(packed), self.config.points_per_token
        features_bcp = torch.cat(features, dim=1)
        pieces = features_bcp.reshape(num, features_bcp.shape[1], -1, per_token).transpose(1, 2).flatten(2)
        tokens = self.enter(pieces) + self.places
        for block in self.blocks:
            tokens = block(tokens, condition)
        shift, scale = self.last_shift(condition)[:, None].chunk(2, dim=2)
        output = self.leave(self.last_norm(tokens) * (1.0 + scale) + shift)
        result: torch.Tensor = output.reshape(num, -1, 3, per_token).transpose(1, 2).flatten(2)
        return result


def pack(noisy: torch.Tensor, exemplar_mm: torch.Tensor, time: torch.Tensor, bundle: torch.Tensor) -> torch.Tensor:
    """One tensor (b, 8, p) of all that the denoiser gets, as a training step takes it.

    Args:
        noisy: (b, p, 3), as `Frame.seen` has them.
        exemplar_mm: (b, p, 3), in RAS mm.
        time: (b), 0 to `NUM_TIMES` - 1.
        bundle: (b), index of each one's bundle; below 2**24, so that float32 has it.
    """
    shown = torch.stack([time.to(noisy.dtype), bundle.to(noisy.dtype)], dim=1)
    parts = [noisy.transpose(1, 2), exemplar_mm.transpose(1, 2), shown[..., None].expand(-1, -1, noisy.shape[1])]
    return torch.cat(parts, dim=1)


class _Block(torch.nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.set_by = torch.nn.Linear(width, 6 * width)
        torch.nn.init.zeros_(self.set_by.weight)
        torch.nn.init.zeros_(self.set_by.bias)
        self.ask = torch.nn.Linear(width, 3 * width)
        self.answer = torch.nn.Linear(width, width)
        self.widen = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)

    def forward(self, tokens: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift_a, scale_a, gate_a, shift_b, scale_b, gate_b = self.set_by(condition)[:, None].chunk(6, dim=2)
        num, length, width = tokens.shape
        mixed = self.ask(self.norms[0](tokens) * (1.0 + scale_a) + shift_a)
        query, key, value = mixed.reshape(num, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        seen = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        tokens = tokens + gate_a * self.answer(seen.transpose(1, 2).reshape(num, length, width))
        wide = self.widen(self.norms[1](tokens) * (1.0 + scale_b) + shift_b)
        result: torch.Tensor = tokens + gate_b * self.narrow(torch.nn.functional.gelu(wide, approximate="tanh"))
        return result
