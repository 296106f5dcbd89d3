"""The network of a MONAI bundle: a class of MONAI from a list, with its arguments, and its weights.

The window engine takes (b, c, x, y, z) and wants one logit a class; `ShapedNetwork` makes that of what slices, channels
and masks a bundle has.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from voxelocity.core.region import Index3
from voxelocity.infer.models.bundle_config import Component
from voxelocity.infer.models.foreign_files import network_with, read_checkpoint
from voxelocity.infer.models.kinds import METADATA
from voxelocity.infer.runtimes.contract import in_one_line
from voxelocity.step.fused_norm import use_own_norms
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.plain import shortened


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A network of MONAI that returns logits in evaluation mode.

    Attributes:
        outputs: the argument with the number of its output channels.
        dropped: arguments of earlier releases of MONAI, which changed no result.
        fixed: arguments that would otherwise load something.
        nested: arguments that are objects of MONAI themselves, and the class of each.
        is_faster_channels_last: whether a CPU computes it faster in channels_last_3d, in float32 (docs/log).
        takes_empty: whether it takes a batch of no windows, for which it makes nothing as large as one.
    """

    outputs: str = "out_channels"
    dropped: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    nested: Mapping[str, str] = field(default_factory=dict)
    is_faster_channels_last: bool = False
    takes_empty: bool = True


_NETWORKS: Mapping[str, _Kind] = {
    **dict.fromkeys(("AttentionUnet", "BasicUNet", "DynUNet", "MedNeXt", "SegResNetDS", "UNETR", "VNet"), _Kind()),
    **dict.fromkeys(("SegResNet", "UNet"), _Kind(is_faster_channels_last=True)),
    "SwinUNETR": _Kind(dropped=("img_size",), takes_empty=False),
    "FlexibleUNet": _Kind(fixed={"pretrained": False}),
    "DiNTS": _Kind(outputs="num_classes", nested={"dints_space": "TopologyInstance"}),
    "vista3d132": _Kind(takes_empty=False),
    # A part of DiNTS. It asks on which device its architecture lies; ours is read by the CPU.
    "TopologyInstance": _Kind(outputs="", dropped=("device",)),
}  # fmt: skip
_PARTS = ("TopologyInstance",)
PROMPTED = "vista3d132"
"""A network that is asked for classes by their numbers."""
# Words in the names of arguments that say how many layers or blocks a network has.
_COUNTED = ("num_", "depth", "blocks", "layers", "units")
_MOST_COUNTED = 256
# Of 105 classes, 0.95 of the CPU time was left in place of 0.8 (docs/log).
_MOST_LAST = 16


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """How the output of a network becomes what the window engine wants.

    Attributes:
        slice_axis: axis of (x, y, z) across which a 2-D network sees planes; None for a 3-D network.
        channels: that are used, in order; empty for all.
        has_background: whether a class of logit 0 comes before the channels.
        asked: numbers of classes that VISTA3D is asked for; a class of logit 0 comes before them.
    """

    slice_axis: int | None = None
    channels: tuple[int, ...] = ()
    has_background: bool = False
    asked: tuple[int, ...] = ()


