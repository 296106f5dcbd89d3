"""All settings of the recipe, by section."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from voxelocity.core.config import Config
from voxelocity.step import PrecisionConfig
from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.fit import FitConfig
from voxelocity_lab.recipes.tractography.bundles import SplitBy
from voxelocity_lab.recipes.tractography.diffusion import NUM_TIMES, Prediction, Sampler
from voxelocity_lab.recipes.tractography.model import DenoiserConfig
from voxelocity_observe.core.errors import ConfigError


class SplitConfig(Config):
    """What the model does not see."""

    by: SplitBy = "streamline"
    """Hold out a share of each bundle, whole bundles, or whole subjects (folders)."""
    held_out: float = Field(default=0.2, ge=0.0, lt=1.0)
    """The share held out."""


class ExemplarConfig(Config):
    """The real streamlines that generated ones are variations of."""

    num_nearest: int = Field(default=4, ge=1)
    """A streamline is learned as a variation of one of this many that lie nearest to it in its bundle."""
    num_per_bundle: int = Field(default=1024, ge=1)
    """Streamlines of each bundle that the model keeps as exemplars, at most."""
    num_around: int = Field(default=5, ge=0)
    """Neighbors of an exemplar that the network sees with it: how far they lie is how far a variation may."""


class ShapeLossConfig(Config):
    """Losses of the shape, in addition to that of the noise; each is weighted less, the more noise there is."""

    flip: float = Field(default=0.0, ge=0.0)
    """Weight of the distance in mm to the true streamline, run in the nearer direction (MDF)."""
    bend: float = Field(default=0.0, ge=0.0)
    """Weight of the squared distance in mm of its second differences to the true ones, so that it is as smooth."""
    mask: float = Field(default=0.0, ge=0.0)
    """Weight of the distance in mm by which points lie outside the mask."""


class SampleConfig(Config):
    """How streamlines are made."""

    sampler: Sampler = "dpm++"
    """DDIM, or DPM-Solver++ of the second order."""
    num_steps: int = Field(default=20, ge=1, le=NUM_TIMES)
    """Calls of the network for a streamline."""
    batch_size: int = Field(default=1024, ge=1)
    """Streamlines made at once; halved where the memory is too small."""
    spread: float = Field(default=0.7, gt=0.0, le=2.0)
    """Standard deviation of the noise that streamlines begin as. With less of it they lie nearer to their exemplars."""
    num_per_bundle: int = Field(default=0, ge=0)
    """Streamlines of each bundle; 0 for as many as were held out, and at least one."""
    format: Literal["trx", "trk", "tck"] = "trx"
    """Of the file; TRX alone keeps the bundles apart."""


class TractographyConfig(Config):
    """All settings of the recipe."""

    network: DenoiserConfig = DenoiserConfig()
    exemplar: ExemplarConfig = ExemplarConfig()
    fit: FitConfig
    precision: PrecisionConfig
    prediction: Prediction = "v"
    """What the network answers: the velocity v, or the clean streamline x0."""
    loss: ShapeLossConfig = ShapeLossConfig()
    split: SplitConfig = SplitConfig()
    sample: SampleConfig = SampleConfig()
    image: str = ""
    """A NIfTI image, such as T1 or FA, that the network sees along the points; streamlines must lie in its space."""
    direction: str = ""
    """The main direction of diffusion, (x, y, z, 3) along voxel axes as FSL writes it, which it sees as well."""
    mask: str = ""
    """A NIfTI image whose voxels other than 0 streamlines should not leave."""

    @property
    def image_path(self) -> Path | None:
        """The image in whose space the streamlines are."""
        name = self.image or self.direction or self.mask
        return Path(name) if name else None


def settings(call: Call) -> TractographyConfig:
    """The recipe's settings with the values of the user.

    Raises:
        ConfigError: a key is not known, a value is out of range, or a loss lacks its mask.
    """
    compiles = "default" if call.device.type == "cuda" else "none"
    values: dict[str, Any] = {
        "fit": {
            "batch_size": 256,
            "time_budget_s": call.time_budget_s,
            "optimizer": {
                "name": "adamw",
                "learning_rate": 1e-3,
                "weight_decay": 0.01,
                "second_momentum": 0.99,
                "clip_norm": 1.0,
                "average_decay": 0.999,
            },
            "schedule": {"decay": "cosine", "warmup_share": 0.02},
        },
        "precision": {"compute": "bfloat16" if call.fast_bfloat16 else "float32", "compile": compiles},
    }
    config = call.parse_settings(TractographyConfig, values, where="tractography")
    if config.loss.mask and not config.mask:
        raise ConfigError("tractography: loss.mask needs a mask; give it with --set mask=MASK.nii.gz")
    return config
