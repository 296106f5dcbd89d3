"""Where a chain of transforms is run: its part before the first random transform, and the rest.

Every data set of `interop.monai` runs its chain through these functions and in no other way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monai.transforms import Compose, OneOf, RandomizableTrait, RandomOrder, SomeOf, Transform

from voxelocity.interop.monai.fingerprint import COMPOSE_OPTIONS


def first_random(compose: Compose) -> int | None:
    """The place of the first transform whose result must not be kept, or None where there is none.

    That is the first random one, or the first that is no MONAI transform, as MONAI has it; and 0 for a chain that as a
    whole draws what it does (`OneOf`, `SomeOf`, `RandomOrder`), of which MONAI keeps one draw.
    """
    if isinstance(compose, (OneOf, SomeOf, RandomOrder)):
        return 0
    found: int | None = compose.get_index_of_first(_is_not_to_be_kept)
    return found


def run_fixed(compose: Compose, item: Any, *, end: int | None = None) -> Any:
    """The item after the part that may be kept, or after the first `end` transforms.

    Safe in several threads at once: a transform that changes itself (`ThreadUnsafe`) is copied for the item.
    """
    stop = first_random(compose) if end is None else end
    return item if stop == 0 else compose(item, end=stop, threading=True)


def run_random(compose: Compose, item: Any, *, start: int | None = None) -> Any:
    """A kept item after the rest of the chain, from its first random transform or from `start`.

    Not safe in several threads at once, as MONAI's random transforms keep what they draw in themselves.
    """
    begin = first_random(compose) if start is None else start
    if begin is None:
        return item
    return compose(item) if begin == 0 else compose(item, start=begin)


def run_whole(compose: Compose, item: Any) -> Any:
    """An item after the whole chain, of which nothing is kept."""
    return compose(item)


def fixed_content(compose: Compose, *, end: int | None = None) -> list[Any]:
    """What decides on the result of `run_fixed`: the transforms and the options with which they are run."""
    stop = first_random(compose) if end is None else end
    return [*compose.transforms[:stop], {name: getattr(compose, name) for name in COMPOSE_OPTIONS}]


def _is_not_to_be_kept(transform: Callable[..., Any]) -> bool:
    return isinstance(transform, RandomizableTrait) or not isinstance(transform, Transform)
