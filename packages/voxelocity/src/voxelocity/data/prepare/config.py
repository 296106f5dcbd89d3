"""How scans are prepared. Every value is explicit here; `plan` decides the automatic ones."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from voxelocity.core.config import Config

SpacingMm = Annotated[float, Field(gt=0.0, le=1000.0)]


class IntensityConfig(Config):
    """How intensities are brought to a common scale."""

    mode: Literal["zscore", "window", "none"] = "zscore"
    """"zscore": each channel of each case to mean 0, deviation 1; "window": clipped, then one scale for all cases."""
    nonzero_only: bool = False
    """zscore: take mean and deviation over voxels that are not zero, and leave the others zero."""
    low: float = 0.0
    """window: smaller values become this one. Required in this mode."""
    high: float = 1.0
    """window: larger values become this one. Required in this mode."""
    mean: float | Literal["low"] = "low"
    """window: the value that becomes 0; "low" is the lower end of the window."""
    std: Annotated[float, Field(gt=0.0)] | Literal["width"] = "width"
    """window: the step that becomes 1; "width" is the width of the window, which scales it to 0..1."""

    @model_validator(mode="after")
    def _check_window(self) -> Self:
        if self.mode != "window":
            return self
        missing = {"low", "high"} - self.model_fields_set
        if missing:
            raise ValueError(f"mode 'window' needs {' and '.join(sorted(missing))}")
        if not self.low < self.high:
            raise ValueError(
                f"the window's low {self.low} must be smaller than its high {self.high}; set both, or mode 'zscore'"
            )
        return self


class PrepareConfig(Config):
    """The deterministic preparation of a scan, in the order of its steps."""

    orientation: Literal["RAS", "keep"] = "RAS"
    """"RAS" reorders axes so that x, y, z point right, anterior and superior as nearly as possible; "keep" does not."""
    crop: Literal["none", "nonzero"] = "none"
    """"nonzero" keeps the box that holds every voxel that is not zero in some channel."""
    margin_voxel: int = Field(default=0, ge=0, le=1000)
    """Voxels kept around that box on each side, as far as the scan reaches."""
    intensity: IntensityConfig = IntensityConfig()
    """How intensities are brought to a common scale; before resampling, as in nnU-Net."""
    spacing_mm: tuple[SpacingMm, SpacingMm, SpacingMm] | Literal["keep"] = "keep"
    """Voxel spacing along (x, y, z) after resampling; "keep" leaves each scan its own."""
    engine: Literal["auto", "numpy"] = "auto"
    """What resamples: compiled loops where there are some, or always the slower NumPy; they differ by rounding."""
    dtype: Literal["smallest", "float32", "float16"] = "smallest"
    """Type of the prepared image. "smallest": integers of one or two bytes unchanged if they span up to 65,000, else
    int16 with a separate scale for each channel, off by at most 1/65,000 of the channel's range; float16 or float32 if
    outliers make that more than 1 % of the interquartile range."""
    foreground_per_class: int = Field(default=10_000, ge=1, le=10_000_000)
    """Voxels stored of each class as patch centers, evenly chosen if there are more."""
