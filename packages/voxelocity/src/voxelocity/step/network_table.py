"""The networks by name: who defines each, how it is built, which keys it reads, what the rules know of it.

Importing it imports no torch; a network's classes are imported when it is built. Only this module, `dints` and
`foreign_networks` know the arguments of MONAI's constructors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from voxelocity.core.config import find_factory
from voxelocity.core.region import Index3
from voxelocity.step import dints, foreign_networks
from voxelocity_observe.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from voxelocity.step.network_config import NetworkConfig

NetworkName = Literal["unet", "segresnet", "dynunet", "swinunetr", "dints", "foreign", "custom"]


@dataclass(frozen=True, kw_only=True)
class NetworkKind:
    """A network that a plan may name.

    Attributes:
        title: as its authors write it.
        words: what it is, for documentation.
        paper: who described it.
        source: who defines its class.
        keys: of `NetworkConfig` that it reads, besides the strides and the first width.
        build: the network from its settings, the channels of the image, and the classes of the logits.
        why_not: why these settings do not make a valid one, in words; "" if they do.
        kept_share: activations that it keeps for the backward pass, relative to DynUNet at equal widths, counted as in
            tests/planning/test_memory_rule.py; nothing is known of a user's own.
        residual_share: the same with residual units, relative to without.
        takes_half: whether images enter nothing but convolutions, so that they may arrive in half precision.
        has_own_norms: whether its instance norms are ours, which a GPU computes with our kernel in channels_last_3d.
        is_faster_channels_last: whether a CPU computes it faster in channels_last_3d, in float32 (docs/log).
    """

    title: str
    words: str
    paper: str
    source: Literal["ours", "monai", "user"]
    keys: tuple[str, ...]
    build: Callable[[NetworkConfig, int, int], torch.nn.Module]
    why_not: Callable[[NetworkConfig], str] = lambda config: ""
    kept_share: float
    residual_share: float = 1.0
    takes_half: bool = False
    has_own_norms: bool = False
    is_faster_channels_last: bool = False


def _build_unet(config: NetworkConfig, num_channels: int, num_classes: int) -> torch.nn.Module:
    from voxelocity.step.unet import UNet

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

    from voxelocity.step.fused_norm import use_own_norms

    levels = len(config.widths)
    network: torch.nn.Module = SegResNet(
        spatial_dims=3,
        init_filters=config.widths[0],
        in_channels=num_channels,
        out_channels=num_classes,
        blocks_down=(1, *[2] * (levels - 2), 4),
        blocks_up=(1,) * (levels - 1),
        dropout_prob=config.dropout or None,
        norm=config.norm.upper(),
    )
    use_own_norms(network)
    return network


def _build_dynunet(config: NetworkConfig, num_channels: int, num_classes: int) -> torch.nn.Module:
    from voxelocity.step.dynunet import DynUNet

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


def _build_swinunetr(config: NetworkConfig, num_channels: int, num_classes: int) -> torch.nn.Module:
    from monai.networks.nets import SwinUNETR

    network: torch.nn.Module = SwinUNETR(
        in_channels=num_channels,
        out_channels=num_classes,
        feature_size=config.widths[0],
        norm_name=config.norm,
        drop_rate=config.dropout,
    )
    return network


def _build_custom(config: NetworkConfig, num_channels: int, num_classes: int) -> torch.nn.Module:
    import torch

    factory = find_factory(config.factory, key="network.factory")
    sizes = {"num_channels": num_channels, "num_classes": num_classes}
    try:
        inspect.signature(factory).bind(**sizes)
    except TypeError as error:
        raise ConfigError(
            f"network: network.factory {config.factory!r} cannot be called with num_channels and num_classes ({error})"
        ) from None
    network = factory(**sizes)
    if not isinstance(network, torch.nn.Module):
        raise ConfigError(
            f"network: network.factory {config.factory!r} returned a {type(network).__name__}, not a torch.nn.Module"
        )
    network.register_forward_hook(partial(_check_outputs, config.factory, num_classes))
    return network


def _check_outputs(factory: str, num_classes: int, module: torch.nn.Module, arguments: Any, logits: Any) -> None:
    """Of the user's own network. Reads shapes only, so the device never waits."""
    import torch

    image = arguments[0]
    wanted = (len(image), num_classes, *image.shape[2:])
    if not isinstance(logits, torch.Tensor) or logits.shape != wanted:
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
        raise ConfigError(
            f"network: the module of network.factory {factory!r} returns {found} for an image of shape "
            f"{tuple(image.shape)}; the data set needs logits of shape {wanted}: {num_classes} outputs, one for each "
            "class, background included, or for each region. Build it with the num_classes that the factory gets"
        )


