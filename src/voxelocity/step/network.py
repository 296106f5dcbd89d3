"""Networks by name: ours, MONAI's (only this module knows their constructor arguments), or your own."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator

from voxelocity.core.config import Config, find_factory
from voxelocity.core.errors import ConfigError
from voxelocity.core.region import Index3
from voxelocity.step.dynunet import DynUNet
from voxelocity.step.unet import UNet

Norm = Literal["instance", "batch"]

# MONAI's DiNTS takes other widths as a multiple of this first one.
_DINTS_WIDTH = 32


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
            raise ValueError(f"strides are 1 or 2 on each axis, not {self.strides} after {self.stem_stride}")
        if self.stem_stride != (1, 1, 1) and self.name != "dynunet":
            raise ValueError(f"only DynUNet has a stem; leave network.stem_stride out of {self.name}")
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
            raise ValueError(f"only DiNTS has paths; leave network.paths out of {self.name}")
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


def build_network(config: NetworkConfig, *, num_channels: int, num_classes: int, seed: int) -> torch.nn.Module:
    """The network with weights initialized from `seed`; torch's global generator stays unchanged.

    Args:
        config: which network.
        num_channels: of the image, (b, num_channels, x, y, z).
        num_classes: of the output logits, background included.
        seed: of the initial weights.

    Raises:
        ConfigError: the user's own network cannot be built.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _BUILDERS[config.name](config, num_channels, num_classes)


def _build_unet(config: NetworkConfig, num_channels: int, num_classes: int) -> torch.nn.Module:
    return UNet(
        num_channels=num_channels,
        num_classes=num_classes,
        widths=config.widths,
        strides=config.strides,
        norm=config.norm,
        dropout=config.dropout,
        num_res_units=config.num_res_units,
    )


def _build_segresnet(config: NetworkConfig, num_channels: int, num_classes: int) -> torch.nn.Module:
    from monai.networks.nets import SegResNet

    levels = len(config.widths)
    return _module(
        SegResNet(
            spatial_dims=3,
            init_filters=config.widths[0],
            in_channels=num_channels,
            out_channels=num_classes,
            blocks_down=(1, *(2 for _ in range(levels - 2)), 4)[:levels],
            blocks_up=tuple(1 for _ in range(levels - 1)),
            dropout_prob=config.dropout or None,
            norm=config.norm.upper(),
        )
    )


def _build_swinunetr(config: NetworkConfig, num_channels: int, num_classes: int) -> torch.nn.Module:
    from monai.networks.nets import SwinUNETR

    return _module(
        SwinUNETR(
            in_channels=num_channels,
            out_channels=num_classes,
            feature_size=config.widths[0],
            norm_name=config.norm,
            drop_rate=config.dropout,
        )
    )


def _build_dints(config: NetworkConfig, num_channels: int, num_classes: int) -> torch.nn.Module:
    """The network whose architecture MONAI's search finds (He et al. 2021, 10.1109/CVPR46437.2021.00578).

    Its finest resolution is half that of the image; `widths[0]` is doubled at each coarser one.
    """
    from monai.networks.nets import DiNTS, TopologyInstance

    codes = np.array(config.paths)
    norm_name = (config.norm.upper(), {"affine": True})
    # MONAI prints a recommendation for the size of patches.
    with contextlib.redirect_stdout(io.StringIO()):
        space = TopologyInstance(
            arch_code=[(codes > 0).astype(int), np.maximum(codes - 1, 0)],
            channel_mul=config.widths[0] / _DINTS_WIDTH,
            num_blocks=len(codes),
            num_depths=len(config.strides),
            norm_name=norm_name,
        )
    nodes = torch.from_numpy(_nodes(config.paths))
    return _module(DiNTS(space, num_channels, num_classes, norm_name=norm_name, node_a=nodes))


def _build_custom(config: NetworkConfig, num_channels: int, num_classes: int) -> torch.nn.Module:
    factory = find_factory(config.factory, key="network.factory")
    network = factory(num_channels=num_channels, num_classes=num_classes)
    if not isinstance(network, torch.nn.Module):
        raise ConfigError(
            f"network: network.factory {config.factory!r} returned a {type(network).__name__}, not a torch.nn.Module"
        )
    return network


def _build_dynunet(config: NetworkConfig, num_channels: int, num_classes: int) -> torch.nn.Module:
    strides: list[Index3] = [(1, 1, 1), *config.strides]
    # A 3-wide kernel along an axis that is not down-sampled while others are would mix anisotropic distances.
    kernels = [(3, 3, 3) if set(stride) == {1} else _kernel(stride) for stride in strides]
    return DynUNet(
        num_channels=num_channels,
        num_classes=num_classes,
        kernels=kernels,
        strides=strides,
        widths=config.widths,
        norm=config.norm,
        dropout=config.dropout,
        is_residual=config.num_res_units > 0,
        stem_stride=config.stem_stride,
    )


def _kernel(stride: Index3) -> Index3:
    x, y, z = (3 if s > 1 else 1 for s in stride)
    return (x, y, z)


def _module(network: Any) -> torch.nn.Module:
    assert isinstance(network, torch.nn.Module)
    return network


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
    nodes = _nodes(paths)
    for number, row in enumerate(paths):
        begins = {_begin(path) for path, code in enumerate(row) if code}
        if not begins or not all(nodes[number, begin] for begin in begins):
            return (
                f"row {number + 1} of network.paths has no path, or one that begins at a resolution where no path of "
                "the row before ends; leave it out, or take the whole architecture of one search"
            )
    return ""


def _nodes(paths: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
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


_BUILDERS = {
    "unet": _build_unet,
    "segresnet": _build_segresnet,
    "dynunet": _build_dynunet,
    "swinunetr": _build_swinunetr,
    "dints": _build_dints,
    "custom": _build_custom,
}
