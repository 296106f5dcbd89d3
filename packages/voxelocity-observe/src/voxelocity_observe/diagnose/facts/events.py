"""How events become a field of `Facts`: each class of records declares the events that it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

RECORDS: dict[str, type[Any]] = {}
"""The class of each event's records, which have its object field by field."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Which records of a class count; parameters as of `event`."""

    events: tuple[str, ...]
    last_of: tuple[str, ...]
    join: Callable[[Sequence[Any]], Any] | None
    order: Callable[[Any], float] | None


KEPT: dict[type[Any], Kept] = {}
"""By class of records."""


def event(
    *names: str, last_of: tuple[str, ...] = (), order: Callable[[Any], float] | None = None
) -> Callable[[type[T]], type[T]]:
    """Declares a class of records of these events, of which the field of `Facts` with this class in its type consists.

    They are records of the process that trains. If the class has a static method `join`, they are made from those of
    that process and its workers: `join` gets the records with one key, at least one, and returns a record.

    Args:
        names: of the events.
        last_of: fields of the record, the key: the last record of each key counts. If there are none, all records of a
            process count where the field is a sequence, and the last one where it is not.
        order: what a sequence is sorted by; by the first record of each key if not given.
    """

    def declare(kind: type[T]) -> type[T]:
        assert not RECORDS.keys() & names, f"{names}: another class holds these events"
        RECORDS.update(dict.fromkeys(names, kind))
        KEPT[kind] = Kept(events=names, last_of=last_of, join=getattr(kind, "join", None), order=order)
        return kind

    return declare
