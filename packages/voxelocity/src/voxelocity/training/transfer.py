"""Weights of one network taken over into another: layers by name, then by structure; channels and classes by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import torch

from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.quantities import count_text, listed

State = Mapping[str, torch.Tensor]
_Layers = Mapping[str, Mapping[str, torch.Tensor]]
"""Tensors of each module by their own names, in the order of the network."""
# A new channel begins so small next to channels that the network knows that it first does what it did before.
_NEW_CHANNEL = 0.1
_MOST_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class Ends:
    """What enters a network, and what its logits mean.

    Attributes:
        channels: names of the image channels.
        outputs: names of the channels of the logits.
        has_background: whether the first output is the background of classes that exclude each other.
    """

    channels: tuple[str, ...]
    outputs: tuple[str, ...]
    has_background: bool


@dataclass(frozen=True, kw_only=True)
class Correspondence:
    """What each channel and each output of a new network continues.

    Attributes:
        before: the ends of the network that it starts from.
        now: its own.
        channels: for each channel the index of the earlier one; None is initialized.
        outputs: the same for each output.
    """

    before: Ends
    now: Ends
    channels: tuple[int | None, ...]
    outputs: tuple[int | None, ...]

    @classmethod
    def of(cls, before: Ends, now: Ends, given: Mapping[str, str] | None = None) -> Correspondence:
        """Both matched by name, whatever its case; `given` has the earlier name of each that has another now.

        Backgrounds continue each other. As many channels as before continue those that are left, in their order.

        Raises:
            ConfigError: a given name is of neither network.
        """
        renamed = {_plain(new): old for new, old in (given or {}).items()}
        _check_given(given or {}, before, now)
        channels = _matched(now.channels, before.channels, renamed)
        if len(before.channels) == len(now.channels):
            left = [index for index in range(len(before.channels)) if index not in channels]
            ended = [_plain(name) in renamed for name in now.channels]
            channels = [
                left.pop(0) if index is None and not is_ended else index
                for index, is_ended in zip(channels, ended, strict=True)
            ]
        outputs = _matched(now.outputs, before.outputs, renamed)
        if before.has_background and now.has_background:
            outputs = [0, *(None if index == 0 else index for index in outputs[1:])]
        return cls(before=before, now=now, channels=tuple(channels), outputs=tuple(outputs))

    def channel_text(self) -> str:
        """What becomes of the channels, where not each continues one of its name; "" where each does."""
        before, pairs = self.before.channels, list(zip(self.now.channels, self.channels, strict=True))
        texts = [
            f"channel {name} continues {before[index]}"
            for name, index in pairs
            if index is not None and _plain(before[index]) != _plain(name)
        ]
        new = listed([name for name, index in pairs if index is None], _MOST_NAMED)
        if all(index is None for index in self.channels):
            texts.append(f"no channel name matches: {new} start with the mean of the earlier ones")
        elif new:
            texts.append(f"channel {new} is new and starts with {_NEW_CHANNEL:g} times the mean of the earlier ones")
        return "; ".join(texts)

    def output_text(self) -> str:
        """Which outputs continue an earlier one, and which are initialized."""
        pairs = list(zip(self.now.outputs, self.outputs, strict=True))
        start = 1 if self.now.has_background else 0
        names = self.before.outputs
        taken = [
            name if _plain(names[index]) == _plain(name) else f"{name} (from {names[index]})"
            for name, index in pairs[start:]
            if index is not None
        ]
        new = [name for name, index in pairs[start:] if index is None]
        unused = [
            name for index, name in enumerate(names)
            if index not in self.outputs and not (index == 0 and self.before.has_background)
        ]  # fmt: skip
        texts = [f"classes taken over: {listed(taken, _MOST_NAMED)}"] if taken else []
        if new:
            has = f" (the model also has {listed(unused, _MOST_NAMED)})" if unused else ""
            texts.append(f"classes initialized: {listed(new, _MOST_NAMED)}{has}")
        return "; ".join(texts)


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Which dimensions of a tensor run over the channels of the image, and which over those of the logits."""

    channels: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What was taken over.

    Attributes:
        num_taken: parameters that continue earlier ones.
        num_all: parameters of the network.
        initialized: layers of which nothing was taken over.
        moved: layers that were found by their structure, under another name.
        correspondence: of channels and outputs.
    """

    num_taken: int
    num_all: int
    initialized: tuple[str, ...]
    moved: tuple[str, ...]
    correspondence: Correspondence

    @property
    def share(self) -> float:
        """Of the parameters, 0 to 1."""
        return self.num_taken / max(1, self.num_all)

    def text(self) -> str:
        """All of it in a sentence."""
        parts = [f"{self.num_taken:,} of {count_text(self.num_all, 'parameter')} taken over ({self.share:.1%})"]
        if self.moved:
            parts.append(f"{count_text(len(self.moved), 'layer')} matched by structure, not by name")
        if self.initialized:
            parts.append(
                f"{count_text(len(self.initialized), 'layer')} are initialized, because no layer has this name and "
                "shape: "
                f"{listed(list(self.initialized), _MOST_NAMED)}"
            )
        ends = (self.correspondence.channel_text(), self.correspondence.output_text())
        return "; ".join([*parts, *filter(None, ends)])


def find_roles(
    build: Callable[[int, int], torch.nn.Module], *, num_channels: int, num_outputs: int
) -> dict[str, Roles]:
    """The dimensions of each tensor that run over channels or outputs: those that grow where there is one more.

    Args:
        build: makes the network for these numbers of channels and outputs.
        num_channels: of the image.
        num_outputs: of the logits.
    """
    shapes, wider, longer = (
        _shapes(build, *sizes)
        for sizes in (
            (num_channels, num_outputs), (num_channels + 1, num_outputs), (num_channels, num_outputs + 1),
        )
    )  # fmt: skip
    return {
        name: Roles(channels=_grown(shape, wider.get(name, shape)), outputs=_grown(shape, longer.get(name, shape)))
        for name, shape in shapes.items()
    }


def take_over(state: State, network: torch.nn.Module, roles: Mapping[str, Roles], to: Correspondence) -> Transfer:
    """Copies into `network` every weight of `state` that it can continue with; the others stay as they are.

    Args:
        state: of the network that it starts from.
        network: with initial weights.
        roles: of its tensors, as `find_roles` says.
        to: what its channels and outputs continue.
    """
    old, new = _layers(state), _layers(network.state_dict())
    pairs, moved = _pairs(old, new, roles, to)
    trained = {name for name, _ in network.named_parameters()}
    num_taken, initialized = 0, []
    with torch.no_grad():
        for layer, tensors in new.items():
            taken = 0
            for leaf, tensor in tensors.items():
                before = old[pairs[layer]].get(leaf) if layer in pairs else None
                if before is None:
                    continue
                name = _joined(layer, leaf)
                value, count = _continued(before, tensor, roles.get(name, Roles()), to)
                tensor.copy_(value)
                taken += count
                num_taken += count if name in trained else 0
            if taken == 0 and any(tensor.numel() for tensor in tensors.values()):
                initialized.append(layer)
    num_all = sum(parameter.numel() for parameter in network.parameters())
    return Transfer(
        num_taken=num_taken, num_all=num_all, initialized=tuple(initialized), moved=tuple(moved), correspondence=to
    )


def read_mapping(pairs: Sequence[str]) -> dict[str, str]:
    """The earlier name of each channel or class in texts such as "T1=MRI"; "T1=" initializes it.

    Raises:
        ConfigError: a text is none, or a name is given twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        new, equals, old = (part.strip() for part in pair.partition("="))
        if not equals or not new:
            raise ConfigError(f"train: --map '{pair}' is not NEW=OLD, two names of a channel or class")
        if new in found:
            raise ConfigError(f"train: --map gives {new} two names, {found[new]} and {old}; give one of them")
        found[new] = old
    return found


