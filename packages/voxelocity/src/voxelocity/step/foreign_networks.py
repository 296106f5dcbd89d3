"""Networks that other toolkits described: classes of MONAI and nnU-Net's two, built from plain data to be trained.

Only the classes of `FOREIGN` are built, and nothing that a description names is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from voxelocity.core.region import Index3
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.plain import excerpt, shortened

if TYPE_CHECKING:
    import torch

    from voxelocity.step.network_config import NetworkConfig

CLASS, NNUNET = "class", "PlannedUNet"
"""The key of an architecture that names an entry of `FOREIGN`, and the entry of nnU-Net's two networks."""
# A network of the model zoo has a dozen arguments; numbers are widths and numbers of layers.
_MOST_ITEMS, _MOST_DEPTH, _MOST_NUMBER, _LONGEST_TEXT = 64, 4, 4096, 64
# Words in the names of arguments that say how many parts a network has, and the most of each.
_COUNTED = ("num_", "n_conv", "n_blocks", "depth", "blocks", "layers", "units")
_MOST_PARTS = 64
# Given by the code that builds the network, or without effect in this release of MONAI.
_NOT_ARGUMENTS = ("in_channels", "out_channels", "img_size")

Levels = tuple[tuple[int, ...], tuple[Index3, ...]]
"""The widths of the levels, finest first, and the strides between them."""


@dataclass(frozen=True, kw_only=True)
class ForeignClass:
    """A class of networks that may be trained from a description.

    Attributes:
        levels: of a description. Raises KeyError, TypeError or ValueError where it is not one of this class.
        build: the network from its description, the channels of the image, and the channels of the logits.
    """

    levels: Callable[[Mapping[str, Any]], Levels]
    build: Callable[[Mapping[str, Any], int, int], torch.nn.Module]


def build(config: NetworkConfig, num_channels: int, num_classes: int) -> torch.nn.Module:
    """The network that `config.architecture` describes, in training mode, its instance norms ours."""
    from voxelocity.step.fused_norm import use_own_norms

    arguments = dict(config.architecture)
    name = arguments.pop(CLASS)
    try:
        network = FOREIGN[name].build(arguments, num_channels, num_classes)
    except ConfigError:
        raise
    # MONAI's classes check few of their arguments; what the others break may raise anything.
    except Exception as error:
        if isinstance(error, RuntimeError) and "meta" in str(error):
            # Some read values while they are built, which tensors without memory do not have.
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"network: {name} cannot be made from network.architecture {shortened(arguments)} ({excerpt(said)})"
        ) from None
    use_own_norms(network)
    return network


def levels_of(architecture: Mapping[str, Any]) -> Levels:
    """The widths and strides of a described network.

    Raises:
        ConfigError: the class is not one of `FOREIGN`, or its description is none.
    """
    name = architecture.get(CLASS)
    if not isinstance(name, str) or name not in FOREIGN:
        raise ConfigError(
            f"network: network.architecture has the class {shortened(name)}; networks that can be trained from a "
            f"description are {', '.join(FOREIGN)}"
        )
    if not _is_plain(architecture):
        raise ConfigError(
            f"network: network.architecture {shortened(dict(architecture))} contains more than short strings, "
            "numbers up to "
            f"{_MOST_NUMBER}, and lists and mappings of these"
        )
    arguments = {key: value for key, value in architecture.items() if key != CLASS}
    try:
        widths, strides = FOREIGN[name].levels(arguments)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"network: network.architecture {shortened(arguments)} does not describe a {name} that can be trained "
            f"({excerpt(str(error))})"
        ) from None
    if not all(1 <= width <= _MOST_NUMBER for width in widths) or not _has_few_parts(arguments):
        raise ConfigError(
            f"network: network.architecture {shortened(arguments)} describes a {name} with levels of {widths} "
            f"channels; they have up to {_MOST_NUMBER}, and up to {_MOST_PARTS} layers each"
        )
    return widths, strides


def why_not(config: NetworkConfig) -> str:
    """Why these settings do not describe a network; "" if they do."""
    try:
        _, strides = levels_of(config.architecture)
    except ConfigError as error:
        return str(error).removeprefix("network: ")
    if strides != config.strides:
        return f"network.strides {config.strides} are not those of network.architecture, {strides}; remove one of them"
    return ""


def _is_plain(value: object, depth: int = 0) -> bool:
    if isinstance(value, Mapping):
        items = [*value.values()]
        if not all(isinstance(key, str) and len(key) <= _LONGEST_TEXT for key in value):
            return False
    elif isinstance(value, list | tuple):
        items = [*value]
    elif isinstance(value, str):
        return len(value) <= _LONGEST_TEXT
    else:
        return value is None or (isinstance(value, int | float) and abs(value) <= _MOST_NUMBER)
    is_small = len(items) <= _MOST_ITEMS and depth < _MOST_DEPTH
    return is_small and all(_is_plain(item, depth + 1) for item in items)


def _has_few_parts(arguments: Mapping[str, Any]) -> bool:
    """Whether what says how many layers or blocks a network has is small; building them all would take forever."""
    for key, value in arguments.items():
        counts = value if isinstance(value, list | tuple) else [value]
        is_counted = any(word in key for word in _COUNTED)
        if is_counted and any(isinstance(count, int | float) and count > _MOST_PARTS for count in counts):
            return False
    return True


def _stride(value: Any) -> Index3:
    x, y, z = (int(n) for n in ([value] * 3 if isinstance(value, int) else value))
    return (x, y, z)