class ShapedNetwork(torch.nn.Module):
    """A network of MONAI behind the window engine's interface: (b, c, x, y, z) to logits (b, k, x, y, z).

    Args:
        network: of MONAI.
        shaping: what is changed.
    """

    def __init__(self, network: torch.nn.Module, shaping: Shaping) -> None:
        super().__init__()
        self.network = network
        self._axis = None if shaping.slice_axis is None else 2 + shaping.slice_axis
        self._channels, self._has_background = list(shaping.channels), shaping.has_background
        self._asked = list(shaping.asked)

    def forward(self, windows_bcxyz: torch.Tensor) -> torch.Tensor:
        if self._asked:
            return self._of_classes(windows_bcxyz)
        logits: torch.Tensor = self.network(windows_bcxyz if self._axis is None else windows_bcxyz.squeeze(self._axis))
        if self._axis is not None:
            logits = logits.unsqueeze(self._axis)
        if self._channels:
            logits = torch.stack([logits[:, channel] for channel in self._channels], dim=1)
        if self._has_background:
            logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
        return logits

    def _of_classes(self, windows_bcxyz: torch.Tensor) -> torch.Tensor:
        """What VISTA3D's encoder and class head say; its own forward empties the memory of the GPU at each window."""
        network: Any = self.network
        head, features = network.class_head, network.image_encoder(windows_bcxyz, with_point=False, with_label=True)[1]
        features_bcxyz: torch.Tensor = head.image_post_mapping(features)
        numbers = torch.tensor(self._asked, device=features_bcxyz.device).unsqueeze(1)
        weights_kc: torch.Tensor = head.mlp(head.class_embeddings(numbers)).squeeze(1)
        # Without weights, the logit of the background is 0.
        weights_kc = torch.nn.functional.pad(weights_kc, (0, 0, 1, 0))
        logits = weights_kc @ features_bcxyz.flatten(2)
        return logits.reshape(*logits.shape[:2], *windows_bcxyz.shape[2:])


def build_network(
    described: Component, path: Path, window_cxyz: Sequence[int], *, num_channels: int, shaping: Shaping
) -> torch.nn.Module:
    """The network that a bundle describes, with the weights in a file, in evaluation mode.

    Args:
        described: `network_def`.
        path: of the weights.
        window_cxyz: shape of a window; 0 for the length of a volume.
        num_channels: that the network returns, as the bundle's metadata says.
        shaping: what is changed of its input and output.

    Raises:
        InputError: the network is not known, cannot be made, or has other weights.
    """
    if described.name not in _NETWORKS or described.name in _PARTS:
        known = ", ".join(name for name in _NETWORKS if name not in _PARTS)
        raise described.error(f"is not among the supported networks of MONAI: {known}")
    build, arguments = _plan(described)
    outputs = arguments.get(_NETWORKS[described.name].outputs, num_channels)
    if outputs != num_channels:
        raise described.error(f"has {shortened(outputs)} out_channels, but {METADATA} describes {num_channels}")
    weights = _weights(path)
    most = max(_MOST_COUNTED, len(weights))
    _check_counts(described, arguments, most=most)
    if shaping != Shaping():
        weights = {f"network.{name}": tensor for name, tensor in weights.items()}
    batch_bcxyz = () if 0 in window_cxyz else (1, *window_cxyz)
    load = partial(
        network_with,
        partial(_shaped, build, shaping),
        weights,
        path,
        hint="take both files from one version of the bundle",
    )
    try:
        if not batch_bcxyz or not _NETWORKS[described.name].takes_empty:
            network = load(batch_bcxyz=batch_bcxyz)
        else:
            network = load()
            network = network if _takes_empty(network, window_cxyz) else load(batch_bcxyz=batch_bcxyz)
    except InputError:
        raise
    # MONAI's classes check few of their arguments; what the others break may raise anything.
    except Exception as error:
        raise described.error(f"cannot be made from {shortened(arguments)} ({in_one_line(error)})") from None
    # Torch's own copy in channels_last_3d, or lose digits.
    use_own_norms(network)
    return network


def _takes_empty(network: torch.nn.Module, window_cxyz: Sequence[int]) -> bool:
    """Whether a network returns no windows of this shape for none.

    Shapes without memory say the same, but torch imports its compiler for them: half a CPU second.
    """
    try:
        with torch.no_grad(), _WithoutInstanceNorms():
            found = network(torch.empty((0, *window_cxyz)))
    # Whatever its layers raise for sizes that do not fit: the check without memory says it in words.
    except Exception:
        return False
    return isinstance(found, torch.Tensor) and found.shape[2:] == torch.Size(window_cxyz[1:])