def _plain(name: str) -> str:
    """The name as it is compared: "Left kidney" is "left_kidney"."""
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())


def _matched(now: Sequence[str], before: Sequence[str], renamed: Mapping[str, str]) -> list[int | None]:
    place = {_plain(name): index for index, name in reversed([*enumerate(before)])}
    wanted = [renamed.get(_plain(name), name) for name in now]
    return [place.get(_plain(name)) if name else None for name in wanted]


def _check_given(given: Mapping[str, str], before: Ends, now: Ends) -> None:
    known = [{_plain(name) for name in (*ends.channels, *ends.outputs)} for ends in (now, before)]
    for new, old in given.items():
        for name, names, whose, ends in (
            (new, known[0], "the data set", now), (old, known[1], "the model", before),
        ):  # fmt: skip
            if name and _plain(name) not in names:
                raise ConfigError(
                    f"train: --map '{new}={old}': {whose} has no channel or class {name}, but the channels "
                    f"{listed(list(ends.channels), 20)} and the classes {listed(list(ends.outputs), 20)}"
                )


def _shapes(build: Callable[[int, int], torch.nn.Module], num_channels: int, num_outputs: int) -> dict[str, torch.Size]:
    try:
        with torch.device("meta"):
            network = build(num_channels, num_outputs)
    # Some networks of MONAI, and those of users, read values while they are built.
    except (NotImplementedError, RuntimeError):
        network = build(num_channels, num_outputs)
    return {name: tensor.shape for name, tensor in network.state_dict().items()}