def _why_not_dynunet(config: NetworkConfig) -> str:
    if len(config.widths) >= 3:
        return ""
    return f"DynUNet has at least 3 levels, not {len(config.widths)}; add widths and strides, or use unet"


def _why_not_segresnet(config: NetworkConfig) -> str:
    if _halves_every_axis(config):
        return ""
    return "SegResNet halves every axis between levels; use unet or dynunet for other strides"


def _why_not_swinunetr(config: NetworkConfig) -> str:
    if _halves_every_axis(config) and len(config.strides) == 5 and config.widths[0] % 12 == 0:
        return ""
    return (
        "SwinUNETR halves every axis five times and its first width is a multiple of 12; set "
        "network.strides=[[2,2,2],[2,2,2],[2,2,2],[2,2,2],[2,2,2]] and "
        "network.widths=[24,48,96,192,384,768], and a patch of multiples of 32"
    )


def _halves_every_axis(config: NetworkConfig) -> bool:
    return all(stride == (2, 2, 2) for stride in config.strides)


NETWORKS: Mapping[NetworkName, NetworkKind] = {
    "unet": NetworkKind(
        title="UNet",
        words="MONAI's UNet, our implementation",
        paper="Kerfoot et al., 10.1007/978-3-030-12029-0_40",
        source="ours",
        keys=("widths", "norm", "num_res_units", "dropout"),
        build=_build_unet,
        # Its finest level is computed once. This covers up to four residual units.
        kept_share=0.5,
        takes_half=True,
        has_own_norms=True,
    ),
    "segresnet": NetworkKind(
        title="SegResNet",
        words="MONAI's SegResNet, with our norms",
        paper="Myronenko, 10.1007/978-3-030-11726-9_28",
        source="monai",
        keys=("norm", "dropout"),
        build=_build_segresnet,
        why_not=_why_not_segresnet,
        kept_share=1.25,
        takes_half=True,
        has_own_norms=True,
    ),
    "dynunet": NetworkKind(
        title="DynUNet",
        words="nnU-Net's network, our implementation",
        paper="Isensee et al., 10.1038/s41592-020-01008-z",
        source="ours",
        keys=("widths", "stem_stride", "norm", "num_res_units", "dropout"),
        build=_build_dynunet,
        why_not=_why_not_dynunet,
        kept_share=1.0,
        residual_share=1.3,
        takes_half=True,
        has_own_norms=True,
        is_faster_channels_last=True,
    ),
    "swinunetr": NetworkKind(
        title="SwinUNETR",
        words="MONAI's SwinUNETR",
        paper="Hatamizadeh et al., 10.1007/978-3-031-08999-2_22",
        source="monai",
        keys=("norm", "dropout"),
        build=_build_swinunetr,
        why_not=_why_not_swinunetr,
        kept_share=2.0,
    ),
    "dints": NetworkKind(
        title="DiNTS",
        words="MONAI's DiNTS, with an architecture found by a search",
        paper="He et al., 10.1109/CVPR46437.2021.00578",
        source="monai",
        keys=("paths", "norm"),
        build=dints.build,
        why_not=dints.why_not,
        kept_share=2.0,
    ),
    "foreign": NetworkKind(
        title="a network of another toolkit",
        words="the network of an nnU-Net model or a MONAI bundle, used by `--from`",
        paper="its toolkit",
        source="monai",
        keys=("architecture",),
        build=foreign_networks.build,
        why_not=foreign_networks.why_not,
        kept_share=2.0,
        has_own_norms=True,
    ),
    "custom": NetworkKind(
        title="a network of your own",
        words="your own module, built by `factory`",
        paper="you",
        source="user",
        keys=("factory",),
        build=_build_custom,
        kept_share=2.0,
    ),
}
"""By name. A test fails if documentation lacks one."""