class _WithoutInstanceNorms(TorchFunctionMode):
    """Within the block, instance norms return what they get: torch's refuse a batch of nothing."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is torch.nn.functional.instance_norm and math.prod(args[0].shape[2:]) > 1:
            return args[0]
        return function(*args, **(kwargs or {}))


def is_faster_channels_last(described: Component, num_classes: int) -> bool:
    """Whether a CPU predicts faster with the network of a bundle in channels_last_3d.

    Logits of many classes then cost more to blend than convolutions gain.
    """
    kind = _NETWORKS.get(described.name)
    return kind is not None and kind.is_faster_channels_last and num_classes <= _MOST_LAST


def why_not_whole(described: Component, network: torch.nn.Module, num_channels: int) -> Callable[[Index3], str]:
    """A function that says why a network cannot take an image of a shape, or "" if it can; it computes shapes alone."""
    takes_empty = _NETWORKS[described.name].takes_empty

    @cache
    def without_weights() -> torch.nn.Module:
        tensors = [*network.parameters(), *network.buffers()]
        return copy.deepcopy(network, {id(tensor): torch.empty_like(tensor, device="meta") for tensor in tensors})

    @lru_cache(maxsize=64)
    def why_not(shape: Index3) -> str:
        if takes_empty and _takes_empty(network, (num_channels, *shape)):
            return ""
        blank = without_weights()
        try:
            with torch.no_grad():
                found = tuple(blank(torch.empty((1, num_channels, *shape), device="meta")).shape[2:])
        # Whatever its layers raise for sizes that do not fit; not what they raise because there are no values.
        except Exception as error:
            is_of_shape = not isinstance(error, NotImplementedError) and "meta" not in str(error)
            return in_one_line(error) if is_of_shape else ""
        return "" if found == shape else f"it returns {' x '.join(map(str, found))}"

    return why_not


def _shaped(build: Callable[[], torch.nn.Module], shaping: Shaping) -> torch.nn.Module:
    # DiNTS prints a recommendation for the size of patches.
    with contextlib.redirect_stdout(io.StringIO()):
        network = build()
    return network if shaping == Shaping() else ShapedNetwork(network, shaping)


def _plan(described: Component) -> tuple[Callable[[], torch.nn.Module], dict[str, Any]]:
    """What builds the network, and its arguments, with those of its parts."""
    kind = _NETWORKS[described.name]
    parts: dict[str, Callable[[], torch.nn.Module]] = {}
    arguments: dict[str, Any] = {}
    of_parts: dict[str, Any] = {}
    for key, value in described.arguments.items():
        where = f"{described.where}::{key}"
        if key in kind.dropped:
            continue
        if key in kind.nested:
            part = described.config.component(value, where)
            if part.name != kind.nested[key]:
                raise part.error(f"is not {kind.nested[key]}, the only {key} that is supported")
            parts[key], arguments_of_part = _plan(part)
            of_parts |= arguments_of_part
        else:
            arguments[key] = described.config.resolved(value, where)
    if "_target_" in repr(arguments):
        raise described.error("has an object as an argument; only plain values are supported")
    arguments |= kind.fixed

    def build() -> torch.nn.Module:
        import monai.networks.nets

        made = {key: build_part() for key, build_part in parts.items()}
        network: torch.nn.Module = getattr(monai.networks.nets, described.name)(**arguments, **made)
        return network

    return build, {**of_parts, **arguments}


def _weights(path: Path) -> dict[str, Any]:
    if not path.is_file():
        code = path.with_suffix(".ts")
        why = f"{code.name} is TorchScript, which is code" if code.is_file() else "it belongs to the bundle"
        raise InputError(f"infer: {path} is missing; {why}: add {path.name}, the weights of the network")
    weights = read_checkpoint(path)
    # A checkpoint of an engine holds the weights under this name.
    found: dict[str, Any] = weights["model"] if isinstance(weights.get("model"), dict) else weights
    return found


def _check_counts(described: Component, arguments: Mapping[str, Any], *, most: int) -> None:
    """Refuses numbers of layers and the like that no network with these weights has, before they are all made."""
    for key, value in arguments.items():
        counts = value if isinstance(value, list | tuple) else [value]
        is_counted = any(word in key for word in _COUNTED)
        if is_counted and any(isinstance(count, int | float) and count > most for count in counts):
            raise described.error(f"has {key} {shortened(value)}, more than its weights have parts")
