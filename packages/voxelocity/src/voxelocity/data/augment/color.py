"""Random changes of color and stain for slides of tissue, as one `Effect`: both in one pass over the pixels.

The stain changes where it is linear: in optical density, -log(intensity), separated into hematoxylin, eosin and a
residue (Ruifrok and Johnston 2001; Tellez et al. 2018). Brightness, contrast, saturation and hue then are one 3x3
matrix and an offset; hue turns in YIQ, as a matrix, where other libraries convert each pixel to HSV.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.native import has_loops
from voxelocity_observe.core.errors import ConfigError

_Float32 = npt.NDArray[np.float32]

# The optical densities of each stain in red, green and blue; each row has length 1.
_STAINS = np.array([[0.650, 0.704, 0.286], [0.072, 0.990, 0.105], [0.268, 0.570, 0.776]])
_STAINS /= np.linalg.norm(_STAINS, axis=1, keepdims=True)
STAINS_APART = np.linalg.inv(_STAINS)
"""Rows of optical densities of red, green and blue times this are the amounts of hematoxylin, eosin and a residue."""
_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_FROM_YIQ = np.linalg.inv(_TO_YIQ)
_GRAY = _TO_YIQ[0].astype(np.float32)
# Intensities below have the optical density of this one.
_LEAST = np.float32(1.0 / 255.0)


class ColorChange(NamedTuple):
    """One patch's change, of rows of red, green and blue.

    Attributes:
        density: (3, 4) float32: the matrix for optical densities, and what is added.
        color: (3, 3) float32: the matrix for intensities.
        contrast: factor of the distance to the patch's mean gray.
        is_stained: whether the densities change.
    """

    density: _Float32
    color: _Float32
    contrast: np.float32
    is_stained: bool


class ColorAndStain:
    """Changes patches of three channels, red, green and blue from 0 to 1, and keeps them within these limits.

    Args:
        stain: largest share by which the amount of a stain differs.
        stain_shift: largest optical density that is added to a stain.
        brightness: largest share by which all intensities differ.
        contrast: likewise for the distances to the mean gray.
        saturation: likewise for the distances to gray.
        hue: largest turn, as a share of a full one.
    """

    def __init__(
        self,
        *,
        stain: float = 0.2,
        stain_shift: float = 0.03,
        brightness: float = 0.15,
        contrast: float = 0.15,
        saturation: float = 0.2,
        hue: float = 0.03,
    ) -> None:
        self._stain, self._stain_shift = stain, stain_shift
        self._brightness, self._contrast, self._saturation, self._hue = brightness, contrast, saturation, hue

    def draw(self, rng: np.random.Generator, num_channels: int) -> ColorChange:
        """The change of one patch.

        Raises:
            ConfigError: the patch does not have three channels.
        """
        if num_channels != 3:
            raise ConfigError(
                "data: data.augment.effects: ColorAndStain changes red, green and blue, but images have "
                f"{num_channels} channel(s); remove this effect"
            )
        amounts = 1.0 + self._stain * rng.uniform(-1.0, 1.0, 3)
        added = self._stain_shift * rng.uniform(-1.0, 1.0, 3)
        brightness, contrast, saturation = (
            1.0 + most * rng.uniform(-1.0, 1.0) for most in (self._brightness, self._contrast, self._saturation)
        )
        angle = 2.0 * math.pi * self._hue * rng.uniform(-1.0, 1.0)
        # Densities are rows times stains: apart, scaled, and together again.
        density = (STAINS_APART * amounts @ _STAINS).T
        cos, sin = saturation * math.cos(angle), saturation * math.sin(angle)
        turn = np.array([[1.0, 0.0, 0.0], [0.0, cos, -sin], [0.0, sin, cos]])
        return ColorChange(
            density=np.column_stack([density, added @ _STAINS]).astype(np.float32),
            color=(brightness * _FROM_YIQ @ turn @ _TO_YIQ).astype(np.float32),
            contrast=np.float32(contrast),
            is_stained=self._stain > 0.0 or self._stain_shift > 0.0,
        )

    def apply(self, image: _Float32, label: npt.NDArray[np.uint8], drawn: ColorChange) -> None:
        """Changes image (3, x, y, z) in place; the label stays."""
        if has_loops():
            # They load the library, which other commands do not need.
            from voxelocity.data.augment.native_loops import change_color

            flat, contrast, least = image.reshape(3, -1), float(drawn.contrast), float(_LEAST)
            change_color(flat, drawn.density, drawn.color, _GRAY, contrast, least, is_stained=drawn.is_stained)
            return
        self.apply_on_device(torch.from_numpy(image), torch.from_numpy(label), drawn)

    def apply_on_device(self, image: torch.Tensor, label: torch.Tensor, drawn: ColorChange) -> None:
        """The same on any device, in plain torch; it is also what the compiled loop is compared with."""
        density, color = (torch.from_numpy(part).to(image.device) for part in (drawn.density, drawn.color))
        flat = image.view(3, -1)
        flat.clamp_(float(_LEAST), 1.0)
        if drawn.is_stained:
            flat.log_().neg_()
            flat = torch.addmm(density[:, 3:], density[:, :3], flat).neg_().exp_().clamp_(0.0, 1.0)
        colored = color @ flat
        gray = torch.from_numpy(_GRAY).to(image.device) @ colored
        mean = gray.mean()
        image.view(3, -1).copy_((mean + (colored - mean) * float(drawn.contrast)).clamp_(0.0, 1.0))
