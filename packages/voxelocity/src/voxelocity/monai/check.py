"""`check`: compares your chain on your data, as made by MONAI and by the engine with the same draws."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from monai.transforms.compose import Compose
from monai.transforms.transform import apply_transform

from voxelocity.monai.chain import CompiledChain, as_compose, split
from voxelocity.monai.chain.chain import FixedPart, text_table
from voxelocity.monai.difference import Difference, differences_of
from voxelocity.monai.items.kept import deep_copy
from voxelocity.monai.lower import lowerings
from voxelocity.monai.lower.pending import finish
from voxelocity.monai.lower.walk import Walker
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.spans import phase


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """One transform, or the whole chain.

    Attributes:
        stage: its name.
        how: "engine" or "MONAI"; with "MONAI" both sides ran the same code.
        largest: largest difference of two voxels, as a share of the largest value; infinite where one side has none.
        labels: share of the voxels that differ in tensors that hold only whole numbers.
        words: what else differs, in words.
        metadata: which metadata differ, but for the affine, in words; they do not count for the verdict.
        ms_monai: mean time of a call by MONAI.
        ms_engine: mean time of a call by the engine.
        tolerance: for `largest`.
    """

    stage: str
    how: str
    largest: float
    labels: float
    words: tuple[str, ...]
    metadata: tuple[str, ...] = ()
    ms_monai: float
    ms_engine: float
    tolerance: float

    @property
    def is_equal(self) -> bool:
        """Whether voxels are equal within the tolerance, labels exactly, and nothing else but metadata differs."""
        return self.largest <= self.tolerance and self.labels == 0.0 and not self.words


@dataclass(frozen=True, kw_only=True)
class CheckTable:
    """What `check` found. Printing it gives the table."""

    rows: Sequence[CheckRow]
    num_draws: int

    @property
    def is_equal(self) -> bool:
        """Whether every row is equal."""
        return all(row.is_equal for row in self.rows)

    def __str__(self) -> str:
        header = ("transform", "runs by", "largest difference", "labels", "MONAI ms", "ms", "verdict")
        text = text_table([header, *map(_cells, self.rows)])
        text += [f"{row.stage}: {words}" for row in self.rows for words in row.words]
        text += [f"{row.stage}: {words}" for row in self.rows[:-1] for words in row.metadata]
        return "\n".join([*text, f"{self.num_draws} draws; noise is drawn voxel by voxel from MONAI's generators."])


# The time line of a monitor shows the whole, not its transforms as if they were phases of the program.
@phase("check")
def check(
    chain: Compose | Sequence[Callable[..., Any]] | Callable[..., Any],
    item: Any,
    *,
    num_draws: int = 4,
    tolerance: float = 1e-4,
) -> CheckTable:
    """Compares a chain with its compiled form on an item: each transform alone, fed MONAI's data, and then the whole.

    Both sides start from copies of the transforms with the same random states. Neither the chain nor the item is
    changed.

    Args:
        chain: as for `compile`.
        item: one item of the data set, as the chain takes it.
        num_draws: how often the random part is drawn.
        tolerance: how much a voxel may differ, as a share of the largest value. Tensors of whole numbers, such as
            labels, must be equal.

    Returns:
        A table, one row for each transform and one for the whole chain.

    Raises:
        ChainError: the chain cannot be split.
        ConfigError: `num_draws` is below 1.
        RuntimeError: a transform failed; it is named.
    """
    if num_draws < 1:
        raise ConfigError(f"voxelocity.monai.check: num_draws is {num_draws}; at least one draw is needed")
    # The random states must be copied before anything draws from them.
    compose = copy.deepcopy(chain.compose if isinstance(chain, CompiledChain) else as_compose(chain))
    parts = split(compose)
    rows = [_Row(transform) for transform in (*parts.fixed, *parts.random)]
    whole = _Row(None)
    ours = [copy.deepcopy(transform) for transform in parts.random]
    prepared = deep_copy(item)
    for row in rows[: len(parts.fixed)]:
        prepared = row.compare_fixed(prepared, parts.map_items)
    begin = _now_s()
    prepared_ours = FixedPart(parts.fixed, map_items=parts.map_items)(deep_copy(item))
    seconds_fixed = _now_s() - begin
    seconds_drawn = 0.0
    walker = Walker(ours, lowerings=lowerings(exact_noise=True), map_items=parts.map_items)
    for _ in range(num_draws):
        data = deep_copy(prepared)
        for row in rows[len(parts.fixed) :]:
            data = row.random(data, parts.map_items)
        begin = _now_s()
        made = finish(walker.defer(prepared_ours))
        seconds_drawn += _now_s() - begin
        whole.add(data, made)
    # The deterministic part ran once for all draws.
    seconds_monai = sum(row.seconds[0] / row.num_calls for row in rows)
    whole.seconds = (num_draws * seconds_monai, num_draws * seconds_fixed + seconds_drawn)
    return CheckTable(rows=[row.finished(tolerance) for row in (*rows, whole)], num_draws=num_draws)


def _now_s() -> float:
    """The clock once devices have done what was launched on them."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass
