"""From a recording's folder to facts: the merged files of all its processes. Torn lines and missing ends are tolerated.

A process that was killed leaves a file without its end; a file without a first event is ignored. What is there counts,
and `not_measured` names what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.quantities import count_text
from voxelocity_observe.diagnose.facts.events import KEPT
from voxelocity_observe.diagnose.facts.process_file import RecordedProcess, read_process
from voxelocity_observe.diagnose.facts.whole import PARTS, ExperimentFacts, Facts, Pass, RankFacts

# Readable names of the experiments.
_STAGES = {
    "resident batch": "the step on batches in memory",
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
    return tuple(sorted(found, key=lambda rank: rank.rank)) if len(found) > 1 else ()


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
    passes: list[Pass] = [*main.all("pass")]
    is_open = main.last("open pass")
    if is_open is not None and is_open.start_s > max(
        [p.start_s for p in passes if p.kind == "validation"], default=-1.0
    ):
        passes.append(is_open)
    found: dict[str, Any] = {
        "command": tuple(main.facts.argv),
        "main": main.facts,
        "seconds": main.last_s,
        "workers_cost_s": sum(worker.last("cost").seconds for worker in workers if worker.last("cost")),
        "not_measured": tuple(not_measured),
        "environment": dict(main.facts.versions),
    }
    return Facts(**_recorded(main, workers), **found, passes=tuple(sorted(passes, key=lambda p: p.start_s)))


def _recorded(main: RecordedProcess, workers: Sequence[RecordedProcess]) -> dict[str, Any]:
    """The fields of `Facts` that consist of records, but `passes`."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(Facts).items():
        for kind in KEPT.keys() & set(get_args(hint)) - {Pass}:
            is_sequence = get_origin(hint) is Sequence
            records = _counted(kind, main, workers, all_count=is_sequence and not KEPT[kind].last_of)
            found[name] = tuple(records) if is_sequence else records[0] if records else None
    return found


def _counted(
    kind: type[Any], main: RecordedProcess, workers: Sequence[RecordedProcess], *, all_count: bool
) -> list[Any]:
    """The records of a class that count, joined and in order."""
    kept = KEPT[kind]
    if kept.join is None:
        records = main.all(*kept.events)
        return records if all_count else _last_of_each(records, *kept.last_of)
    by_key: dict[Any, list[Any]] = {}
    for process in (main, *workers):
        for record in _last_of_each(process.all(*kept.events), *kept.last_of):
            by_key.setdefault(_key(record, kept.last_of), []).append(record)
    joined = [kept.join(records) for records in by_key.values()]
    return sorted(joined, key=kept.order) if kept.order else joined


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
            "the ceiling: no experiment was done because "
            + ("none was requested" if ended and ended.reason == "limit" else "the program ended by itself before")
        )
    notes += _not_done(_last_of_each(main.all("experiment"), "name"))
    trainings = [process for process in processes if process.facts.role == "main" and process.all("step")]
    others = {process.facts.rank for process in trainings} - {main.facts.rank}
    if others:
        notes.append(
            f"{'rank' if len(others) == 1 else 'ranks'} {', '.join(map(str, sorted(others)))}: also recorded; this "
            f"report is about rank {main.facts.rank}"
        )
    more = sum(process is not main and process.facts.rank == main.facts.rank for process in trainings)
    if more:
        notes.append(
            f"{count_text(more, 'more training')}: also recorded; this report is about process {main.facts.pid}"
        )
    return notes


def _not_done(experiments: Sequence[ExperimentFacts]) -> list[str]:
    """What was not tried alone, one line per reason."""
    names: dict[str, list[str]] = {}
    for experiment in experiments:
        if not experiment.seconds:
            # "storage, page cache" is part of the "storage" experiment.
            name = experiment.name.partition(",")[0]
            names.setdefault(experiment.note, []).append(_STAGES.get(name, name))
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


def _last_of_each(records: Iterable[T], *names: str) -> list[T]:
    """The last record of each key, in the order in which the keys were first met."""
    last: dict[Any, T] = {}
    for record in records:
        last[_key(record, names)] = record
    return list(last.values())


def _key(record: Any, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(record, name) for name in names)
