"""What a tuning searches: knobs with their choices."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxelocity_observe.core.errors import ConfigError, did_you_mean
from voxelocity_observe.core.plain import plain_data

Settings = Mapping[str, Any]
"""A value for each knob, by its name."""


@dataclass(frozen=True, kw_only=True)
class Knob:
    """Something that can be set, with the values to choose from.

    Attributes:
        name: unique among the knobs of a study.
        choices: plain values, each once. Of a knob that grows memory, numbers in ascending order.
        default: one of them, where the search begins.
        grows_memory: whether a larger value takes more memory and changes nothing else that could make a trial fail:
            the largest that fits is found by bisection.
    """

    name: str
    choices: tuple[Any, ...]
    default: Any
    grows_memory: bool = False

    def __post_init__(self) -> None:
        if not self.choices or len({repr(choice) for choice in self.choices}) < len(self.choices):
            raise ConfigError(f"tune: {self.name} has the choices {list(self.choices)}; give at least one, each once")
        if self.default not in self.choices:
            raise ConfigError(f"tune: {self.name} begins at {self.default!r}, which is none of {list(self.choices)}")
        if self.grows_memory and list(self.choices) != sorted(self.choices):
            raise ConfigError(f"tune: {self.name} grows memory, so {list(self.choices)} must be in ascending order")
        plain_data(list(self.choices), where=f"tune: {self.name}")

    @property
    def is_open(self) -> bool:
        """Whether there is anything to choose."""
        return len(self.choices) > 1


def sizes(low: int, high: int, *, default: int) -> tuple[int, ...]:
    """Sizes from `low` to `high`, both included: powers of two between them, and the default.

    Raises:
        ConfigError: the range is empty or begins below 1, or the default is outside of it.
    """
    if not 1 <= low <= high:
        raise ConfigError(f"tune: the range {low} to {high} is empty or begins below 1; give [least, most]")
    if not low <= default <= high:
        raise ConfigError(f"tune: the value {default} is outside of the range {low} to {high}; widen the range")
    powers = itertools.takewhile(lambda size: size < high, (2**exponent for exponent in itertools.count()))
    return tuple(sorted({low, high, default, *(size for size in powers if size > low)}))


def default_settings(knobs: Sequence[Knob]) -> dict[str, Any]:
    """Where a search begins."""
    return {knob.name: knob.default for knob in knobs}


def only(knobs: Sequence[Knob], names: Sequence[str]) -> tuple[Knob, ...]:
    """The knobs, of which only those named are searched; the others stay at their default.

    Raises:
        ConfigError: a name is not that of a knob; the nearest one is named.
    """
    known = [knob.name for knob in knobs]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"; choose from {', '.join(known)}"
            raise ConfigError(f"tune: '{name}' cannot be searched here{hint}")
    return tuple(
        knob if knob.name in names else Knob(name=knob.name, choices=(knob.default,), default=knob.default)
        for knob in knobs
    )


def is_hopeless(settings: Settings, failed: Settings, knobs: Sequence[Knob]) -> bool:
    """Whether these settings need at least the memory of others that ran out of it, so need not be tried."""
    return all(
        settings[knob.name] >= failed[knob.name] if knob.grows_memory else settings[knob.name] == failed[knob.name]
        for knob in knobs
    )


def single_changes(knobs: Sequence[Knob], start: Settings) -> list[dict[str, Any]]:
    """The settings with one other value each, the knobs alternating."""
    others = {knob.name: [choice for choice in knob.choices if choice != start[knob.name]] for knob in knobs}
    rounds = itertools.zip_longest(*([(name, value) for value in values] for name, values in others.items()))
    return [{**start, change[0]: change[1]} for candidates in rounds for change in candidates if change is not None]
