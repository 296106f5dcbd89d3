"""Where a step overflows, and layers that compute in float32 while others do not.

The layer is found by one pass of the failed step with hooks, so normal steps have none.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from voxelocity.step.precision import autocast
from voxelocity.step.precision_config import PrecisionConfig
from voxelocity_observe.core.errors import ConfigError, did_you_mean

_KEY = "precision.float32_layers"
_NUM_SHOWN = 8


class Float32Layer(nn.Module):
    """Computes in float32 where others compute in half precision; mixed into the class of a layer."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        kinds = [tensor.device.type for tensor in _tensors((inputs, named))]
        with torch.autocast(kinds[0] if kinds else "cpu", enabled=False):
            return super().forward(*tree_map(_in_float32, inputs), **tree_map(_in_float32, named))


def keep_float32(network: nn.Module, layers: Sequence[str]) -> nn.Module:
    """The network, whose layers of these names compute in float32 under autocast. Its state stays unchanged.

    Their inputs are converted, and what they return stays float32 until another layer converts it. Copies of the
    network keep it.

    Args:
        network: changed in place.
        layers: names as `network.named_modules()` has them, or patterns of them such as "upsamples.*".

    Raises:
        ConfigError: there is no such layer; near names are given.
    """
    known = {name: module for name, module in network.named_modules() if name}
    for pattern in layers:
        found = fnmatch.filter(known, pattern)
        if not found:
            first = ", ".join([*known][:_NUM_SHOWN])
            near = did_you_mean(pattern, known) or f"; its layers are {first} and others below them"
            raise ConfigError(f"step: {_KEY} names '{pattern}', which {type(network).__name__} does not have{near}")
        for name in found:
            kind: Any = type(known[name])
            if not issubclass(kind, Float32Layer):
                known[name].__class__ = _float32_kind(kind)
    return network


@functools.cache
def _float32_kind(kind: Any) -> type[nn.Module]:
    return type(kind.__name__, (Float32Layer, kind), {"__module__": kind.__module__})


def _in_float32(value: Any) -> Any:
    is_half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_half else value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


@dataclass(frozen=True, kw_only=True)
class Overflow:
    """The first layer of a pass that returned NaN or infinity.

    Attributes:
        layer: its name in the network; "" for the network itself, outside of all layers.
        kind: its class.
        largest: magnitude in what it was given; NaN if that was not finite, or nothing.
        has_bad_weights: whether one of its own weights is NaN or infinite.
    """

    layer: str
    kind: str
    largest: float
    has_bad_weights: bool


def first_overflow(network: nn.Module, image_bcxyz: torch.Tensor, precision: PrecisionConfig) -> Overflow | None:
    """The first layer that overflows in a forward pass; None if all that layers return is finite.

    Reads what each layer returns, so the device waits. Running statistics change.
    """
    found: list[Overflow] = []

    def watching(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(module: nn.Module, inputs: Any, made: Any) -> None:
            if not found and not _all_finite(made):
                given = [float(tensor.abs().max()) for tensor in _tensors(inputs) if tensor.numel()]
                weights = [*module.parameters(recurse=False)]
                found.append(
                    Overflow(
                        layer=name,
                        kind=type(module).__name__,
                        largest=max(given, default=float("nan")),
                        has_bad_weights=not _all_finite(weights),
                    )
                )

        return look

    hooks = [module.register_forward_hook(watching(name)) for name, module in network.named_modules()]
    try:
        with torch.no_grad(), autocast(precision, image_bcxyz.device):
            network(image_bcxyz)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def _all_finite(value: Any) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in _tensors(value) if tensor.is_floating_point())


def overflow_advice(found: Overflow | None, precision: PrecisionConfig) -> str:
    """Sentences for the message of a step that was not finite: which layer, what may help; "" if nothing is known."""
    is_half, texts = precision.compute != "float32", []
    if found is not None:
        what = f"the layer '{found.layer}' ({found.kind})" if found.layer else f"{found.kind}, outside of its layers,"
        why = " by a weight that is" if found.has_bad_weights else f" from inputs up to {found.largest:g}"
        texts.append(f"In {precision.compute}, {what} was the first to return NaN or infinity{why}")
    if is_half:
        # With its norm, which takes the large values.
        block = "" if found is None else found.layer.rpartition(".")[0] or found.layer
        keeps = f"--set {_KEY}={block} computes it in float32, " if block else ""
        texts.append(f"Float32 may be enough: {keeps}--set precision.compute=float32 computes everything in it")
    return "".join(f". {text}" for text in texts)
