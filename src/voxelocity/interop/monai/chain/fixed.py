"""The deterministic part of a chain, run by the engine's transforms where they give the same result."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from monai.transforms.compose import Compose
from monai.transforms.traits import LazyTrait, ReduceTrait, ThreadUnsafe

from voxelocity.interop.monai.deterministic import faster, why_not
from voxelocity.observe import span


@dataclass(kw_only=True, eq=False)
class FixedStage:
    """One deterministic transform, and what it has cost so far.

    Attributes:
        transform: as it stands in the chain.
        faster: what runs in its place, or None.
        reason: why nothing does, in words; "" if something does.
        num_calls: how often it was applied to an item.
        seconds: spent in it.
    """

    transform: Any
    faster: Callable[[Any], Any] | None
    reason: str
    num_calls: int = 0
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The class of the transform."""
        return type(self.transform).__name__


class FixedPart:
    """The transforms before the first random one.

    Safe to use from several threads.

    Args:
        transforms: in their order, none of them random.
        map_items: how deep lists of items are walked, as MONAI's `Compose` has it.
        replace: whether the engine's transforms run where they give the same result.

    Attributes:
        stages: one for each transform.
    """

    def __init__(self, transforms: Sequence[Any], *, map_items: bool | int = True, replace: bool = True) -> None:
        self._map_items = map_items
        self.stages = tuple(_stage_of(transform, replace) for transform in transforms)

    def __call__(self, item: Any) -> Any:
        """What the transforms make of an item.

        Raises:
            RuntimeError: a transform failed; it is named, and its own error is the cause.
        """
        for stage in self.stages:
            begin = time.perf_counter()
            try:
                with span(stage.name):
                    item = _applied(stage, item, int(self._map_items))
            except Exception as error:
                raise RuntimeError(f"applying transform {stage.transform}") from error
            stage.seconds += time.perf_counter() - begin
        return item


def _stage_of(transform: Any, replace: bool) -> FixedStage:
    own = faster(transform) if replace else None
    reason = "" if own is not None else why_not(transform) if replace else "turned off"
    return FixedStage(transform=transform, faster=own, reason=reason)


def _applied(stage: FixedStage, item: Any, depth: int) -> Any:
    transform = stage.transform
    if isinstance(item, list | tuple) and depth > 0 and not isinstance(transform, ReduceTrait | Compose):
        return [_applied(stage, one, depth - 1) for one in item]
    stage.num_calls += 1
    if stage.faster is not None:
        return stage.faster(item)
    if isinstance(transform, ThreadUnsafe):
        transform = copy.deepcopy(transform)
    return transform(item, lazy=False) if isinstance(transform, LazyTrait) else transform(item)