class _Row:
    """A row while it is filled."""

    transform: Any
    how: str = "engine"
    seconds: tuple[float, float] = (0.0, 0.0)
    num_calls: int = 0
    differences: list[Difference] = field(default_factory=list)

    def compare_fixed(self, data: Any, map_items: bool | int) -> Any:
        part = FixedPart([self.transform], map_items=map_items)
        self.how = "engine" if part.stages[0].engine is not None else "MONAI"
        return self._both(lambda given: _by_monai(self.transform, given, map_items), part, data)

    def random(self, data: Any, map_items: bool | int) -> Any:
        theirs, own = copy.deepcopy(self.transform), copy.deepcopy(self.transform)
        walker = Walker([own], lowerings=lowerings(exact_noise=True), map_items=map_items)
        self.how = "engine" if walker.is_lowered else "MONAI"
        made = self._both(lambda given: _by_monai(theirs, given, map_items), walker, data)
        if any(stage.num_by_monai for stage in walker.stages):
            self.how = "MONAI"
        self.transform = theirs  # it was drawn from, so the next draw differs
        return made

    def _both(self, theirs_by: Callable[[Any], Any], ours_by: Callable[[Any], Any], data: Any) -> Any:
        # MONAI's copies, and so the samples of one crop, share the arrays in their metadata.
        given, kept = copy.deepcopy(data), deep_copy(data)
        begin = _now_s()
        theirs = theirs_by(given)
        middle = _now_s()
        ours = ours_by(kept)
        end = _now_s()
        self.seconds = (self.seconds[0] + middle - begin, self.seconds[1] + end - middle)
        self.add(theirs, ours)
        return theirs

    def add(self, theirs: Any, ours: Any) -> None:
        self.num_calls += 1
        self.differences += differences_of(theirs, ours)

    def finished(self, tolerance: float) -> CheckRow:
        words = {f"{difference.key}: {difference.words}": None for difference in self.differences if difference.words}
        return CheckRow(
            stage="the whole chain" if self.transform is None else _name(self.transform),
            how="both" if self.transform is None else self.how,
            largest=max((difference.relative for difference in self.differences), default=0.0),
            labels=max((difference.share for difference in self.differences if difference.is_whole), default=0.0),
            words=tuple(words)[:5],
            metadata=self._metadata(),
            ms_monai=1e3 * self.seconds[0] / max(1, self.num_calls),
            ms_engine=1e3 * self.seconds[1] / max(1, self.num_calls),
            tolerance=tolerance,
        )

    def _metadata(self) -> tuple[str, ...]:
        """One line for all samples and draws, with the first difference."""
        found = [f"{difference.key}: {difference.metadata}" for difference in self.differences if difference.metadata]
        more = f" (and in {len(found) - 1} more)" if len(found) > 1 else ""
        return (f"{' '.join(found[0].split())}{more}",) if found else ()


def _by_monai(transform: Any, data: Any, map_items: bool | int) -> Any:
    return apply_transform(transform, data, map_items, lazy=False)


def _name(transform: Any) -> str:
    return str(getattr(transform, "__name__", type(transform).__name__))


def _cells(row: CheckRow) -> tuple[str, ...]:
    return (
        row.stage,
        row.how,
        f"{row.largest:.1e}" if row.largest > 0.0 else "0",
        f"{row.labels:.2%} differ" if row.labels > 0.0 else "equal",
        f"{row.ms_monai:.2f}",
        f"{row.ms_engine:.2f}",
        "differs" if not row.is_equal else "equal, metadata not" if row.metadata else "equal",
    )
