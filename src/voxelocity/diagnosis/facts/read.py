"""A recording's folder to facts: the files of all its processes, merged. Torn lines and missing ends are put up with.

A process that was killed leaves a file without its end, and a file without a first event is that of no process; what is
there counts, and what is missing is told in `not_measured`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from voxelocity.core.errors import InputError
from voxelocity.diagnosis.facts.records import (
    CallFacts,
    CompileFacts,
    CoreWait,
    Ending,
    ExperimentFacts,
    FetchFacts,
    FileFacts,
    LoaderFacts,
    NetworkFacts,
    OptimizerFacts,
    OwnCost,
    Pass,
    ProcessFacts,
    SettingFacts,
    StackFacts,
    Step,
    SyncFacts,
    TransformFacts,
)
from voxelocity.diagnosis.facts.whole import Facts

T = TypeVar("T")


@dataclass(frozen=True)
class Unseen:
    """Event `unseen`: something that could not be seen, and why, in words."""

    text: str


ERRORS_FILE = "errors.txt"
"""Of the recording's folder: what the recorder itself could not do."""

_MAX_ERROR_CHARACTERS = 500
_MAX_LARGEST = 64

_RECORDS: Mapping[str, Any] = {
    "process": ProcessFacts,
    "step": Step,
    "pass": Pass,
    "open pass": Pass,
    "loader": LoaderFacts,
    "fetch": FetchFacts,
    "transform": TransformFacts,
    "files": FileFacts,
    "stacks": StackFacts,
    "sync": SyncFacts,
    "settings": SettingFacts,
    "network": NetworkFacts,
    "optimizer": OptimizerFacts,
    "compile": CompileFacts,
    "call": CallFacts,
    "experiment": ExperimentFacts,
    "cost": OwnCost,
    "core wait": CoreWait,
    "end": Ending,
    "unseen": Unseen,
}
"""The record of each event, field by field."""


@dataclass
class _Process:
    """One file: its records by event, oldest first."""

    path: Path
    records: dict[str, list[Any]] = field(default_factory=dict)
    last_s: float = 0.0

    def all(self, event: str) -> list[Any]:
        return self.records.get(event, [])

    def last(self, event: str) -> Any:
        found = self.all(event)
        return found[-1] if found else None

    @property
    def facts(self) -> ProcessFacts:
        # Written when the process begins, and again at its end, when rank and versions are known.
        found = self.last("process")
        assert isinstance(found, ProcessFacts)
        return found


def read_facts(folder: Path | str, *, command: Sequence[str] = ()) -> Facts:
    """All that a recording tells.

    Args:
        folder: that `recording_environment` or `record_here` was given.
        command: that was started; the program's own arguments where it is not given.

    Raises:
        InputError: the folder is none or cannot be read, or no Python program in it was recorded.
    """
    path = Path(folder)
    try:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else None
    except OSError as error:
        raise InputError(
            f"diagnosis.facts: cannot read {path} ({error.strerror}); name the folder of a recording"
        ) from None
    if files is None:
        raise InputError(f"diagnosis.facts: {path} is no folder; name the folder of a recording")
    errors = _errors_of(path)
    processes = [process for process in map(_read, files) if process.all("process")]
    if not processes:
        raise InputError(
            f"diagnosis.facts: no Python program was recorded in {path}: the command starts no Python, or one with "
            f"-I, -E or -S, or empties PYTHONPATH; start it without these{f' ({errors[0]})' if errors else ''}"
        )
    main = min(processes, key=_rank_as_main)
    workers = [p for p in processes if p.facts.role == "worker" and _is_of(p, main, processes)]
    unseen = dict.fromkeys(told.text for process in (main, *workers) for told in process.all("unseen"))
    return _merged(main, workers, command, [*_not_measured(main, processes), *unseen, *errors])


def _rank_as_main(process: _Process) -> tuple[bool, bool, int, bool, int, float]:
    """The one that stepped, of these the lowest rank; else the one that came farthest."""
    facts = process.facts
    is_worker, has_steps = facts.role == "worker", bool(process.all("step"))
    has_torch = bool(process.all("end")) or "torch" in facts.versions
    return is_worker, not has_steps, facts.rank if has_steps else 0, not has_torch, -len(process.records), facts.pid


def _is_of(worker: _Process, main: _Process, processes: Sequence[_Process]) -> bool:
    """Whether it works for this process, by way of a fork server too: for no other one that is recorded."""
    parents = {process.facts.pid: process for process in processes if process is not worker}
    parent = parents.get(worker.facts.parent_pid)
    while parent is not None and parent is not main and not parent.all("step"):
        parents.pop(parent.facts.pid)
        parent = parents.get(parent.facts.parent_pid)
    return parent is None or parent is main


