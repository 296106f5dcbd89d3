"""A chain in two parts, what is the same every time and what is drawn each time, and the plan of what both do."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from monai.transforms.compose import Compose
from monai.transforms.traits import RandomizableTrait, ThreadUnsafe
from monai.transforms.transform import Transform

from voxelocity.monai.compared import plain_class, why_not_compared
from voxelocity.monai.deterministic import faster, why_not
from voxelocity.monai.items.kept import deep_copy
from voxelocity.monai.lower import lowerings
from voxelocity.monai.lower.pending import finish
from voxelocity.monai.lower.walk import Stage, Walker, run_unchanged
from voxelocity_observe.core.errors import InputError


class ChainError(InputError):
    """A chain of transforms cannot be split or compiled."""


@dataclass(frozen=True, kw_only=True)
class SplitChain:
    """A chain in two.

    Attributes:
        fixed: the transforms before the first random one. Nested chains are taken apart.
        random: the rest.
        map_items: how deep lists of items are walked, as in the chain.
    """

    fixed: tuple[Any, ...]
    random: tuple[Any, ...]
    map_items: bool | int


def is_random(transform: Any) -> bool:
    """Whether the result may differ from call to call, as MONAI judges it: random, or a bare function."""
    return isinstance(transform, RandomizableTrait) or not isinstance(transform, Transform)


def as_compose(chain: Compose | Sequence[Callable[..., Any]] | Callable[..., Any]) -> Compose:
    """The chain as a `Compose`, wrapped if it is not one; transforms keep their random states.

    Raises:
        ChainError: it is neither a chain nor a transform.
    """
    if plain_class(chain) is Compose:
        return chain
    transforms = tuple(chain) if isinstance(chain, list | tuple) else (chain,)
    for transform in transforms:
        if not callable(transform):
            raise ChainError(
                f"voxelocity.monai.compile: {transform!r} is a {type(transform).__name__}, not a transform; give a "
                "monai.transforms.Compose, or a list of transforms"
            )
    compose = Compose(())
    compose.transforms = transforms
    return compose


def split(compose: Compose) -> SplitChain:
    """The chain split at its first random transform.

    Raises:
        ChainError: it resamples lazily or unpacks its items, so its transforms do not run one after the other, or it
            logs their inputs.
    """
    if compose.log_stats is not False:
        raise ChainError(
            f"voxelocity.monai.compile: a Compose with log_stats={compose.log_stats!r} is not compiled: the "
            "input of a failed transform cannot be logged, because it does not exist yet. Set log_stats=False, or "
            "use MONAI's Compose"
        )
    for flag, value, why in (
        ("lazy", compose.lazy, "its transforms are then applied together at the end, so no part of them can be cached"),
        ("unpack_items", compose.unpack_items, "its transforms then do not pass on items"),
    ):
        if value or value is None:
            raise ChainError(
                f"voxelocity.monai.compile: a Compose with {flag}={value} cannot be split: {why}. Set {flag}=False "
                "(a compiled chain applies neighboring spatial transforms in one pass anyway), or use MONAI's Compose"
            )
    transforms = tuple(_flat(compose))
    first = next((n for n, transform in enumerate(transforms) if is_random(transform)), len(transforms))
    return SplitChain(fixed=transforms[:first], random=transforms[first:], map_items=compose.map_items)


def _flat(compose: Compose) -> Iterator[Any]:
    # Not `Compose.flatten`, which reseeds every transform.
    for transform in compose.transforms:
        if (
            plain_class(transform) is Compose
            and transform.map_items == compose.map_items
            and not transform.unpack_items
            and transform.log_stats is False
        ):
            yield from _flat(transform) if transform.lazy is False else [transform]
        else:
            yield transform


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
        self._map_items = int(map_items)
        self.stages = tuple(_stage_of(transform, replace) for transform in transforms)

    def __call__(self, item: Any) -> Any:
        """What the transforms make of an item.

        Raises:
            RuntimeError: a transform failed; it is named, and its own error is the cause.
        """
        for stage in self.stages:
            item = stage.run(_apply, item, self._map_items)
        return item


def _stage_of(transform: Any, replace: bool) -> Stage:
    own = faster(transform) if replace else None
    reason = "" if own is not None else why_not(transform) if replace else "turned off"
    return Stage(transform=transform, engine=own, reason=reason)


def _apply(stage: Stage, item: Any) -> Any:
    if stage.engine is not None:
        return stage.engine(item)
    is_unsafe = isinstance(stage.transform, ThreadUnsafe)
    return run_unchanged(copy.deepcopy(stage.transform) if is_unsafe else stage.transform, item)


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
    __slots__ = (
        "_compose", "_exact_noise", "_lower", "_num_made", "_parts", "_seconds_making", "_why_off", "fixed", "random",
    )  # fmt: skip

    def __init__(self, compose: Compose, *, lower: bool = True, exact_noise: bool = False) -> None:
        parts = split(compose)
        self._compose, self._lower, self._exact_noise = compose, lower, exact_noise
        self._why_off = why_not_compared() if lower else "turned off"
        self.fixed = FixedPart(parts.fixed, map_items=parts.map_items, replace=self.is_lowered)
        known = lowerings(exact_noise=exact_noise) if self.is_lowered else {}
        self.random = Walker(parts.random, lowerings=known, map_items=parts.map_items)
        self._num_made, self._seconds_making = 0, 0.0
        self._parts: dict[tuple[int, int | None], Chain] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(Chain, lower=self._lower, exact_noise=self._exact_noise), (self._compose,)

    @property
    def is_lowered(self) -> bool:
        """Whether the engine's transforms may replace MONAI's: not with a MONAI version that was not compared."""
        return not self._why_off

    def part(self, start: int, stop: int | None = None) -> Chain:
        """The chain of some of these transforms, with the same settings; always the same one."""
        if (start, stop) not in self._parts:
            compose = as_compose(list(self._compose.transforms[start:stop]))
            compose.map_items = self._compose.map_items
            self._parts[(start, stop)] = Chain(compose, lower=self._lower, exact_noise=self._exact_noise)
        return self._parts[(start, stop)]

    def defer(self, prepared: Any, *, private: Callable[[Any], Any] = deep_copy) -> Any:
        """What the random part makes of a prepared item, drawn but not yet made. See `Walker.defer`."""
        return self.random.defer(prepared, private=private)

    def make(self, pending: Any) -> Any:
        """The item with a tensor in place of each pending tensor."""
        begin = time.perf_counter()
        made = finish(pending)
        self.count_made(time.perf_counter() - begin, len(made) if isinstance(made, list) else 1)
        return made

    def count_made(self, seconds: float, num_samples: int = 1) -> None:
        """Records that the pending tensors of samples were made, and how long it took."""
        self._num_made += num_samples
        self._seconds_making += seconds

    def plan(self) -> ChainPlan:
        """What happens to each transform, and what each has cost so far."""
        rows = [_row(stage, "cached") for stage in self.fixed.stages]
        rows += [_row(stage, "drawn again") for stage in self.random.stages]
        if not self.is_lowered:
            rows = [replace(row, reason=self._why_off) for row in rows]
        if any(stage.engine is not None for stage in self.random.stages):
            ms = 1e3 * self._seconds_making / self._num_made if self._num_made else None
            rows.append(PlanRow(stage="(fused passes)", part="drawn again", how="engine", reason="", ms=ms))
        return ChainPlan(rows=rows, notes=self._notes())

    def _notes(self) -> list[str]:
        notes = []
        if not self.fixed.stages:
            notes.append("Nothing is cached: the chain begins with a random transform or a bare function.")
        if not self.random.stages:
            notes.append("No transform is random, so the whole result is cached.")
        for name, reason in dict.fromkeys(
            (stage.name, stage.data_reason) for stage in self.random.stages if stage.num_by_monai
        ):
            notes.append(f"{name} ran with MONAI's code on some data: {reason}.")
        slow = [stage for stage in self.random.stages if stage.engine is None]
        if slow:
            names = ", ".join(dict.fromkeys(stage.name for stage in slow))
            cost = sum(stage.seconds for stage in slow)
            total = self._seconds_making + sum(stage.seconds for stage in self.random.stages)
            share = f", {cost / total:.0%} of the random part's time so far" if total > 0 else ""
            notes.append(f"Run unchanged, sample by sample: {names}{share}.")
        return notes


def _row(stage: Stage, part: str) -> PlanRow:
    ms = 1e3 * stage.seconds / stage.num_calls if stage.num_calls else None
    how = "MONAI" if stage.engine is None else "engine"
    return PlanRow(stage=stage.name, part=part, how=how, reason=stage.reason, ms=ms)


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One line of the plan.

    Attributes:
        stage: name of the transform.
        part: what happens to its result: "cached", or "drawn again" each time.
        how: "engine" if this package runs it, "MONAI" if it runs unchanged.
        reason: why it runs unchanged; "" if it does not.
        ms: mean time of a call so far, None before the first.
    """

    stage: str
    part: str
    how: str
    reason: str
    ms: float | None


@dataclass(frozen=True, kw_only=True)
class ChainPlan:
    """The plan of a chain. Printing it gives the table.

    Attributes:
        rows: in the order of the chain.
        notes: what else the user should know, one sentence each.
    """

    rows: Sequence[PlanRow]
    notes: Sequence[str]

    def __str__(self) -> str:
        header = ("stage", "result", "runs by", "ms a call", "why it runs unchanged")
        return "\n".join([*text_table([header, *map(_cells, self.rows)], right=[3]), *self.notes])


def _cells(row: PlanRow) -> tuple[str, ...]:
    return (row.stage, row.part, row.how, "-" if row.ms is None else f"{row.ms:.2f}", row.reason)


def text_table(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """The lines, the first of which is the header, in columns of equal width; those in `right` end at their right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines = [lines[0], ["-" * width for width in widths], *lines[1:]]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
