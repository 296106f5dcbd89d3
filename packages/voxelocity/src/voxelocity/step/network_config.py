"""Which network: its name, its levels and its parts, as data. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from voxelocity.core.config import Config
from voxelocity.core.region import Index3
from voxelocity.step.network_table import NETWORKS, NetworkName

Norm = Literal["instance", "batch"]

_KEYS_OF_FEW = {
    "stem_stride": "has a stem",
    "paths": "has paths",
    "architecture": "is described by an architecture",
}
"""Keys that a network refuses unless it reads them, and what networks with the key have."""


class NetworkConfig(Config):
    """A segmentation network. `widths` and `strides` describe it level by level, finest first."""

    name: NetworkName
    """A row of `NETWORKS`, which docs/plan.md shows: UNet, SegResNet, SwinUNETR and DiNTS as in MONAI; DynUNet, the
    network of nnU-Net; one of another toolkit, described by `architecture`; or your own, built by `factory`."""
    factory: str = ""
    """custom: the function or class that builds the network, as package.module:name. It is called with num_channels and
    num_classes; the module it returns maps images (b, num_channels, x, y, z) to logits (b, num_classes, x, y, z)."""
    widths: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field(min_length=2, max_length=10)
    """Feature channels of each level. SegResNet, SwinUNETR and DiNTS use only the first, which they double, and the
    number of levels; your own network does not use them, but they serve to estimate the memory of a step."""
    strides: tuple[Index3, ...]
    """Down-sampling (x, y, z) between one level and the next; one entry fewer than `widths`."""
    stem_stride: Index3 = (1, 1, 1)
    """DynUNet: 2 along an axis halves the resolution before the first level and restores it in the logits after the
    last one. A step then takes about half as long; (1, 1, 1) is nnU-Net's network."""
    paths: tuple[tuple[Annotated[int, Field(ge=0, le=5)], ...], ...] = ()
    """DiNTS: the architecture that a search found, one row per block, one number per path in MONAI's order: 0 for a
    path that is left out, else 1 + its operation."""
    architecture: Mapping[str, Any] = {}
    """foreign: the network as the plans of nnU-Net or a MONAI bundle describe it: its class, and its arguments as plain
    values. Taken from the model that a run starts from."""
    norm: Norm = "instance"
    """Normalization after each convolution."""
    num_res_units: int = Field(default=0, ge=0, le=4)
    """Residual units per level (UNet); DynUNet uses residual blocks if it is not 0."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of features dropped while training."""

    @model_validator(mode="after")
    def _levels_agree(self) -> Self:
        if len(self.strides) != len(self.widths) - 1:
            raise ValueError(f"{len(self.widths)} widths need {len(self.widths) - 1} strides, not {len(self.strides)}")
        if any(s not in (1, 2) for stride in (*self.strides, self.stem_stride) for s in stride):
            raise ValueError(f"strides are 1 or 2 on each axis, not {self.strides} with stem_stride {self.stem_stride}")
        return self

    @model_validator(mode="after")
    def _suits_its_kind(self) -> Self:
        kind = NETWORKS[self.name]
        for key, has in _KEYS_OF_FEW.items():
            names = [name for name, other in NETWORKS.items() if key in other.keys]
            if self.name not in names and getattr(self, key) != type(self).model_fields[key].default:
                title = NETWORKS[names[0]].title
                raise ValueError(f"only {title} {has}, not {self.name}; remove network.{key} or use {names[0]}")
        if ("factory" in kind.keys) != bool(self.factory):
            raise ValueError(
                f"a network of your own needs the name custom and a factory such as my_networks:build, not name "
                f"{self.name} with factory {self.factory!r}"
            )
        if why_not := kind.why_not(self):
            raise ValueError(why_not)
        return self

    @property
    def divisor(self) -> Index3:
        """A patch must be a multiple of this many voxels along (x, y, z)."""
        x, y, z = self.stem_stride
        for stride in self.strides:
            x, y, z = x * stride[0], y * stride[1], z * stride[2]
        return (x, y, z)
