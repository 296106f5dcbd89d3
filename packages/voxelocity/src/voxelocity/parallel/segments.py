"""Networks as a list of segments, so that they can be cut between any two of them, skip connections included.

What a U-shaped network holds between two segments is a stack: the features, and below them those that the way up still
needs. A segment changes its top, puts something on it, or joins its two top elements. What crosses a cut is the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from voxelocity_observe.core.errors import InputError

Stack = tuple[torch.Tensor, ...]


@dataclass(frozen=True, eq=False)
class Segment:
    """A part of a network that is not cut.

    Attributes:
        kind: "replace" calls `run` with the top of the stack and puts the result in its place; "push" puts it on top of
            it; "join" calls it with the top and with the element below, and puts the result in the place of both.
        modules: all modules that `run` uses.
    """

    kind: Literal["replace", "push", "join"]
    run: Callable[..., torch.Tensor]
    modules: tuple[nn.Module, ...]

    def __call__(self, stack: Stack) -> Stack:
        if self.kind == "join":
            return (*stack[:-2], self.run(stack[-1], stack[-2]))
        return (*(stack if self.kind == "push" else stack[:-1]), self.run(stack[-1]))

    def parameters(self) -> Iterator[nn.Parameter]:
        for module in self.modules:
            yield from module.parameters()


class WrappedNetwork(nn.Module):
    """A network that is called in another way than usual. Its parameters and its state are those of the network.

    The state has the network's own names, also as part of another module's state; `named_parameters` puts "network."
    before them.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_load_state_dict_pre_hook(_put_below_network)  # type: ignore[no-untyped-call]

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        found: dict[str, Any] = self.network.state_dict(*args, **kwargs)
        return found

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.network.load_state_dict(*args, **kwargs)


def _put_below_network(module: nn.Module, state: MutableMapping[str, Any], prefix: str, *_: Any) -> None:
    """Renames what `state_dict` wrote for this module, as torch looks for it in the module that it contains."""
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}network.{name.removeprefix(prefix)}"] = state.pop(name)


class SegmentedNetwork(WrappedNetwork):
    """A network that is computed segment by segment."""

    _segments: tuple[Segment, ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Of this very network, also after it was copied or unpickled.

        Raises:
            InputError: it cannot be cut.
        """
        if not self._segments:
            self._segments = segments_of(self.network)
        return self._segments

    def __getstate__(self) -> dict[str, Any]:
        # What joins two modules is a function, which a copy would share with this network.
        return {name: value for name, value in self.__dict__.items() if name != "_segments"}


def segments_of(network: nn.Module) -> tuple[Segment, ...]:
    """The segments of DynUNet, UNet and SegResNet (ours and MONAI's), of an `nn.Sequential`, or as `network` says.

    Run one after the other on `(image,)`, they give what the network gives.

    Args:
        network: a network of the user's own may have a method `segments()` that returns them.

    Raises:
        InputError: it is none of these, or has a part that is not in any segment.
    """
    cut = next((cut for cut in CUTS if cut.fits(network)), None)
    if hasattr(network, "segments"):
        listed: Any = network.segments
        found: Sequence[Segment] = listed()
    elif cut is not None:
        found = cut.segments(network)
    else:
        *titles, last = (cut.title for cut in CUTS)
        raise InputError(
            f"parallel: {type(network).__name__} cannot be split into segments; use {', '.join(titles)} or {last}, or "
            "give your class a method segments() that returns a list of voxelocity.parallel.Segment"
        )
    covered = {id(parameter) for segment in found for parameter in segment.parameters()}
    missing = [name for name, parameter in network.named_parameters() if id(parameter) not in covered]
    if missing:
        raise InputError(
            f"parallel: {type(network).__name__} has parameters that are in none of its segments ({missing[0]}, "
            f"{len(missing)} in all), such as the heads of deep supervision; turn these parts off"
        )
    return tuple(found)


def _has(network: nn.Module, *names: str) -> bool:
    return all(hasattr(network, name) for name in names)


def _replacing(*modules: nn.Module) -> Segment:
    return Segment("replace", modules[0] if len(modules) == 1 else nn.Sequential(*modules), modules)


def _pushing(module: nn.Module) -> Segment:
    return Segment("push", module, (module,))


def _of_dynunet(network: Any) -> list[Segment]:
    stem = (network.stem,) if hasattr(network, "stem") else ()
    return [
        _replacing(*stem, network.input_block),
        *(_pushing(block) for block in (*network.downsamples, network.bottleneck)),
        *(Segment("join", block, (block,)) for block in network.upsamples),
        _replacing(network.output_block),
    ]


def _of_segresnet(network: Any) -> list[Segment]:
    first, *others = network.down_layers
    dropout = (network.dropout,) if network.dropout_prob is not None else ()

    def joining(bring_up: nn.Module, blocks: nn.Module) -> Segment:
        def join(features: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
            joined: torch.Tensor = blocks(bring_up(features) + skip)
            return joined

        return Segment("join", join, (bring_up, blocks))

    return [
        _replacing(network.convInit, *dropout, first),
        *(_pushing(layer) for layer in others),
        *(joining(up_sample, other) for up_sample, other in zip(network.up_samples, network.up_layers, strict=True)),
        *([_replacing(network.conv_final)] if network.use_conv_final else []),
    ]


def _of_unet_level(level: nn.Sequential) -> list[Segment]:
    """A level and all below it: a way down, what is joined with its output, a way up."""
    down, skip, up = level
    inner: Any = skip.submodule

    def join(features: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        joined: torch.Tensor = up(torch.cat((before, features), dim=1))
        return joined

    is_level = isinstance(inner, nn.Sequential) and len(inner) == 3 and hasattr(inner[1], "submodule")
    first, *others = _of_unet_level(inner) if is_level else [_replacing(inner)]
    return [_replacing(down), Segment("push", first.run, first.modules), *others, Segment("join", join, (up,))]


@dataclass(frozen=True, kw_only=True)
class NetworkCut:
    """How networks of one kind are cut.

    Attributes:
        title: of the network, as `step` has it in its table.
        fits: whether a network has this kind's parts, ours or another library's.
        segments: of a network that fits.
    """

    title: str
    fits: Callable[[nn.Module], bool]
    segments: Callable[[Any], list[Segment]]


CUTS = (
    NetworkCut(
        title="DynUNet",
        fits=lambda network: _has(network, "input_block", "downsamples", "bottleneck", "upsamples", "output_block"),
        segments=_of_dynunet,
    ),
    NetworkCut(
        title="UNet",
        fits=lambda network: isinstance(level := getattr(network, "model", None), nn.Sequential) and len(level) == 3,
        segments=lambda network: _of_unet_level(network.model),
    ),
    NetworkCut(
        title="SegResNet",
        fits=lambda network: _has(network, "convInit", "down_layers", "up_samples", "up_layers", "conv_final"),
        segments=_of_segresnet,
    ),
    NetworkCut(
        title="an nn.Sequential",
        fits=lambda network: isinstance(network, nn.Sequential),
        segments=lambda network: [_replacing(module) for module in network],
    ),
)
"""Looked through in this order."""
