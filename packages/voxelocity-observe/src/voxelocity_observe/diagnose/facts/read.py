"""From a recording's folder to facts: the merged files of all its processes. Torn lines and missing ends are tolerated.

A process that was killed leaves a file without its end; a file without a first event is ignored. What is there counts,
and `not_measured` names what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from voxelocity_observe.core.errors import InputError
from voxelocity_observe.diagnose.facts.process_file import RecordedProcess, read_process
from voxelocity_observe.diagnose.facts.program import FetchFacts, FileFacts, StackFacts, TransformFacts
from voxelocity_observe.diagnose.facts.whole import PARTS, ExperimentFacts, Facts, Pass, RankFacts

# Readable names of the experiments.
_STAGES = {
    "resident batch": "the step on batches that are there already",
    "loader": "the loader alone",
    "items": "the data set alone",
    "collate": "putting a batch together",
    "storage": "reading the files from storage",
    "copy": "copying a batch to the device",
}

ERRORS_FILE = "errors.txt"
"""In the recording's folder: what the recorder itself could not do."""

_MAX_ERROR_CHARACTERS = 500

T = TypeVar("T")
_MAX_LARGEST = 64


def read_facts(folder: Path | str) -> Facts:
    """All that a recording holds.

    Args:
        folder: the one given to `recording_environment` or `record_here`.

    Raises:
        InputError: the folder does not exist or cannot be read, or it holds no recorded Python program.
    """
    path = Path(folder)
    try:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else None
    except OSError as error:
        raise InputError(
            f"diagnosis.facts: cannot read {path} ({error.strerror}); name the folder of a recording"
        ) from None
    if files is None:
        raise InputError(f"diagnosis.facts: {path} is not a folder; name the folder of a recording")
    errors = _errors_of(path)
    processes = [process for process in map(read_process, files) if process.all("process")]
    if not processes:
        raise InputError(
            f"diagnosis.facts: no Python program was recorded in {path}: the command starts no Python, or one with "
            f"-I, -E or -S, or empties PYTHONPATH; start it without these{f' ({errors[0]})' if errors else ''}"
        )
    main = min(processes, key=_rank_as_main)
    workers = [p for p in processes if p.facts.role == "worker" and _is_of(p, main, processes)]
    unseen = dict.fromkeys(told.text for process in (main, *workers) for told in process.all("unseen"))
    facts = _merged(main, workers, [*_not_measured(main, processes), *unseen, *errors])
    return replace(facts, ranks=_ranks(processes))


def _ranks(processes: Sequence[RecordedProcess]) -> tuple[RankFacts, ...]:
    """Each rank that made steps; none if there was only one."""
    found = []
    for process in processes:
        steps = [step for step in process.all("step") if step.phase == "watched"]
        if process.facts.role == "main" and process.facts.world_size > 1 and steps:
            parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
            for part, seconds in (item for step in steps for item in step.parts.items()):
                parts[part] += seconds
            found.append(RankFacts(rank=process.facts.rank, num_steps=len(steps), parts=parts))
    return tuple(sorted(found, key=lambda one: one.rank)) if len(found) > 1 else ()


def _rank_as_main(process: RecordedProcess) -> tuple[bool, bool, int, bool, int, float]:
    """A sort key: first the one that made steps, with the lowest rank; otherwise the one that got furthest."""
    facts = process.facts
    is_worker, has_steps = facts.role == "worker", bool(process.all("step"))
    has_torch = bool(process.all("end")) or "torch" in facts.versions
    return is_worker, not has_steps, facts.rank if has_steps else 0, not has_torch, -len(process.records), facts.pid


def _is_of(worker: RecordedProcess, main: RecordedProcess, processes: Sequence[RecordedProcess]) -> bool:
    """Whether it works for this process, also through a fork server, and for no other recorded one."""
    parents = {process.facts.pid: process for process in processes if process is not worker}
    parent = parents.get(worker.facts.parent_pid)
    while parent is not None and parent is not main and not parent.all("step"):
        parents.pop(parent.facts.pid)
        parent = parents.get(parent.facts.parent_pid)
    return parent is None or parent is main


