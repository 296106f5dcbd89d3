"""MONAI's containers of transforms: which of their transforms run this time, drawn as the containers draw it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monai.transforms.compose import Compose, OneOf, RandomOrder, SomeOf

from voxelocity.interop.monai.ranges import plain_class


def is_container(transform: Any) -> bool:
    """Whether `drawn` knows it: one of MONAI's own four, without arguments that only MONAI's own run supports."""
    return plain_class(transform) in (Compose, OneOf, RandomOrder, SomeOf) and why_not(transform) == ""


def why_not(container: Compose) -> str:
    """Why its transforms cannot be run one by one, in words; "" if they can."""
    if container.lazy or (
        container.lazy is None and any(getattr(inner, "lazy", False) for inner in container.transforms)
    ):
        return "it is lazy: its transforms are resampled together, by MONAI"
    if container.unpack_items:
        return "it unpacks its items"
    return ""


def drawn(container: Compose) -> Sequence[Any]:
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
