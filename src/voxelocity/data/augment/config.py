"""Which random changes are made, how often and how strong."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, field_validator

from voxelocity.core.config import Config
from voxelocity.core.region import Index3

_Probability = Annotated[float, Field(ge=0.0, le=1.0)]
_Degrees = Annotated[float, Field(ge=0.0, le=180.0)]
_Voxels = Annotated[float, Field(ge=0.0, le=4096.0)]
_Positive = Annotated[float, Field(gt=0.0, le=100.0)]
_NonNegative = Annotated[float, Field(ge=0.0, le=100.0)]


class AugmentConfig(Config):
    """Random changes of patches. Strengths follow nnU-Net v2 and suppose intensities of mean 0 and deviation 1."""

    enabled: bool = True
    """False leaves every patch as it is, whatever stands below."""
    flip_probability: tuple[_Probability, _Probability, _Probability] = (0.5, 0.5, 0.5)
    """Probability of a flip along each of (x, y, z)."""
    affine_probability: _Probability = 0.3
    """Probability that a patch is rotated, scaled and shifted."""
    rotation_degrees: tuple[_Degrees, _Degrees, _Degrees] = (30.0, 30.0, 30.0)
    """Largest rotation about each of (x, y, z), either way."""
    scale_range: tuple[_Positive, _Positive] = (0.7, 1.4)
    """Smallest and largest zoom; above 1 things become larger."""
    translate_voxel: tuple[_Voxels, _Voxels, _Voxels] = (0.0, 0.0, 0.0)
    """Largest shift along each of (x, y, z), either way."""
    margin_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    """Context read around a patch on each side, as a share of its edge, for turned and shrunk patches to look into."""
    gamma_probability: _Probability = 0.3
    """Probability that intensities are bent, each channel keeping its own minimum and maximum."""
    gamma_range: tuple[_Positive, _Positive] = (0.7, 1.5)
    """Smallest and largest exponent; drawn per channel."""
    intensity_scale_probability: _Probability = 0.15
    """Probability that intensities are multiplied."""
    intensity_scale_range: tuple[_NonNegative, _NonNegative] = (0.75, 1.25)
    """Smallest and largest factor; drawn per channel."""
    intensity_shift_probability: _Probability = 0.15
    """Probability that a number is added to intensities."""
    intensity_shift_range: tuple[float, float] = (-0.1, 0.1)
    """Smallest and largest of these numbers; drawn per channel."""
    noise_probability: _Probability = 0.1
    """Probability of Gaussian noise."""
    noise_std_range: tuple[_NonNegative, _NonNegative] = (0.0, 0.3)
    """Smallest and largest standard deviation of the noise; one for all channels."""

    def margin_voxel(self, shape_voxel: Index3) -> Index3:
        """Voxels of context on each side of a patch along (x, y, z); none where no patch is ever turned."""
        if not self.enabled or self.affine_probability == 0.0:
            return (0, 0, 0)
        x, y, z = (math.ceil(n * self.margin_share) for n in shape_voxel)
        return (x, y, z)

    @field_validator("scale_range", "gamma_range", "intensity_scale_range", "intensity_shift_range", "noise_std_range")
    @classmethod
    def _check_order(cls, ends: tuple[float, float]) -> tuple[float, float]:
        if ends[0] > ends[1]:
            raise ValueError(f"the range begins at {ends[0]} and ends below it, at {ends[1]}; swap them")
        return ends
