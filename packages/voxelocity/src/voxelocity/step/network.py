"""Networks by name: ours, MONAI's (only this module knows their constructor arguments), or your own."""

from __future__ import annotations

import contextlib
import inspect
import io
from functools import partial
from typing import Any

import numpy as np
import torch

from voxelocity.core.config import find_factory
from voxelocity.core.region import Index3
from voxelocity.step.dynunet import DynUNet
from voxelocity.step.fused_norm import use_own_norms
from voxelocity.step.network_config import NetworkConfig, arriving_paths
from voxelocity.step.unet import UNet
from voxelocity_observe.core.errors import ConfigError

# MONAI's DiNTS takes other widths as a multiple of this first one.
_DINTS_WIDTH = 32


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


def build_blank(config: NetworkConfig, *, num_channels: int, num_classes: int) -> torch.nn.Module:
    """The network on the device "meta", whose tensors have no values; draws no numbers. Arguments as `build_network`.

    Not for a user's own network, which may need values.
    """
    assert config.name != "custom", "a user's own network is built only to be used"
    with torch.device("meta"):
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
    nodes = torch.from_numpy(arriving_paths(config.paths))
    network: torch.nn.Module = DiNTS(space, num_channels, num_classes, norm_name=norm_name, node_a=nodes)
    return network


def _build_custom(config: NetworkConfig, num_channels: int, num_classes: int) -> torch.nn.Module:
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
    image = arguments[0]
    wanted = (len(image), num_classes, *image.shape[2:])
    if not isinstance(logits, torch.Tensor) or logits.shape != wanted:
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
        raise ConfigError(
            f"network: the module of network.factory {factory!r} returns {found} for an image of shape "
            f"{tuple(image.shape)}; the data set needs logits of shape {wanted}: {num_classes} outputs, one for each "
            "class, background included, or for each region. Build it with the num_classes that the factory gets"
        )


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


_BUILDERS = {
    "unet": _build_unet,
    "segresnet": _build_segresnet,
    "dynunet": _build_dynunet,
    "swinunetr": _build_swinunetr,
    "dints": _build_dints,
    "custom": _build_custom,
}
