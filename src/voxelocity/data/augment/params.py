"""The random numbers of an augmentation, drawn apart from their use: plain data that any implementation can be fed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt

from voxelocity.core.batch import Draw
from voxelocity.core.rng import generator
from voxelocity.core.volume import Spacing
from voxelocity.data.augment.config import AugmentConfig

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class AugmentParams:
    """What is done to each of b samples with c channels, in this order.

    1. Affine: the voxel at offset `o` from the patch's centre takes the value found at offset `matrix @ o +
       offset_voxel`, the image linearly interpolated, the label from the nearest voxel. Beyond the patch and
       its margin both continue with their outermost voxels, so that image and label still belong together there.
    2. Flip of the result.
    3. Gamma: `((v - low) / span) ** gamma * span + low`, with `low` and `span` of the channel after step 2.
    4. `v * scale + shift`.
    5. `v + noise_std * n`, with `n` standard normal from torch's generator of the device, seeded by `noise_seed`.

    Attributes:
        has_affine: (b,) bool; where False, `matrix` is the identity and `offset_voxel` 0.
        matrix: (b, 3, 3) float32, on axes (x, y, z).
        offset_voxel: (b, 3) float32.
        flips: (b, 3) bool, along (x, y, z).
        gamma: (b, c) float32, 1 for none.
        scale: (b, c) float32, 1 for none.
        shift: (b, c) float32, 0 for none.
        noise_std: (b,) float32, 0 for none.
        noise_seed: (b,) int64.
    """

    has_affine: npt.NDArray[np.bool_]
    matrix: Floats
    offset_voxel: Floats
    flips: npt.NDArray[np.bool_]
    gamma: Floats
    scale: Floats
    shift: Floats
    noise_std: Floats
    noise_seed: npt.NDArray[np.int64]

    @property
    def num_samples(self) -> int:
        return len(self.flips)

    @property
    def num_channels(self) -> int:
        return int(self.gamma.shape[1])

    @classmethod
    def identity(cls, num_samples: int, num_channels: int) -> Self:
        """Parameters that change nothing."""
        per_channel = (num_samples, num_channels)
        return cls(
            has_affine=np.zeros(num_samples, dtype=np.bool_),
            matrix=np.tile(np.eye(3, dtype=np.float32), (num_samples, 1, 1)),
            offset_voxel=np.zeros((num_samples, 3), dtype=np.float32),
            flips=np.zeros((num_samples, 3), dtype=np.bool_),
            gamma=np.ones(per_channel, dtype=np.float32),
            scale=np.ones(per_channel, dtype=np.float32),
            shift=np.zeros(per_channel, dtype=np.float32),
            noise_std=np.zeros(num_samples, dtype=np.float32),
            noise_seed=np.zeros(num_samples, dtype=np.int64),
        )

    def rows(self, indices: Sequence[int]) -> Self:
        """The parameters of some samples, in the order given."""
        return type(self)(**{field.name: getattr(self, field.name)[list(indices)] for field in fields(self)})


def sample(
    draws: Sequence[Draw],
    *,
    seed: int,
    num_channels: int,
    config: AugmentConfig,
    spacing_mm: Spacing | None = None,
) -> AugmentParams:
    """Parameters for these draws. Those of one draw depend on (seed, epoch, case, draw) and the arguments alone.

    Args:
        draws: one per sample of the batch.
        seed: of the run.
        num_channels: c.
        config: how often and how strong; where it is not enabled, the result changes nothing.
        spacing_mm: of the patches along (x, y, z). Rotations are then rigid in millimetres; without it voxels count as
            cubes.
    """
    params = AugmentParams.identity(len(draws), num_channels)
    if config.enabled:
        spacing = np.ones(3) if spacing_mm is None else np.array(spacing_mm, dtype=np.float64)
        for row, draw in enumerate(draws):
            rng = generator(seed, stage="augment", epoch=draw.epoch, case=draw.case, draw=draw.draw)
            _fill_row(params, row, rng, config, spacing)
    return params


def _fill_row(
    params: AugmentParams, row: int, rng: np.random.Generator, config: AugmentConfig, spacing: npt.NDArray[np.float64]
) -> None:
    # Every number is drawn, used or not, so that changing one probability leaves the other changes as they were.
    num_channels = params.num_channels
    params.flips[row] = rng.random(3) < config.flip_probability
    has_affine = rng.random() < config.affine_probability
    angles = np.deg2rad(rng.uniform(-1.0, 1.0, size=3) * config.rotation_degrees)
    zoom = rng.uniform(*config.scale_range)
    offset_voxel = rng.uniform(-1.0, 1.0, size=3) * config.translate_voxel
    if has_affine:
        params.has_affine[row] = True
        params.matrix[row] = (_rotation(angles).T / zoom) * spacing[None, :] / spacing[:, None]
        params.offset_voxel[row] = offset_voxel
    has_noise, noise_std = rng.random() < config.noise_probability, rng.uniform(*config.noise_std_range)
    params.noise_std[row] = noise_std if has_noise else 0.0
    params.noise_seed[row] = rng.integers(2**63 - 1)
    # Last, as how many numbers these take depends on the channels.
    for target, probability, ends in (
        (params.gamma, config.gamma_probability, config.gamma_range),
        (params.scale, config.intensity_scale_probability, config.intensity_scale_range),
        (params.shift, config.intensity_shift_probability, config.intensity_shift_range),
    ):
        is_used, values = rng.random() < probability, rng.uniform(*ends, size=num_channels)
        if is_used:
            target[row] = values


def _rotation(angles_rad: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The rotation about x, then y, then z, each from the next axis towards the one after it."""
    result = np.eye(3)
    for axis, angle in enumerate(angles_rad):
        first, second = (axis + 1) % 3, (axis + 2) % 3
        turn = np.eye(3)
        turn[first, first] = turn[second, second] = np.cos(angle)
        turn[first, second], turn[second, first] = -np.sin(angle), np.sin(angle)
        result = turn @ result
    return result