def _halvings(count: int) -> tuple[Index3, ...]:
    if not 1 <= count < 10:
        raise ValueError(f"it has {count + 1} levels")
    return ((2, 2, 2),) * count


def _doubled(width: int, count: int) -> Levels:
    """Widths that double with each of this many halvings."""
    return tuple(int(width) * 2**level for level in range(count + 1)), _halvings(count)


def _listed(widths: str, strides: str, *, skipped: int = 0) -> Callable[[Mapping[str, Any]], Levels]:
    """Levels that two arguments list; the first strides are not between levels."""

    def levels(arguments: Mapping[str, Any]) -> Levels:
        between = tuple(_stride(value) for value in arguments[strides])[skipped:]
        given = arguments.get(widths) or [min(2 ** (5 + level), 320) for level in range(len(between) + 1)]
        found = tuple(int(width) for width in given)
        if len(found) != len(between) + 1:
            raise ValueError(f"{widths} has {len(found)} entries and {strides} {len(between) + skipped}")
        return found, between

    return levels


def _residual(default_width: int) -> Callable[[Mapping[str, Any]], Levels]:
    """Levels of MONAI's networks of residual blocks."""

    def levels(arguments: Mapping[str, Any]) -> Levels:
        if arguments.get("resolution") is not None:
            raise ValueError("its resolution decides its strides")
        blocks = arguments.get("blocks_down", (1, 2, 2, 4))
        return _doubled(arguments.get("init_filters", default_width), len(blocks) - 1)

    return levels


def _basic(arguments: Mapping[str, Any]) -> Levels:
    features = arguments.get("features", (32, 32, 64, 128, 256, 32))
    return tuple(int(width) for width in features[:5]), _halvings(4)


def _planned(arguments: Mapping[str, Any]) -> Levels:
    from voxelocity.step.nnunet_network import Architecture

    plan = Architecture.parse(arguments, where="network.architecture")
    if set(plan.strides[0]) != {1}:
        raise ValueError(f"its first level has the stride {plan.strides[0]}")
    return plan.features_per_stage, tuple(map(_stride, plan.strides[1:]))


def _build_planned(arguments: Mapping[str, Any], num_channels: int, num_classes: int) -> torch.nn.Module:
    from torch import nn

    from voxelocity.step.nnunet_network import Architecture, PlannedUNet

    plan = Architecture.parse(arguments, where="network.architecture")
    network = PlannedUNet(plan, num_channels=num_channels, num_classes=num_classes)
    # The loss of a training here has the finest logits alone; DDP waits for the gradients of every weight.
    for level in range(len(network.decoder.seg_layers) - 1):
        network.decoder.seg_layers[level] = nn.Identity()
    network.apply(_initialize)
    return network


def _initialize(module: torch.nn.Module) -> None:
    """As nnU-Net does before a training."""
    from torch import nn

    if isinstance(module, nn.Conv3d | nn.ConvTranspose3d):
        nn.init.kaiming_normal_(module.weight, a=1e-2)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


@dataclass(frozen=True, kw_only=True)
class _MonaiClass:
    """Builds a class of MONAI by its name.

    Attributes:
        name: of the class.
        trained: arguments that a training here needs to be so; without deep supervision, logits are one tensor.
    """

    name: str
    trained: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, arguments: Mapping[str, Any], num_channels: int, num_classes: int) -> torch.nn.Module:
        import monai.networks.nets

        kind = getattr(monai.networks.nets, self.name)
        known = inspect.signature(kind).parameters
        given = {key: value for key, value in arguments.items() if key not in _NOT_ARGUMENTS} | dict(self.trained)
        if given.get("spatial_dims", 3) != 3:
            raise ConfigError(f"network: network.architecture has spatial_dims {given['spatial_dims']}; give 3")
        if unknown := sorted(key for key in given if key not in known):
            raise ConfigError(
                f"network: MONAI's {self.name} has no argument {', '.join(unknown)}; remove it from "
                "network.architecture, or install the release of MONAI that has it"
            )
        network: torch.nn.Module = kind(**given, in_channels=num_channels, out_channels=num_classes)
        return network


FOREIGN: Mapping[str, ForeignClass] = {
    NNUNET: ForeignClass(levels=_planned, build=_build_planned),
    "UNet": ForeignClass(levels=_listed("channels", "strides"), build=_MonaiClass(name="UNet")),
    "AttentionUnet": ForeignClass(levels=_listed("channels", "strides"), build=_MonaiClass(name="AttentionUnet")),
    "BasicUNet": ForeignClass(levels=_basic, build=_MonaiClass(name="BasicUNet")),
    "DynUNet": ForeignClass(
        levels=_listed("filters", "strides", skipped=1),
        build=_MonaiClass(name="DynUNet", trained={"deep_supervision": False}),
    ),
    "SegResNet": ForeignClass(levels=_residual(8), build=_MonaiClass(name="SegResNet")),
    "SegResNetDS": ForeignClass(levels=_residual(32), build=_MonaiClass(name="SegResNetDS", trained={"dsdepth": 1})),
    "SwinUNETR": ForeignClass(
        levels=lambda arguments: _doubled(arguments.get("feature_size", 24), 5), build=_MonaiClass(name="SwinUNETR")
    ),
    "VNet": ForeignClass(levels=lambda arguments: _doubled(16, 4), build=_MonaiClass(name="VNet")),
}
"""By the class that a description names: nnU-Net's plans describe the first, bundles of MONAI the others."""
