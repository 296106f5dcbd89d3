"""Records of several processes merged: the workers of a loader and the program itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from voxelocity.diagnosis.facts.data import FetchFacts, FileFacts, TransformFacts
from voxelocity.diagnosis.facts.process_file import RecordedProcess
from voxelocity.diagnosis.facts.program import StackFacts

T = TypeVar("T")

_MAX_LARGEST = 64


def last_of_each(records: Iterable[T], *names: str) -> list[T]:
    """The last record of each key, in the order in which the keys were first met."""
    last: dict[Any, T] = {}
    for record in records:
        last[tuple(getattr(record, name) for name in names)] = record
    return list(last.values())


def joined_fetches(processes: Sequence[RecordedProcess]) -> list[FetchFacts]:
    """One per (loader, worker): workers of the same number follow each other where each epoch starts new ones."""
    joined: dict[tuple[int, int], FetchFacts] = {}
    for process in processes:
        for fetch in last_of_each(process.all("fetch"), "key", "worker"):
            before = joined.get((fetch.key, fetch.worker))
            joined[fetch.key, fetch.worker] = fetch if before is None else _sum(before, fetch)
    return list(joined.values())


def _sum(a: FetchFacts, b: FetchFacts) -> FetchFacts:
    return replace(
        b,
        num_batches=a.num_batches + b.num_batches,
        num_items=a.num_items + b.num_items,
        item_s=a.item_s + b.item_s,
        item_cpu_s=a.item_cpu_s + b.item_cpu_s,
        collate_s=a.collate_s + b.collate_s,
        collate_cpu_s=a.collate_cpu_s + b.collate_cpu_s,
        batch_s=(*a.batch_s, *b.batch_s)[-1000:],
        starts_s=(*a.starts_s, *b.starts_s),
    )


def joined_transforms(processes: Sequence[RecordedProcess]) -> list[TransformFacts]:
    """One per transform, in the order in which they were first met."""
    joined: dict[tuple[str, str], TransformFacts] = {}
    for process in processes:
        for found in last_of_each(process.all("transform"), "name", "library"):
            before = joined.get((found.name, found.library))
            joined[found.name, found.library] = (
                found
                if before is None
                else replace(
                    before,
                    num_calls=before.num_calls + found.num_calls,
                    self_s=before.self_s + found.self_s,
                    self_cpu_s=before.self_cpu_s + found.self_cpu_s,
                    is_random=before.is_random or found.is_random,
                    order=min(before.order, found.order),
                )
            )
    return sorted(joined.values(), key=lambda transform: transform.order)


def joined_files(processes: Sequence[RecordedProcess]) -> FileFacts | None:
    """Over all processes. A file that several have read counts once for each: they do not know of each other."""
    found: list[FileFacts] = [process.last("files") for process in processes if process.last("files") is not None]
    if not found:
        return None
    kinds: dict[str, int] = {}
    for files in found:
        for kind, count in files.kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
    largest = dict.fromkeys(path for files in found for path in files.largest)
    # Workers share the files of a data set: at least as many as the one that saw most.
    num_files = max(max(files.num_files for files in found), len(largest))
    num_told = max(1, sum(files.num_files for files in found))
    return FileFacts(
        kinds=kinds,
        num_opens=sum(files.num_opens for files in found),
        num_files=num_files,
        read_bytes=sum(files.read_bytes for files in found),
        largest=tuple(largest)[:_MAX_LARGEST],
        unpacked_bytes=round(sum(files.unpacked_bytes for files in found) * num_files / num_told),
        num_uses=sum(files.num_uses for files in found),
    )


def joined_stacks(processes: Sequence[RecordedProcess]) -> list[StackFacts]:
    """One per place, most samples first."""
    names = ("part", "where", "kind", "function")
    joined: dict[tuple[Any, ...], StackFacts] = {}
    for process in processes:
        for found in last_of_each(process.all("stacks"), *names):
            key = tuple(getattr(found, name) for name in names)
            before = joined.get(key)
            num_samples = found.num_samples + (0 if before is None else before.num_samples)
            joined[key] = replace(found, num_samples=num_samples)
    return sorted(joined.values(), key=lambda stack: -stack.num_samples)