def _grown(shape: torch.Size, other: torch.Size) -> tuple[int, ...]:
    return tuple(dim for dim, (n, m) in enumerate(zip(shape, other, strict=False)) if n != m)


def _layers(state: State) -> dict[str, dict[str, torch.Tensor]]:
    layers: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in state.items():
        layer, _, leaf = name.rpartition(".")
        layers.setdefault(layer, {})[leaf] = tensor
    return layers


def _joined(layer: str, leaf: str) -> str:
    return f"{layer}.{leaf}" if layer else leaf


def _pairs(
    old: _Layers, new: _Layers, roles: Mapping[str, Roles], to: Correspondence
) -> tuple[dict[str, str], list[str]]:
    """For layers of the new network the earlier ones that they continue, and those of them with another name.

    Layers that no name finds are aligned by the shapes of their weights, in the order of both networks.
    """
    pairs = {layer: layer for layer in new if layer in old and _fits(layer, old[layer], new[layer], roles, to)}
    rest_old = [layer for layer in old if layer not in pairs.values() and _signature(old[layer])]
    rest_new = [layer for layer in new if layer not in pairs and _signature(new[layer])]
    shapes = [[_signature(layers[layer]) for layer in rest] for layers, rest in ((old, rest_old), (new, rest_new))]
    matcher = SequenceMatcher(a=shapes[0], b=shapes[1], autojunk=False)
    moved: list[str] = []
    for block in matcher.get_matching_blocks():
        for offset in range(block.size):
            layer, before = rest_new[block.b + offset], rest_old[block.a + offset]
            # What runs over channels or outputs means something by its place, which a shape does not show.
            if not any(roles.get(_joined(layer, leaf), Roles()) != Roles() for leaf in new[layer]):
                pairs[layer] = before
                moved.append(layer)
    return pairs, moved


def _fits(
    layer: str, old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor], roles: Mapping[str, Roles],
    to: Correspondence,
) -> bool:  # fmt: skip
    """Whether all tensors that both have can continue each other."""
    both = [leaf for leaf in new if leaf in old]
    return bool(both) and all(
        _can_continue(old[leaf].shape, new[leaf].shape, roles.get(_joined(layer, leaf), Roles()), to) for leaf in both
    )


def _can_continue(old: torch.Size, new: torch.Size, roles: Roles, to: Correspondence) -> bool:
    expected = list(new)
    for dim in roles.channels:
        expected[dim] = len(to.before.channels)
    for dim in roles.outputs:
        expected[dim] = len(to.before.outputs)
    return list(old) == expected


def _signature(tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[str, torch.Size], ...]:
    """What layers of equal structure have in common; a bias before a norm is often left out, as it has no effect."""
    return tuple((leaf, tensor.shape) for leaf, tensor in tensors.items() if leaf != "bias" and tensor.numel() > 1)


def _continued(old: torch.Tensor, fresh: torch.Tensor, roles: Roles, to: Correspondence) -> tuple[torch.Tensor, int]:
    """The new value of a tensor, and how many of its elements continue earlier ones."""
    value, share = old.to(fresh.dtype), 1.0
    for dim in roles.channels:
        value = _over_channels(value, dim, to.channels)
        share *= sum(index is not None for index in to.channels) / len(to.channels)
    if roles.outputs:
        kept = [(now, before) for now, before in enumerate(to.outputs) if before is not None]
        places, sources = (torch.tensor([pair[side] for pair in kept], dtype=torch.long) for side in (0, 1))
        for dim in roles.outputs:
            value = value.index_select(dim, sources)
            share *= len(kept) / len(to.outputs)
        value = _put(fresh, value, roles.outputs, places)
    return value, round(share * fresh.numel())


def _over_channels(value: torch.Tensor, dim: int, channels: Sequence[int | None]) -> torch.Tensor:
    num_before, has_known = value.shape[dim], any(index is not None for index in channels)
    # Where all are new, the sum over all of them stays about as large as it was.
    new = value.mean(dim) * (_NEW_CHANNEL if has_known else num_before / len(channels))
    return torch.stack([new if index is None else value.select(dim, index) for index in channels], dim)


def _put(fresh: torch.Tensor, value: torch.Tensor, dims: Sequence[int], places: torch.Tensor) -> torch.Tensor:
    """`fresh` with `value` at these places along each of the dimensions."""
    if not dims:
        return value
    dim, *rest = dims
    inner = _put(fresh.index_select(dim, places), value, rest, places)
    return fresh.index_copy(dim, places, inner)
