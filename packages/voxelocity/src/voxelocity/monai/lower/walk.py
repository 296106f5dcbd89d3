"""A chain walked transform by transform: lowered ones draw and add steps, others run unchanged, in their order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from monai.transforms.compose import Compose, OneOf, RandomOrder, SomeOf
from monai.transforms.inverse import InvertibleTransform
from monai.transforms.traits import LazyTrait, ReduceTrait
from monai.transforms.transform import Transform

from voxelocity.monai.compared import plain_class, why_not_readable
from voxelocity.monai.items.kept import deep_copy
from voxelocity.monai.lower.lowering import Lowerings
from voxelocity.monai.lower.pending import PendingTensor, finish
from voxelocity_observe.spans import span

CONTAINERS = (Compose, OneOf, RandomOrder, SomeOf)
"""MONAI's own containers of transforms, by exact class."""


@dataclass(kw_only=True, eq=False)
class Stage:
    """One transform of a chain, and what it has cost so far.

    Attributes:
        transform: as it stands in the chain.
        engine: what the engine runs in its place, a `Lowering` or a callable; None if it runs unchanged.
        reason: why it runs unchanged, in words; "" if it does not.
        num_calls: how often it was applied: once per item, or per sample of several.
        num_by_monai: how many of these ran MONAI's transform although it is lowered.
        data_reason: why the last of these did, in words.
        seconds: spent in it; only the drawing if it is lowered.
    """

    transform: Any
    engine: Any
    reason: str
    num_calls: int = 0
    num_by_monai: int = 0
    data_reason: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The class of the transform, or the name of the function."""
        is_function = not isinstance(self.transform, Transform) and hasattr(self.transform, "__qualname__")
        return str(self.transform.__qualname__ if is_function else type(self.transform).__name__)

    def run(self, apply: Callable[[Stage, Any], Any], data: Any, map_items: int) -> Any:
        """`apply(self, data)`, timed, of each item in lists of items.

        Args:
            apply: `(stage, data)` to the transform's result for one item.
            data: an item, or a list of items.
            map_items: how deep lists of items are walked, as MONAI's `Compose` has it.

        Raises:
            RuntimeError: the transform failed; it is named, and its own error is the cause.
        """
        begin = time.perf_counter()
        try:
            with span(self.name):
                result = self._map(apply, data, map_items)
        except Exception as error:
            raise RuntimeError(f"applying transform {self.transform}") from error
        self.seconds += time.perf_counter() - begin
        return result

    def _map(self, apply: Callable[[Stage, Any], Any], data: Any, depth: int) -> Any:
        if isinstance(data, list | tuple) and depth > 0 and not isinstance(self.transform, ReduceTrait | Compose):
            return [self._map(apply, item, depth - 1) for item in data]
        self.num_calls += 1
        return apply(self, data)


def run_unchanged(transform: Any, data: Any) -> Any:
    """What MONAI's transform makes of an item, at once and not lazily."""
    return transform(data, lazy=False) if isinstance(transform, LazyTrait) else transform(data)


class Walker:
    """Walks the random part of a chain.

    Not safe to use from several threads: transforms draw from their own generators, in the order in which they are
    called.

    Args:
        transforms: in their order; containers among them are walked into.
        lowerings: the known ones. Transforms of other classes run unchanged.
        map_items: how deep lists of items are walked, as MONAI's `Compose` has it.

    Attributes:
        stages: of every transform, including those in containers, in the order of the chain.
    """

    def __init__(self, transforms: Sequence[Any], *, lowerings: Lowerings, map_items: bool | int = True) -> None:
        self._transforms = tuple(transforms)
        self._map_items = map_items
        self._lowerings = lowerings
        self._by_id: dict[int, Stage] = {}
        self.stages = tuple(self._add_stages(self._transforms))

    @property
    def is_lowered(self) -> bool:
        """Whether every transform is lowered, so that walking only draws."""
        return all(stage.engine is not None for stage in self.stages)

    def defer(self, data: Any, *, private: Callable[[Any], Any] = deep_copy) -> Any:
        """What the chain makes of an item, with pending tensors in place of those that are not made yet.

        The item does not change, and the result shares with it only what pending tensors read, maybe a cache's.

        Args:
            data: the item.
            private: makes a copy of a part of it that may be changed; called for what no lowered transform takes.

        Raises:
            RuntimeError: a transform failed; it is named, and its own error is the cause.
        """
        walk = _Walk(self._by_id, private)
        return walk.own(walk.through(self._transforms, data, self._map_items))

    def __call__(self, data: Any) -> Any:
        """As `defer`, with everything made."""
        return finish(self.defer(data))

    def _add_stages(self, transforms: Sequence[Any]) -> Iterator[Stage]:
        for transform in transforms:
            if self._is_walked(transform):
                yield from self._add_stages(transform.transforms)
            elif id(transform) not in self._by_id:
                stage = self._by_id[id(transform)] = self._stage_of(transform)
                yield stage

    def _is_walked(self, transform: Any) -> bool:
        """Whether it is a container whose transforms run one by one.

        Not one that draws and holds nothing that is lowered: MONAI's own run of it notes in the history what it drew,
        which its inverse needs.
        """
        is_plain = plain_class(transform) is Compose
        return _is_container(transform) and (is_plain or any(map(self._holds_lowered, transform.transforms)))

    def _holds_lowered(self, transform: Any) -> bool:
        if _is_container(transform):
            return any(map(self._holds_lowered, transform.transforms))
        return self._stage_of(transform).engine is not None

    def _stage_of(self, transform: Any) -> Stage:
        lowering = self._lowerings.get(plain_class(transform))
        if lowering is not None:
            reason = why_not_readable(transform) or lowering.why_not(transform)
            return Stage(transform=transform, engine=None if reason else lowering, reason=reason)
        if isinstance(transform, Compose):
            is_known = plain_class(transform) in CONTAINERS
            reason = _why_not_walked(transform) or ("nothing in it is lowered" if is_known else "a custom container")
            return Stage(transform=transform, engine=None, reason=reason)
        if type(transform).__module__.startswith("monai."):
            return Stage(transform=transform, engine=None, reason="not among those that can be lowered")
        return Stage(transform=transform, engine=None, reason="not one of MONAI's")


