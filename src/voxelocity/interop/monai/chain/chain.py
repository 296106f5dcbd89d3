"""A chain that is ready to run: its deterministic part, its random part, and what both have cost."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from monai.transforms.compose import Compose

from voxelocity.interop.monai.chain.fixed import FixedPart, FixedStage
from voxelocity.interop.monai.chain.plan import ChainPlan, PlanRow
from voxelocity.interop.monai.chain.split import split
from voxelocity.interop.monai.compared import why_not_compared
from voxelocity.interop.monai.lower.finish import finish, run_soon
from voxelocity.interop.monai.lower.registry import lowerings
from voxelocity.interop.monai.lower.walk import Stage, Walker


class Chain:
    """A `Compose` in two parts, each as fast as possible with the same result.

    The deterministic part is safe to use from several threads; the random part is not: its transforms draw from
    their own generators in the order in which they are called.

    Args:
        compose: the chain. Its transforms are used, not copied: seeding them seeds this chain.
        lower: whether the engine's transforms replace MONAI's; False is the off switch.
        exact_noise: draw noise voxel by voxel from MONAI's generator, as MONAI does. Otherwise the engine makes the
            noise: equal in distribution, many times faster.

    Raises:
        ChainError: the chain cannot be split.

    Attributes:
        fixed: the deterministic part, before the first random transform.
        random: the random part.
    """

    # No __dict__: MONAI's `set_rnd` looks for transforms in everything that a data set holds, and must seed the chain's
    # transforms only once, as the data set's `transform`.
    __slots__ = ("_compose", "_exact_noise", "_lower", "_num_made", "_seconds_making", "_why_off", "fixed", "random")

    def __init__(self, compose: Compose, *, lower: bool = True, exact_noise: bool = False) -> None:
        parts = split(compose)
        self._compose, self._lower, self._exact_noise = compose, lower, exact_noise
        self._why_off = why_not_compared() if lower else "turned off"
        self.fixed = FixedPart(parts.fixed, map_items=parts.map_items, replace=self.is_lowered)
        known = lowerings(exact_noise=exact_noise) if self.is_lowered else {}
        self.random = Walker(parts.random, lowerings=known, map_items=parts.map_items)
        self._num_made, self._seconds_making = 0, 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._compose, self._lower, self._exact_noise)

    @property
    def is_lowered(self) -> bool:
        """Whether the engine's transforms may replace MONAI's: not with a MONAI version that was not compared."""
        return not self._why_off

    def like(self, compose: Compose) -> Chain:
        """Another chain with these settings."""
        return Chain(compose, lower=self._lower, exact_noise=self._exact_noise)

    def sketch(self, prepared: Any, *, private: Callable[[Any], Any] = copy.deepcopy) -> Any:
        """What the random part makes of a prepared item, drawn but not yet made. See `Walker.sketch`."""
        return self.random.sketch(prepared, private=private)

    def make(self, sketched: Any) -> Any:
        """The item with a tensor in place of each sketch."""
        begin = time.perf_counter()
        made = finish(sketched, run_soon)
        self.count_made(time.perf_counter() - begin, len(made) if isinstance(made, list) else 1)
        return made

    def count_made(self, seconds: float, num_samples: int = 1) -> None:
        """Records that the sketches of samples were made, and how long it took."""
        self._num_made += num_samples
        self._seconds_making += seconds

    def plan(self) -> ChainPlan:
        """What happens to each transform, and what each has cost so far."""
        rows = [_row(stage, "cached", stage.faster is not None) for stage in self.fixed.stages]
        rows += [_row(stage, "drawn again", stage.lowering is not None) for stage in self.random.stages]
        if not self.is_lowered:
            rows = [replace(row, reason=self._why_off) for row in rows]
        if any(stage.lowering is not None for stage in self.random.stages):
            ms = 1e3 * self._seconds_making / self._num_made if self._num_made else None
            rows.append(PlanRow(stage="(fused passes)", part="drawn again", how="engine", reason="", ms=ms))
        return ChainPlan(rows=rows, notes=self._notes())

    def _notes(self) -> list[str]:
        notes = []
        if not self.fixed.stages:
            notes.append("Nothing is cached: the chain begins with a random transform or a bare function.")
        if not self.random.stages:
            notes.append("Nothing is drawn: the chain is the same every time, so its whole result is cached.")
        returned = [stage.name for stage in self.random.stages if stage.num_by_monai]
        if returned:
            names = ", ".join(dict.fromkeys(returned))
            notes.append(f"Run unchanged on some data, which was on a GPU or did not have two or three axes: {names}.")
        slow = [stage for stage in self.random.stages if stage.lowering is None]
        if slow:
            names = ", ".join(dict.fromkeys(stage.name for stage in slow))
            cost = sum(stage.seconds for stage in slow)
            total = self._seconds_making + sum(stage.seconds for stage in self.random.stages)
            share = f", {cost / total:.0%} of the random part's time so far" if total > 0 else ""
            notes.append(f"Run unchanged, sample by sample: {names}{share}.")
        return notes


def _rebuilt(compose: Compose, lower: bool, exact_noise: bool) -> Chain:
    return Chain(compose, lower=lower, exact_noise=exact_noise)


def _row(stage: FixedStage | Stage, part: str, is_own: bool) -> PlanRow:
    ms = 1e3 * stage.seconds / stage.num_calls if stage.num_calls else None
    return PlanRow(stage=stage.name, part=part, how="engine" if is_own else "MONAI", reason=stage.reason, ms=ms)