def _merged(main: RecordedProcess, workers: Sequence[RecordedProcess], not_measured: Sequence[str]) -> Facts:
    everyone = [main, *workers]
    passes: list[Pass] = [*main.all("pass")]
    is_open = main.last("open pass")
    if is_open is not None and is_open.start_s > max(
        [p.start_s for p in passes if p.kind == "validation"], default=-1.0
    ):
        passes.append(is_open)
    return Facts(
        command=tuple(main.facts.argv),
        main=main.facts,
        seconds=main.last_s,
        ended=main.last("end"),
        steps=tuple(main.all("step")),
        passes=tuple(sorted(passes, key=lambda p: p.start_s)),
        loaders=tuple(last_of_each(main.all("loader"), "key")),
        fetches=tuple(joined_fetches(everyone)),
        transforms=tuple(joined_transforms(everyone)),
        files=joined_files(everyone),
        stacks=tuple(joined_stacks(everyone)),
        syncs=tuple(last_of_each(main.all("sync"), "call", "where")),
        calls=tuple(last_of_each(main.all("call"), "call", "where")),
        settings=main.last("settings"),
        network=main.last("network"),
        optimizer=main.last("optimizer"),
        compiled=main.last("compile"),
        memory=main.last("memory"),
        held=tuple(last_of_each(main.all("held"), "name", "where")),
        experiments=tuple(last_of_each(main.all("experiment"), "name")),
        cost=main.last("cost"),
        workers_cost_s=sum(worker.last("cost").seconds for worker in workers if worker.last("cost")),
        core_wait=main.last("core wait"),
        not_measured=tuple(not_measured),
        refused_writes=tuple(main.all("refused")),
        environment=dict(main.facts.versions),
    )


def _not_measured(main: RecordedProcess, processes: Sequence[RecordedProcess]) -> list[str]:
    notes = []
    ended, steps = main.last("end"), main.all("step")
    num_counted = sum(step.phase == "watched" for step in steps)
    if "torch" not in main.facts.versions and not ended:
        notes.append("steps: the program never imported torch")
    elif not steps:
        notes.append("steps: no torch optimizer made a step while the program was watched")
    elif not num_counted:
        notes.append(
            f"steps: the program ended after {len(steps)} warm-up {'step' if len(steps) == 1 else 'steps'}; "
            "let it train longer"
        )
    if not ended and "torch" in main.facts.versions:
        notes.append("the end: the program was killed, or ended by os._exit, and up to the last second is missing")
    if not main.all("experiment"):
        notes.append(
            "the ceiling: no experiment was made because "
            + ("none was asked for" if ended and ended.reason == "limit" else "the program ended by itself before")
        )
    notes += _not_done(last_of_each(main.all("experiment"), "name"))
    others = {p.facts.rank for p in processes if p.facts.role == "main" and p.all("step")} - {main.facts.rank}
    if others:
        notes.append(
            f"{'rank' if len(others) == 1 else 'ranks'} {', '.join(map(str, sorted(others)))}: recorded too; "
            f"this report is about rank {main.facts.rank}"
        )
    return notes


def _not_done(experiments: Sequence[ExperimentFacts]) -> list[str]:
    """What was not tried alone, one line per reason."""
    names: dict[str, list[str]] = {}
    for one in experiments:
        if not one.seconds:
            # "storage, page cache" is part of the "storage" experiment.
            name = one.name.partition(",")[0]
            names.setdefault(one.note, []).append(_STAGES.get(name, name))
    return [f"{', '.join(dict.fromkeys(those))}: {note}" for note, those in names.items()]


def _errors_of(folder: Path) -> list[str]:
    """What the recorder could not do: the first line of its errors, the last one, and where all of them are."""
    try:
        text = (folder / ERRORS_FILE).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return []
    if not text:
        return []
    last = text.splitlines()[-1]
    return [
        f"the recorder: {text.splitlines()[0]}: {last}"[:_MAX_ERROR_CHARACTERS]
        + f" (all of it in {folder / ERRORS_FILE})"
    ]


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