class _Walk:
    """One item on its way."""

    def __init__(self, stages: dict[int, Stage], private: Callable[[Any], Any]) -> None:
        self._stages = stages
        self._private = private
        self._is_owned = False

    def through(self, transforms: Sequence[Any], data: Any, map_items: bool | int) -> Any:
        for transform in transforms:
            stage = self._stages.get(id(transform))
            if stage is None:
                # A container that is walked into.
                data = self.through(_draw_transforms(transform), data, transform.map_items)
            else:
                if stage.engine is None and not self._is_owned:
                    data, self._is_owned = self._copied(data), True
                data = stage.run(self._apply, data, int(map_items))
        return data

    def own(self, data: Any) -> Any:
        """The data, with copies of what it would share with the item that came in."""
        return data if self._is_owned else self._copied(data)

    def _apply(self, stage: Stage, data: Any) -> Any:
        transform = stage.transform
        if stage.engine is not None:
            reason = stage.engine.why_not_data(transform, data)
            if not reason:
                result = stage.engine.apply(transform, data)
                if isinstance(transform, InvertibleTransform):
                    _mark(transform, result)
                return result
            stage.num_by_monai, stage.data_reason = stage.num_by_monai + 1, reason
            data = data if self._is_owned else self._copied(data)
        return run_unchanged(transform, finish(data))

    def _copied(self, data: Any) -> Any:
        if not _holds_pending(data):
            return self._private(data)
        if isinstance(data, dict):
            return {key: self._copied(value) for key, value in data.items()}
        if isinstance(data, list):
            return [self._copied(value) for value in data]
        return data


def _is_container(transform: Any) -> bool:
    """Whether it is one of the four that `_draw_transforms` knows, without arguments that only MONAI's run supports."""
    return plain_class(transform) in CONTAINERS and _why_not_walked(transform) == ""


def _why_not_walked(container: Compose) -> str:
    """Why its transforms cannot be run one by one, in words; "" if they can."""
    if container.lazy or (
        container.lazy is None and any(getattr(inner, "lazy", False) for inner in container.transforms)
    ):
        return "it is lazy: its transforms are resampled together, by MONAI"
    if container.unpack_items:
        return "it unpacks its items"
    return why_not_logged(container)


def why_not_logged(container: Compose) -> str:
    """Why MONAI runs a container that logs, in words; "" if it does not log."""
    is_silent = container.log_stats is False
    return "" if is_silent else "log_stats is set: only MONAI's code logs the inputs of transforms"


def _draw_transforms(container: Compose) -> Sequence[Any]:
    """The transforms that run this time, in their order. Draws from the container's `R` what its own call draws."""
    num = len(container.transforms)
    if num == 0 or plain_class(container) is Compose:
        return tuple(container.transforms)
    if isinstance(container, OneOf):
        return (container.transforms[int(container.R.multinomial(1, container.weights).argmax())],)
    if isinstance(container, RandomOrder):
        return [container.transforms[index] for index in container.R.permutation(range(num))]
    assert isinstance(container, SomeOf)
    size = container.R.randint(container.min_num_transforms, container.max_num_transforms + 1)
    order = container.R.choice(num, size, replace=container.replace, p=container.weights).tolist()
    return [container.transforms[index] for index in order]


def _mark(transform: Any, result: Any) -> None:
    """Notes in the history of what the transform made that it cannot be inverted."""
    for item in result if isinstance(result, list) else [result]:
        for value in (item.get(key) for key in transform.keys) if isinstance(item, dict) else [item]:
            if isinstance(value, PendingTensor):
                value.refuse_inverse(type(transform).__name__)


def _holds_pending(data: Any) -> bool:
    if isinstance(data, dict):
        return any(map(_holds_pending, data.values()))
    return any(map(_holds_pending, data)) if isinstance(data, list) else isinstance(data, PendingTensor)
