"""Which stretches belong to a step, a validation, a saving or the start of an epoch. Pure: stretches in, groups out.

A stretch learns if a backward ran in it, or a network in training mode with gradients. It evaluates if a network ran
and nothing learned: in evaluation mode, without gradients, or on batches of a loader that does not feed the training.
A validation begins with what prepared the first evaluating stretch (`eval()`, another loader's `iter` or fetch, else
the end of the last step) and ends with what prepares learning again (`train()`, the training loader's `iter` or fetch).
A network that runs without learning on a batch that is then learned from, such as a teacher, belongs to the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from .stretch import Stretch

Kind = Literal["step", "validation", "saving", "epoch start"]

_FETCHES = ("fetch", "first")
_PLAIN = ("step", "fetch", "batch")
_OPENINGS = ("iter", "ready", "first", "batch")


class Group(NamedTuple):
    """Stretches that belong together, in order; those of a step need not be neighbors."""

    kind: Kind
    stretches: list[Stretch]


def keys_of_training(stretches: Sequence[Stretch]) -> set[int]:
    """Loaders whose batches were learned from: fetched since the network last ran before it learned."""
    keys: set[int] = set()
    fetched: set[int] = set()
    for stretch in stretches:
        if stretch.label in _FETCHES and stretch.has_batch:
            fetched.add(stretch.key)
        if stretch.num_backwards:
            keys |= fetched
        if stretch.num_forwards:
            fetched = set()
    return keys


def divide(stretches: Sequence[Stretch], training: set[int], *, has_stepped: bool) -> list[Group]:
    """Groups in the order in which they began; the step, if any, is the last one.

    Args:
        stretches: since the last step's end.
        training: keys of loaders that are known to feed the training.
        has_stepped: whether the last stretch ended with an optimizer's step. If not, no group is a step, and what is
            not a validation, a saving or an epoch's start is left out.
    """
    if has_stepped and all(
        s.label in _PLAIN and not s.num_evaluating and (s.key < 0 or s.key in training) for s in stretches
    ):
        # Almost every step is like this; the shortcut saves 20 microseconds.
        return [Group("step", list(stretches))]
    keys = training | keys_of_training(stretches)
    kinds = _validations(stretches, keys, has_stepped)
    _mark_openings(stretches, keys, kinds)
    for index, stretch in enumerate(stretches):
        if stretch.label == "save":
            kinds[index] = "saving"
    groups: list[Group] = []
    step: list[Stretch] = []
    open_of: dict[str, list[Stretch]] = {}
    for stretch, kind in zip(stretches, kinds):
        if kind == "step":
            step.append(stretch)
            open_of.clear()
        elif kind == "saving" or kind not in open_of:
            groups.append(Group(kind, [stretch]))
            # A saving within a validation does not end it.
            if kind != "saving":
                open_of = {kind: groups[-1].stretches}
        else:
            open_of[kind].append(stretch)
    if has_stepped and step:
        groups.append(Group("step", step))
    return groups


def _validations(stretches: Sequence[Stretch], keys: set[int], has_stepped: bool) -> list[Kind]:
    kinds: list[Kind] = ["step"] * len(stretches)
    feeding = _feeding(stretches)
    last = len(stretches) - 1
    learns = [
        _learns(stretch, feeding[index], keys) or (has_stepped and index == last)
        for index, stretch in enumerate(stretches)
    ]
    begin = 0
    while begin <= last:
        stop = next((index for index in range(begin, last + 1) if learns[index]), last + 1)
        ran = [index for index in range(begin, stop) if stretches[index].num_forwards]
        if ran and not (stop <= last and _is_of_the_step(stretches, begin, ran[-1], stop, keys)):
            first = _first_of_validation(stretches, begin, ran[0], keys)
            for index in range(first, _end_of_validation(stretches, ran[-1], stop, keys)):
                kinds[index] = "validation"
        begin = stop + 1
    return kinds


def _feeding(stretches: Sequence[Stretch]) -> list[int]:
    """For each stretch, the loader that gave the last batch, -1 if none did."""
    current, answer = -1, []
    for stretch in stretches:
        if stretch.label in _FETCHES and stretch.has_batch:
            current = stretch.key
        answer.append(current)
    return answer


def _learns(stretch: Stretch, feeding: int, keys: set[int]) -> bool:
    if stretch.num_backwards:
        return True
    return stretch.num_learning > 0 and (feeding < 0 or not keys or feeding in keys)


def _is_of_the_step(stretches: Sequence[Stretch], begin: int, last: int, stop: int, keys: set[int]) -> bool:
    """Whether what ran without learning, such as a teacher, is part of the step that follows."""
    if any(stretches[index].label in _FETCHES and stretches[index].has_batch for index in range(last + 1, stop + 1)):
        return False
    if keys:
        # No new batch: learning uses the same one, unless it came from another loader.
        feeding = _feeding(stretches[: last + 1])[last]
        return feeding in keys
    return not any(stretches[index].label in ("eval", "train") for index in range(begin, stop + 1))


def _first_of_validation(stretches: Sequence[Stretch], begin: int, ran: int, keys: set[int]) -> int:
    for index in range(begin, ran + 1):
        stretch = stretches[index]
        if stretch.label == "eval" or (stretch.label in ("iter", *_FETCHES) and stretch.key not in keys):
            return index
    return ran if stretches[begin].label == "start" else begin


def _end_of_validation(stretches: Sequence[Stretch], ran: int, stop: int, keys: set[int]) -> int:
    for index in range(ran + 1, stop):
        stretch = stretches[index]
        if stretch.label == "train" or (stretch.label in ("iter", *_FETCHES) and stretch.key in keys):
            return index
    return stop


def _mark_openings(stretches: Sequence[Stretch], keys: set[int], kinds: list[Kind]) -> None:
    """An epoch's start: from a training loader's `iter` to its first batch, over several loaders in one loop."""
    index = 0
    while index < len(stretches):
        if (
            kinds[index] != "step"
            or stretches[index].label not in ("iter", "first")
            or stretches[index].key not in keys
        ):
            index += 1
            continue
        stop = index + 1
        for following in range(index + 1, len(stretches)):
            stretch = stretches[following]
            if stretch.label not in _OPENINGS or kinds[following] != "step":
                break
            if stretch.label in ("iter", "first"):
                stop = following + 1
            if stretch.num_forwards or stretch.num_backwards:
                break
        for inside in range(index, stop):
            kinds[inside] = "epoch start"
        index = stop
