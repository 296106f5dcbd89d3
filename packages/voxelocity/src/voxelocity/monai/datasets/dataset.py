"""A list of items and a chain of transforms, of which nothing is kept; the base of all data sets here.

Every data set of `monai` runs its chain only in `DataChain`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monai.data import Dataset as MonaiDataset
from monai.transforms import Compose, OneOf, RandomOrder, SomeOf

from voxelocity.monai.chain import Chain, ChainError, ChainPlan, CompiledChain, as_compose
from voxelocity.monai.chain.chain import is_random
from voxelocity.monai.compared import plain_class
from voxelocity.monai.fingerprint import COMPOSE_OPTIONS
from voxelocity.monai.items.kept import deep_copy
from voxelocity.monai.lower.pending import finish
from voxelocity.monai.lower.walk import CONTAINERS, why_not_logged


class Dataset(MonaiDataset):  # type: ignore[misc]
    """MONAI's `Dataset`: item i is `transform(data[i])`; a slice or a list of indices gives a torch `Subset`.

    Args:
        data: the items.
        transform: a callable, a list of callables, a `Compose`, or None for unchanged items.

    Raises:
        ValueError: `transform` cannot be made into a `Compose`.
    """

    # Not in `__dict__`: MONAI iterates over it while thread workers, which share the data set, make items.
    __slots__ = ("_held_chain",)

    def plan(self) -> ChainPlan:
        """What happens to each transform of the chain, why, and what each has cost so far. Print it."""
        return self._data_chain().plan()

    def defer(self, index: int) -> Any:
        """What `self[index]` is, drawn but not yet made. It draws what `self[index]` draws; `make` makes it."""
        return self._data_chain().whole(self.data[index])

    def make(self, pending: Any) -> Any:
        """What `defer` returned, with its voxels made."""
        return self._data_chain().make(pending)

    def count_made(self, seconds: float) -> None:
        """Records how long a sample took to make, for `plan`."""
        self._data_chain().count_made(seconds)

    def _transform(self, index: int) -> Any:
        return self.make(self.defer(index))

    def _data_chain(self) -> DataChain:
        """The current chain: users replace it, or put other transforms into it."""
        held: DataChain | None = getattr(self, "_held_chain", None)
        if held is None or not held.is_of(self.transform):
            held = self._held_chain = DataChain(self.transform)
        return held


class DataChain:
    """A data set's chain: the fast form if it gives the same result, otherwise run by MONAI.

    The part that is the same every time is safe to use from several threads; the rest is not, because random transforms
    store what they draw.

    Args:
        compose: the chain; a compiled one keeps its own settings.

    Attributes:
        chain: the fast form, or None if MONAI runs the chain.
        refusal: why MONAI runs it, in words; "" if it does not.
    """

    # No __dict__: MONAI's `set_rnd` looks for transforms in everything that a data set holds, and must seed them only
    # once, as the data set's `transform`.
    __slots__ = ("_compose", "_facts", "chain", "refusal")

    def __init__(self, compose: Compose) -> None:
        self._compose = compose
        self._facts = _facts(compose)
        self.chain, self.refusal = _chain_of(compose)

    def __reduce__(self) -> tuple[Any, ...]:
        return DataChain, (self._compose,)

    def is_of(self, compose: Compose) -> bool:
        """Whether this is still the chain: the same object, holding the same transforms."""
        return compose is self._compose and self._facts == _facts(compose)

    def fixed(self, item: Any, *, end: int | None = None) -> Any:
        """The item after the part that may be kept, or after the first `end` transforms of the `Compose`."""
        if end is None and self.chain is not None:
            return self.chain.fixed(item)
        stop = first_random(self._compose) if end is None else end
        return item if stop == 0 else self._compose(item, end=stop, threading=True)

    def defer(self, kept: Any, *, start: int | None = None, private: Callable[[Any], Any] = deep_copy) -> Any:
        """A kept item after the rest of the chain, drawn; making its voxels waits where possible.

        Args:
            kept: what `fixed` returned. It is only read.
            start: the first transform of the rest if `fixed` was given an `end`.
            private: a copy of a part of it that may be changed.
        """
        if self.chain is None:
            return self._by_monai(private(kept), start)
        if start is None:
            return self.chain.defer(kept, private=private)
        rest = self.chain.part(start)
        return rest.defer(rest.fixed(private(kept)))

    def make(self, pending: Any) -> Any:
        """What `defer` returned, with its voxels made."""
        return finish(pending) if self.chain is None else self.chain.make(pending)

    def count_made(self, seconds: float) -> None:
        """Records how long a sample took to make elsewhere."""
        if self.chain is not None:
            self.chain.count_made(seconds)

    def whole(self, item: Any) -> Any:
        """An item of the data after the whole chain, as `defer` returns it; a compiled chain has its own cache.

        As with MONAI, a transform that changes its input changes the item; a compiled chain does not.
        """
        if isinstance(self._compose, CompiledChain):
            return self._compose.defer(item)
        return self.defer(self.fixed(item), private=as_it_is)

    def plan(self) -> ChainPlan:
        """What happens to each transform, why, and what each has cost so far."""
        if isinstance(self._compose, CompiledChain):
            return self._compose.plan()
        if self.chain is None:
            return ChainPlan(rows=[], notes=[f"MONAI runs the chain: {self.refusal}"])
        return self.chain.plan()

    def fixed_content(self, *, end: int | None = None) -> list[Any]:
        """What determines the result of `fixed`: the transforms and the options that they run with."""
        if end is None and self.chain is not None:
            transforms = [stage.transform for stage in self.chain.fixed.stages]
        else:
            transforms = list(self._compose.transforms[: first_random(self._compose) if end is None else end])
        return [*transforms, {name: getattr(self._compose, name) for name in COMPOSE_OPTIONS}]

    def _by_monai(self, item: Any, start: int | None) -> Any:
        begin = first_random(self._compose) if start is None else start
        if begin is None:
            return item
        return self._compose(item) if begin == 0 else self._compose(item, start=begin)


def as_it_is(item: Any) -> Any:
    """The item itself, for `DataChain.defer` where nobody else holds it."""
    return item


def first_random(compose: Compose) -> int | None:
    """The place of the first transform whose result must not be kept, or None if there is none.

    As in MONAI, that is the first random transform, or the first that is not a MONAI transform. It is 0 for a chain
    that draws which transforms run (`OneOf`, `SomeOf`, `RandomOrder`), of which MONAI keeps one draw.
    """
    if isinstance(compose, (OneOf, SomeOf, RandomOrder)):
        return 0
    found: int | None = compose.get_index_of_first(is_random)
    return found


def _chain_of(compose: Compose) -> tuple[Chain | None, str]:
    if isinstance(compose, CompiledChain):
        return compose.chain, ""
    if plain_class(compose) not in CONTAINERS:
        return None, f"{type(compose).__name__} is a custom container"
    if reason := why_not_logged(compose):
        return None, reason
    try:
        return Chain(as_compose(compose)), ""
    except ChainError as error:
        return None, str(error)


def _facts(compose: Compose) -> tuple[Any, ...]:
    options = (compose.map_items, compose.unpack_items, compose.lazy, compose.log_stats)
    inner = [_facts(transform) for transform in compose.transforms if isinstance(transform, Compose)]
    return (*compose.transforms, *options, *inner)
