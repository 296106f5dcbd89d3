"""A chain walked transform by transform: lowered ones draw and add steps, others run unchanged, in their order."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from monai.transforms.compose import Compose
from monai.transforms.inverse import InvertibleTransform
from monai.transforms.traits import LazyTrait, ReduceTrait
from monai.transforms.transform import Transform

from voxelocity.interop.monai.compared import why_not_readable
from voxelocity.interop.monai.lower.containers import drawn, is_container, why_not
from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.lower.forms import holds_voxels_for_monai
from voxelocity.interop.monai.lower.lowering import Lowering, Lowerings
from voxelocity.interop.monai.lower.sketch import Sketch
from voxelocity.interop.monai.ranges import plain_class
from voxelocity.observe import span


@dataclass(kw_only=True, eq=False)
class Stage:
    """One transform of a walked chain, and what it has cost so far.

    Attributes:
        transform: as it stands in the chain.
        lowering: how it is lowered; None if it runs unchanged.
        reason: why it is not lowered, in words; "" if it is.
        num_calls: how often it was applied: once per item, or per sample of several.
        num_by_monai: how many of these ran MONAI's transform although it is lowered, because the data lay on a GPU or
            did not have two or three axes.
        seconds: spent in it; only the drawing if it is lowered.
    """

    transform: Any
    lowering: Lowering | None
    reason: str
    num_calls: int = 0
    num_by_monai: int = 0
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The class of the transform, or the name of the function."""
        return type(self.transform).__name__ if isinstance(self.transform, Transform) else _name_of(self.transform)


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
        self.stages = tuple(self._listed(self._transforms))

    @property
    def is_lowered(self) -> bool:
        """Whether every transform is lowered, so that walking only draws."""
        return all(stage.lowering is not None for stage in self.stages)

    def sketch(self, data: Any, *, private: Callable[[Any], Any] = copy.deepcopy) -> Any:
        """What the chain makes of an item, with sketches in place of the tensors that are still to be made.

        The item does not change, and the result shares with it only what sketches read: it may belong to a cache.

        Args:
            data: the item.
            private: makes a copy of a part of it that may be changed; called for what no lowered transform takes.

        Raises:
            RuntimeError: a transform failed; it is named, and its own error is the cause.
        """
        walk = _Walk(self._by_id, private)
        return walk.owned(walk.through(self._transforms, data, self._map_items))

    def __call__(self, data: Any) -> Any:
        """As `sketch`, with everything made."""
        return finish(self.sketch(data))

    def _listed(self, transforms: Sequence[Any]) -> Iterator[Stage]:
        for transform in transforms:
            if is_container(transform):
                yield from self._listed(transform.transforms)
            elif id(transform) not in self._by_id:
                stage = self._by_id[id(transform)] = self._stage_of(transform)
                yield stage

    def _stage_of(self, transform: Any) -> Stage:
        lowering = self._lowerings.get(plain_class(transform))
        if lowering is not None:
            reason = why_not_readable(transform) or lowering.why_not(transform)
            return Stage(transform=transform, lowering=None if reason else lowering, reason=reason)
        if isinstance(transform, Compose):
            return Stage(transform=transform, lowering=None, reason=why_not(transform) or "a custom container")
        if type(transform).__module__.startswith("monai."):
            return Stage(transform=transform, lowering=None, reason="not among those that can be lowered")
        return Stage(transform=transform, lowering=None, reason="not one of MONAI's: it may do anything")


class _Walk:
    """One item on its way."""

    def __init__(self, stages: dict[int, Stage], private: Callable[[Any], Any]) -> None:
        self._stages = stages
        self._private = private
        self._is_owned = False

    def through(self, transforms: Sequence[Any], data: Any, map_items: bool | int) -> Any:
        for transform in transforms:
            if is_container(transform):
                data = self.through(drawn(transform), data, transform.map_items)
            else:
                data = self._step(self._stages[id(transform)], data, int(map_items))
        return data

    def owned(self, data: Any) -> Any:
        """The data, with copies of what it would share with the item that came in."""
        return data if self._is_owned else self._copied(data)

    def _step(self, stage: Stage, data: Any, depth: int) -> Any:
        if stage.lowering is None and not self._is_owned:
            data, self._is_owned = self._copied(data), True
        begin = time.perf_counter()
        try:
            with span(stage.name):
                result = self._applied(stage, data, depth)
        except Exception as error:
            raise RuntimeError(f"applying transform {stage.transform}") from error
        stage.seconds += time.perf_counter() - begin
        return result

    def _applied(self, stage: Stage, data: Any, depth: int) -> Any:
        transform = stage.transform
        if isinstance(data, list | tuple) and depth > 0 and not isinstance(transform, ReduceTrait | Compose):
            return [self._applied(stage, item, depth - 1) for item in data]
        stage.num_calls += 1
        if stage.lowering is not None:
            if not holds_voxels_for_monai(transform, data):
                result = stage.lowering.apply(transform, data)
                if isinstance(transform, InvertibleTransform):
                    _mark(transform, result)
                return result
            stage.num_by_monai += 1
            data = data if self._is_owned else self._copied(data)
        data = finish(data)
        return transform(data, lazy=False) if isinstance(transform, LazyTrait) else transform(data)

    def _copied(self, data: Any) -> Any:
        if not _holds_sketches(data):
            return self._private(data)
        if isinstance(data, dict):
            return {key: self._copied(value) for key, value in data.items()}
        if isinstance(data, list):
            return [self._copied(value) for value in data]
        return data


def _mark(transform: Any, result: Any) -> None:
    """Notes in the history of what the transform made that it cannot be inverted."""
    for one in result if isinstance(result, list) else [result]:
        for value in (one.get(key) for key in transform.keys) if isinstance(one, dict) else [one]:
            if isinstance(value, Sketch):
                value.refuse_inverse(type(transform).__name__)


def _holds_sketches(data: Any) -> bool:
    if isinstance(data, dict):
        return any(map(_holds_sketches, data.values()))
    return any(map(_holds_sketches, data)) if isinstance(data, list) else isinstance(data, Sketch)


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__name__)
