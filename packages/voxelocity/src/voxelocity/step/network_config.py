"""Which network: its name, its levels and its parts, as data. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from voxelocity.core.config import Config
from voxelocity.core.region import Index3

Norm = Literal["instance", "batch"]


class NetworkConfig(Config):
    """A segmentation network. `widths` and `strides` describe it level by level, finest first."""

    name: Literal["unet", "segresnet", "dynunet", "swinunetr", "dints", "custom"]
    """UNet, SegResNet, SwinUNETR and DiNTS as in MONAI; DynUNet, the network of nnU-Net; or your own, built by
    `factory`."""
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
        if self.name == "dynunet" and len(self.widths) < 3:
            raise ValueError(
                f"DynUNet has at least 3 levels, not {len(self.widths)}; add widths and strides, or use unet"
            )
        if any(s not in (1, 2) for stride in (*self.strides, self.stem_stride) for s in stride):
            raise ValueError(f"strides are 1 or 2 on each axis, not {self.strides} with stem_stride {self.stem_stride}")
        if self.stem_stride != (1, 1, 1) and self.name != "dynunet":
            raise ValueError(f"only DynUNet has a stem, not {self.name}; remove network.stem_stride or use dynunet")
        if self.name == "segresnet" and any(stride != (2, 2, 2) for stride in self.strides):
            raise ValueError("SegResNet halves every axis between levels; use unet or dynunet for other strides")
        if self.name == "swinunetr" and (self.strides != ((2, 2, 2),) * 5 or self.widths[0] % 12):
            raise ValueError(
                "SwinUNETR halves every axis five times and its first width is a multiple of 12; set "
                "network.strides=[[2,2,2],[2,2,2],[2,2,2],[2,2,2],[2,2,2]] and "
                "network.widths=[24,48,96,192,384,768], and a patch of multiples of 32"
            )
        if self.name == "dints" and any(stride != (2, 2, 2) for stride in self.strides):
            raise ValueError("DiNTS halves every axis between levels; use dynunet for other strides")
        if self.name == "dints" and (why_not := _why_not_paths(self.paths, len(self.strides))):
            raise ValueError(why_not)
        if self.name != "dints" and self.paths:
            raise ValueError(f"only DiNTS has paths, not {self.name}; remove network.paths or use dints")
        if (self.name == "custom") != bool(self.factory):
            raise ValueError(
                f"a network of your own has the name custom and a factory such as my_networks:build, not name "
                f"{self.name} with factory {self.factory!r}"
            )
        return self

    @property
    def divisor(self) -> Index3:
        """A patch must be a multiple of this many voxels along (x, y, z)."""
        x, y, z = self.stem_stride
        for stride in self.strides:
            x, y, z = x * stride[0], y * stride[1], z * stride[2]
        return (x, y, z)


def _why_not_paths(paths: Sequence[Sequence[int]], num_resolutions: int) -> str:
    """Why these paths do not make a valid DiNTS, in words; "" if they do.

    A block connects n resolutions by 3n - 2 paths, each of which keeps, halves or doubles a resolution.
    """
    count = 3 * num_resolutions - 2
    if not paths or any(len(row) != count for row in paths):
        return (
            f"DiNTS with {num_resolutions} strides needs network.paths, the architecture that MONAI's search found, "
            f"with {count} numbers in each row; docs/plan.md shows how to make them from its file"
        )
    nodes = arriving_paths(paths)
    for number, row in enumerate(paths):
        begins = {_begin(path) for path, code in enumerate(row) if code}
        if not begins or not all(nodes[number, begin] for begin in begins):
            return (
                f"row {number + 1} of network.paths has no path, or one that begins at a resolution where no path of "
                "the row before ends; leave it out, or take the whole architecture of one search"
            )
    return ""


def arriving_paths(paths: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    """(blocks + 1, resolutions), 1 where a path arrives: MONAI's `node_a`."""
    kept = np.array(paths) > 0
    nodes = np.zeros((len(kept) + 1, (kept.shape[1] + 2) // 3), np.int64)
    nodes[0, [_begin(path) for path in np.flatnonzero(kept[0]).tolist()]] = 1
    for number, row in enumerate(kept):
        nodes[number + 1, (np.flatnonzero(row) + 1) // 3] = 1
    return nodes


def _begin(path: int) -> int:
    """The resolution, finest first, at which a path begins, in MONAI's order; it ends at `(path + 1) // 3`."""
    return (path + 1) // 3 - 1 + (path + 1) % 3
