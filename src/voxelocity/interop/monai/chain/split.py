"""Splits a chain into what is the same every time and what is drawn each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from monai.transforms.compose import Compose
from monai.transforms.traits import RandomizableTrait
from monai.transforms.transform import Transform

from voxelocity.core.errors import InputError
from voxelocity.interop.monai.ranges import plain_class


class ChainError(InputError):
    """A chain of transforms cannot be split or compiled."""


@dataclass(frozen=True, kw_only=True)
class Split:
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


def split(compose: Compose) -> Split:
    """The chain split at its first random transform.

    Raises:
        ChainError: it resamples lazily or unpacks its items, so its transforms do not run one after the other, or it
            logs their inputs.
    """
    if compose.log_stats is not False:
        raise ChainError(
            f"voxelocity.monai.compile: a Compose with log_stats={compose.log_stats!r} is not compiled: the "
            "input of a failed transform cannot be logged, because it is not made yet. Set log_stats=False, or use "
            "MONAI's own"
        )
    for flag, value, why in (
        ("lazy", compose.lazy, "its transforms are then applied together, later, and no part of them can be cached"),
        ("unpack_items", compose.unpack_items, "what one transform passes to the next is then not an item"),
    ):
        if value or value is None:
            raise ChainError(
                f"voxelocity.monai.compile: a Compose with {flag}={value} cannot be split: {why}. Set {flag}=False "
                "(a compiled chain makes neighboring spatial transforms in one pass anyway), or use MONAI's own"
            )
    transforms = tuple(_flat(compose))
    first = next((n for n, transform in enumerate(transforms) if is_random(transform)), len(transforms))
    return Split(fixed=transforms[:first], random=transforms[first:], map_items=compose.map_items)


def _flat(compose: Compose) -> Iterator[Any]:
    # Not `Compose.flatten`, which reseeds every transform.
    for transform in compose.transforms:
        if (
            plain_class(transform) is Compose
            and transform.map_items == compose.map_items
            and not transform.unpack_items
        ):
            yield from _flat(transform) if transform.lazy is False else [transform]
        else:
            yield transform
