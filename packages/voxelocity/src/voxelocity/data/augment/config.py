"""Which random changes are made, how often and how strong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator

from voxelocity.core.config import Config

_Probability = Annotated[float, Field(ge=0.0, le=1.0)]
_Degrees = Annotated[float, Field(ge=0.0, le=180.0)]
_Voxels = Annotated[float, Field(ge=0.0, le=4096.0)]
_Positive = Annotated[float, Field(gt=0.0, le=100.0)]
_NonNegative = Annotated[float, Field(ge=0.0, le=100.0)]
_Zoom = Annotated[float, Field(gt=0.0, le=1.0)]
EngineName = Literal["auto", "native", "triton", "torch"]


class EffectConfig(Config):
    """An effect of your own, and how often it is applied."""

    factory: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    """Class of the effect as package.module:name; see docs/augmentation.md for its two methods."""
    probability: _Probability = 0.1
    """Probability that a patch is changed."""
    settings: Mapping[str, Any] = Field(default_factory=dict)
    """Arguments that the class is called with."""


class AugmentConfig(Config):
    """Random changes of patches, listed in the order in which they are made.

    Defaults are those of nnU-Net v2's training and assume intensities of mean 0 and deviation 1.
    """

    enabled: bool = True
    """False leaves every patch unchanged, whatever the fields below say."""
    engine: EngineName = "auto"
    """What computes them: "native" (C) on a CPU, "triton" on a CUDA device, "torch" (slow) anywhere; "auto" the
    fastest."""
    ramp_epochs: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Epochs over which each probability below, except those of flips and quarter turns, rises from 0 to its value:
    while cases are new, they need no changes. 0: full probabilities in every epoch."""
    flip_probability: tuple[_Probability, _Probability, _Probability] = (0.5, 0.5, 0.5)
    """Probability of a flip along each of (x, y, z)."""
    swap_pairs: tuple[tuple[str, str], ...] = ()
    """Pairs of class names that swap in a patch whose left and right are flipped, as in
    [[left kidney, right kidney]]. The x axis of scans in RAS orientation runs from left to right."""
    quarter_turn_probability: tuple[_Probability, _Probability, _Probability] = (0.0, 0.0, 0.0)
    """Probability of one, two or three quarter turns about each of (x, y, z), voxel onto voxel."""
    affine_probability: _Probability = 0.36
    """Probability that a patch is rotated, scaled, sheared or shifted by the settings below."""
    rotation_share: _Probability = 0.56
    """Of these patches, the share that is rotated."""
    rotation_degrees: tuple[_Degrees, _Degrees, _Degrees] = (30.0, 30.0, 30.0)
    """Largest rotation about each of (x, y, z), either way."""
    scale_share: _Probability = 0.56
    """Of these patches, the share that is scaled."""
    scale_range: tuple[_Positive, _Positive] = (0.7, 1.4)
    """Smallest and largest zoom; above 1 structures become larger."""
    shear: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Largest shear of one axis by another, either way."""
    translate_voxel: tuple[_Voxels, _Voxels, _Voxels] = (0.0, 0.0, 0.0)
    """Largest shift along each of (x, y, z), either way."""
    elastic_probability: _Probability = 0.0
    """Probability of a smooth deformation."""
    elastic_spacing_voxel: Annotated[float, Field(ge=4.0, le=4096.0)] = 24.0
    """Spacing of the control points; a cubic B-spline interpolates between them."""
    elastic_voxel: _Voxels = 6.0
    """Largest shift of a control point along each axis, either way."""
    label_interpolation: Literal["nearest", "vote"] = "nearest"
    """Label of a warped patch: of the "nearest" voxel, or by "vote" of the eight neighbors with linear weights."""
    bias_probability: _Probability = 0.0
    """Probability of a smooth change of brightness over the patch, as from an MR coil."""
    bias_strength: _NonNegative = 0.1
    """Largest coefficient, either way, of the field's logarithm in Legendre polynomials of degree up to 3."""
    noise_probability: _Probability = 0.1
    """Probability of Gaussian noise."""
    noise_std_range: tuple[_NonNegative, _NonNegative] = (0.0, 0.3)
    """Smallest and largest standard deviation of the noise; one for all channels."""
    blur_probability: _Probability = 0.2
    """Probability of a Gaussian blur; each channel then has an even chance."""
    blur_sigma_range: tuple[_NonNegative, Annotated[float, Field(ge=0.0, le=8.0)]] = (0.5, 1.0)
    """Smallest and largest standard deviation of the blur in voxels; drawn per channel and axis."""
    intensity_scale_probability: _Probability = 0.15
    """Probability that intensities are multiplied."""
    intensity_scale_range: tuple[_NonNegative, _NonNegative] = (0.75, 1.25)
    """Smallest and largest factor; drawn per channel."""
    intensity_shift_probability: _Probability = 0.0
    """Probability that a number is added to intensities."""
    intensity_shift_range: tuple[float, float] = (-0.1, 0.1)
    """Smallest and largest of these numbers; drawn per channel."""
    contrast_probability: _Probability = 0.15
    """Probability that intensities are spread about their mean, then clipped to their previous range."""
    contrast_range: tuple[_NonNegative, _NonNegative] = (0.75, 1.25)
    """Smallest and largest spread; drawn per channel."""
    low_resolution_probability: _Probability = 0.25
    """Probability of a low resolution: fewer voxels, enlarged again; each channel then has an even chance."""
    low_resolution_range: tuple[_Zoom, _Zoom] = (0.5, 1.0)
    """Smallest and largest zoom of the coarser grid; drawn per channel, the same along all axes."""
    gamma_inverted_probability: _Probability = 0.1
    """Probability of a gamma change from the upper end of intensities; `gamma_range` applies to both."""
    gamma_probability: _Probability = 0.3
    """Probability of a gamma change from the lower end."""
    gamma_range: tuple[_Positive, _Positive] = (0.7, 1.5)
    """Smallest and largest exponent; drawn per channel."""
    gamma_keeps: Literal["moments", "range"] = "moments"
    """What a channel keeps under a gamma change: its mean and deviation, or its minimum and maximum."""
    cutout_probability: _Probability = 0.0
    """Probability that boxes are set to a number; the label stays."""
    cutout_boxes: Annotated[int, Field(ge=1, le=64)] = 1
    """Boxes in such a patch; they may overlap."""
    cutout_size_range: tuple[_Zoom, _Zoom] = (0.1, 0.4)
    """Smallest and largest side of a box, as a share of the patch's; drawn for each axis. The center is any voxel."""
    cutout_value: float = 0.0
    """Intensity in these boxes; 0 is the mean of standardized scans."""
    effects: tuple[EffectConfig, ...] = ()
    """Effects of your own, applied last and in this order."""

    @classmethod
    def only(cls, **fields: Any) -> Self:
        """A configuration with only these changes: every probability that is not given is 0."""
        none: dict[str, Any] = {name: 0.0 for name in cls.model_fields if name.endswith("_probability")}
        none |= dict.fromkeys(("flip_probability", "quarter_turn_probability"), (0.0, 0.0, 0.0))
        return cls(**(none | fields))

    def at(self, epoch: int) -> Self:
        """The changes of one epoch, numbered from 0."""
        if epoch >= self.ramp_epochs:
            return self
        share = epoch / self.ramp_epochs
        rising = {name for name in type(self).model_fields if name.endswith("_probability")}
        rising -= {"flip_probability", "quarter_turn_probability"}
        changes: dict[str, Any] = {name: share * getattr(self, name) for name in rising}
        changes["effects"] = tuple(
            effect.model_copy(update={"probability": share * effect.probability}) for effect in self.effects
        )
        return self.model_copy(update=changes)

    @field_validator("engine", mode="before")
    @classmethod
    def _rename(cls, value: Any) -> Any:
        # Runs of earlier versions have the name of the library that compiled the loops.
        return "native" if value == "numba" else value

    @field_validator("*")
    @classmethod
    def _check_order(cls, value: Any, info: ValidationInfo) -> Any:
        if str(info.field_name).endswith("_range") and value[0] > value[1]:
            raise ValueError(f"the range begins at {value[0]} and ends below it, at {value[1]}; swap them")
        return value
