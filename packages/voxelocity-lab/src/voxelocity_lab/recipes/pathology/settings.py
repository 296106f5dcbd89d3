"""All settings of the recipe, by section."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from voxelocity.core.config import Config
from voxelocity.data.augment import AugmentConfig
from voxelocity.step import PrecisionConfig
from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.fit import FitConfig

SQUARE = 32
"""Pixels along each side of the squares that the network answers for."""


class PatchNetConfig(Config):
    """The classifier's size."""

    width: float = Field(default=0.25, ge=0.125, le=4.0)
    """Channels as a share of ResNet-18's. In ten minutes on two cores, a quarter sees ten times as many patches and
    reaches a higher AUC (docs/log)."""


class SlidePatchConfig(Config):
    """What the network sees, and when that is tumor."""

    side: int = Field(default=96, ge=SQUARE, multiple_of=SQUARE)
    """Pixels of a patch along each side, an odd number of squares of 32. The patch is tumor if a pixel of the one in
    its middle is, as in PatchCamelyon."""
    level: int = Field(default=0, ge=0)
    """Of the slides, in whose pixels sides are given; 0 is the finest."""
    tumor_share: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of the patches in training that are tumor."""

    @field_validator("side")
    @classmethod
    def _has_a_middle(cls, value: int) -> int:
        if value // SQUARE % 2 == 0:
            raise ValueError(
                f"{value} pixels are an even number of squares of {SQUARE}, of which none is in the middle"
            )
        return value


class TissueConfig(Config):
    """Which parts of a slide are looked at."""

    downsample: float = Field(default=16.0, ge=1.0)
    """Where tissue is looked for."""
    least_saturation: float = Field(default=0.05, ge=0.0, le=1.0)
    """Pixels with less, by HSV, are glass. A fixed number, as a slide or a part of it may have no glass."""
    least_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """Squares of a heat map with a smaller share of tissue are not looked at."""


class HeatConfig(Config):
    """How a slide is predicted."""

    is_dense: bool = False
    """Whether squares share what their patches have in common: quicker, but patches are seen with surroundings, not
    edges, which can tell tumor apart much worse."""
    batch_size: int = Field(default=64, ge=1)
    """Patches at once."""
    turns: Literal[1, 4, 8] = 1
    """Of each patch: unchanged, in four quarter turns, or also mirrored; their logits are averaged."""
    least_probability: float = Field(default=0.5, ge=0.0, le=1.0)
    """Of what is listed as a lesion."""
    lesion_micrometers: float = Field(default=75.0, ge=0.0)
    """Lesions nearer than this are one, as in CAMELYON16."""


class PathologyConfig(Config):
    """All settings of the recipe."""

    network: PatchNetConfig = PatchNetConfig()
    patch: SlidePatchConfig = SlidePatchConfig()
    tissue: TissueConfig = TissueConfig()
    heat: HeatConfig = HeatConfig()
    augment: AugmentConfig
    fit: FitConfig
    precision: PrecisionConfig
    folds: tuple[int, ...] | Literal["all"] = (0,)
    """Folds that are held out, one model each, as [0, 1] or all; [] for one model of everything."""
    cache_bytes: int = Field(default=2 * 2**30, ge=0)
    """Memory for blocks of slides."""


# The axes are depth, y and x.
_AUGMENT: dict[str, Any] = {
    "flip_probability": [0.0, 0.5, 0.5],
    "quarter_turn_probability": [0.75, 0.0, 0.0],
    "affine_probability": 0.5,
    "rotation_share": 1.0,
    "rotation_degrees": [45.0, 0.0, 0.0],
    "scale_share": 1.0,
    "scale_range": [0.9, 1.1],
    "effects": [
        {
            "factory": "voxelocity.data.augment.color:ColorAndStain",
            "probability": 0.8,
            # Half of the effect's own strengths, by which tiles of CAMELYON are separated worse (docs/log).
            "settings": {
                "stain": 0.1,
                "stain_shift": 0.015,
                "brightness": 0.075,
                "contrast": 0.075,
                "saturation": 0.1,
                "hue": 0.015,
            },
        }
    ],
}


def settings(call: Call) -> PathologyConfig:
    """The settings: what suits the device, changed by `call.overrides`.

    Raises:
        ConfigError: a key does not exist, or a value cannot be used.
    """
    on_gpu = call.device.type == "cuda"
    plain: dict[str, Any] = {
        "augment": AugmentConfig.only(**_AUGMENT).model_dump(mode="json"),
        "fit": {
            "time_budget_s": call.time_budget_s,
            "batch_size": 256 if on_gpu else 32,
            "optimizer": {
                "name": "adamw", "learning_rate": 1e-3, "weight_decay": 0.05, "average_decay": 0.99, "clip_norm": 1.0,
            },
            "schedule": {"decay": "cosine", "warmup_share": 0.05},
        },
        "precision": {
            "compute": "bfloat16" if call.fast_bfloat16 or on_gpu else "float32",
            "channels_last": False,
            "compile": "none",
        },
    }  # fmt: skip
    return call.parse_settings(PathologyConfig, plain, where="recipe pathology")
