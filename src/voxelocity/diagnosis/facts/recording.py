"""The recording itself: its process, what it tried, what it cost and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """Event `process`: one per file, its first.

    Attributes:
        role: "main" runs the training, "worker" makes items for it.
        rank: rank in a distributed training, 0 otherwise.
        num_local_ranks: ranks on this machine, as far as known.
        began_s: when it was started, on the machine's monotonic clock; None where unknown.
        versions: package name to version, of what the program has imported when it ends.
    """

    pid: int
    parent_pid: int
    role: Literal["main", "worker"]
    rank: int = 0
    world_size: int = 1
    num_local_ranks: int = 1
    began_s: float | None = None
    argv: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ExperimentFacts:
    """Event `experiment`: one thing alone, in the program itself after the counted steps.

    Attributes:
        name: "resident batch" (the step without data), "loader" (batches without the step), "items" (the data set in
            one thread), "collate", "storage" (the files read again, not from the page cache, and nothing done with
            them), "storage, page cache", "copy".
        unit: "step", "batch", "item", "byte".
        seconds: each repeat's seconds for one unit.
        note: what the reader must know, or why it could not be done (then `seconds` is empty).
    """

    name: str
    unit: str
    seconds: Sequence[float]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class OwnCost:
    """Event `cost`: what watching took: seconds in the recorder's own code while steps were counted, and their span.

    In a loader's worker: CPU seconds, and the worker's lifetime.
    """

    seconds: float
    of_s: float


@dataclass(frozen=True, kw_only=True)
class CoreWait:
    """Event `core wait`: seconds in which the thread that trains was ready to run and had no core, as the system counts
    them, while steps were counted, and their span. Other programs, workers and other threads used the cores."""

    seconds: float
    of_s: float


@dataclass(frozen=True, kw_only=True)
class RefusedWrite:
    """Event `refused`: a file that the program would have written on resident batches or while it was being ended.

    Attributes:
        path: of the file; often a temporary one, to be renamed later.
        where: "file:line" of the program that asked for it, "" where none is known.
    """

    path: str
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Event `end`: why recording ended: "limit" (enough was seen), "program" (it ended by itself), "error".

    A file without it belongs to a program that was killed.
    """

    reason: Literal["limit", "program", "error"]
    time_s: float
    note: str = ""