def _read(path: Path) -> _Process:
    process = _Process(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return process
    for line in lines:
        try:
            event = json.loads(line)
            name, time_s = event.pop("event"), float(event.pop("time_s"))
        except (ValueError, TypeError, KeyError, AttributeError):
            # The line was torn when the process was killed or the disk was full.
            continue
        process.last_s = max(process.last_s, time_s)
        record = _record(_RECORDS.get(name), {**event, "time_s": time_s} if name == "end" else event)
        if record is not None:
            process.records.setdefault(name, []).append(record)
    return process


def _record(kind: Any, values: Mapping[str, Any]) -> Any:
    """The record with these values, lists made tuples; None where a field is missing or the event is another's."""
    if kind is None:
        return None
    known = {f.name: f for f in fields(kind)}
    needed = {name for name, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    if not needed <= values.keys():
        return None
    return kind(**{name: _frozen(value) for name, value in values.items() if name in known})


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(inner) for inner in value)
    return value


def _merged(main: _Process, workers: Sequence[_Process], command: Sequence[str], not_measured: Sequence[str]) -> Facts:
    everyone = [main, *workers]
    passes: list[Pass] = [*main.all("pass")]
    is_open = main.last("open pass")
    if is_open is not None and is_open.start_s > max(
        [p.start_s for p in passes if p.kind == "validation"], default=-1.0
    ):
        passes.append(is_open)
    return Facts(
        command=tuple(command) or tuple(main.facts.argv),
        main=main.facts,
        seconds=main.last_s,
        ended=main.last("end"),
        steps=tuple(main.all("step")),
        passes=tuple(sorted(passes, key=lambda p: p.start_s)),
        loaders=tuple(_last_of_each(main.all("loader"), "key")),
        fetches=tuple(_joined_fetches(everyone)),
        transforms=tuple(_joined_transforms(everyone)),
        files=_joined_files(everyone),
        stacks=tuple(_joined_stacks(everyone)),
        syncs=tuple(_last_of_each(main.all("sync"), "call", "where")),
        calls=tuple(_last_of_each(main.all("call"), "call", "where")),
        settings=main.last("settings"),
        network=main.last("network"),
        optimizer=main.last("optimizer"),
        compiled=main.last("compile"),
        experiments=tuple(_last_of_each(main.all("experiment"), "name")),
        cost=main.last("cost"),
        core_wait=main.last("core wait"),
        not_measured=tuple(not_measured),
        environment=dict(main.facts.versions),
    )


def _last_of_each(records: Iterable[T], *names: str) -> list[T]:
    """The last record of each key, in the order in which the keys were first met."""
    last: dict[Any, T] = {}
    for record in records:
        last[tuple(getattr(record, name) for name in names)] = record
    return list(last.values())


def _joined_fetches(processes: Sequence[_Process]) -> list[FetchFacts]:
    """One a (loader, worker): workers of the same number follow each other where they are started anew each epoch."""
    joined: dict[tuple[int, int], FetchFacts] = {}
    for process in processes:
        for fetch in _last_of_each(process.all("fetch"), "key", "worker"):
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
    )


def _joined_transforms(processes: Sequence[_Process]) -> list[TransformFacts]:
    joined: dict[tuple[str, str], TransformFacts] = {}
    for process in processes:
        for found in _last_of_each(process.all("transform"), "name", "library"):
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


def _joined_files(processes: Sequence[_Process]) -> FileFacts | None:
    """Over all processes. Each file that several have read counts once for each, as they do not know each other."""
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


def _joined_stacks(processes: Sequence[_Process]) -> list[StackFacts]:
    names = ("part", "where", "kind", "function")
    joined: dict[tuple[Any, ...], StackFacts] = {}
    for process in processes:
        for found in _last_of_each(process.all("stacks"), *names):
            key = tuple(getattr(found, name) for name in names)
            before = joined.get(key)
            num_samples = found.num_samples + (0 if before is None else before.num_samples)
            joined[key] = replace(found, num_samples=num_samples)
    return sorted(joined.values(), key=lambda stack: -stack.num_samples)


def _not_measured(main: _Process, processes: Sequence[_Process]) -> list[str]:
    notes = []
    ended, steps = main.last("end"), main.all("step")
    num_counted = sum(step.phase == "watched" for step in steps)
    if "torch" not in main.facts.versions and not ended:
        notes.append("steps: the program never imported torch")
    elif not steps:
        notes.append("steps: no optimiser of torch stepped while the program was watched")
    elif not num_counted:
        notes.append(f"steps: the program ended after {len(steps)} steps, all of them warm-up; let it train longer")
    if not ended and "torch" in main.facts.versions:
        notes.append("the end: the program was killed, and up to the last second of what was seen is missing")
    if not main.all("experiment"):
        notes.append(
            "the ceiling: no experiment was made, as "
            + ("they were not asked for" if ended and ended.reason == "limit" else "the program ended by itself before")
        )
    notes += _not_done(_last_of_each(main.all("experiment"), "name"))
    others = {p.facts.rank for p in processes if p.facts.role == "main" and p.all("step")} - {main.facts.rank}
    if others:
        notes.append(
            f"ranks {', '.join(map(str, sorted(others)))}: recorded too; what is told is rank {main.facts.rank}"
        )
    return notes


def _not_done(experiments: Sequence[ExperimentFacts]) -> list[str]:
    """What was not tried alone, each reason once."""
    names: dict[str, list[str]] = {}
    for one in experiments:
        if not one.seconds:
            names.setdefault(one.note, []).append(one.name)
    return [f"{', '.join(those)}: {note}" for note, those in names.items()]


def _errors_of(folder: Path) -> list[str]:
    """What the recorder could not do, the first one told in words, the rest counted."""
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
