"""The exception tree. Every error that a user can cause says what failed, the value, where, and what to do.

VoxelocityError
├── InputError (also ValueError)      an input from the user is wrong; the command line exits with status 2
│   ├── DatasetError                  the description of a data set, or what it lists
│   ├── ScanError                     one file or one case
│   ├── ConfigError                   an unknown key or a value out of range
│   └── OutputError                   a folder or file we cannot write
├── ItemError (also RuntimeError)     an item of a data set cannot be made; raised from the transform's own error
├── CacheError                        a cache entry that cannot be written or read; the run continues without it
│   └── CacheFullError                no space left for the entry
│       └── EntryTooLargeError        this entry alone is larger than the budget; others may fit
├── RankLostError                     another process of a training on several ranks has failed or ended
├── CheckpointError                   no usable checkpoint where one is needed
├── DeviceMemoryError                 a training step that does not fit into memory, however it is cut
├── CommandError                      the user's own command cannot be started; carries a shell's exit status
├── ExportError                       an exported network does not answer as its run does; nothing is written
├── NonFiniteLossError                the loss became NaN or infinite; carries the case ids of the batch
├── UnpredictedError                  some scans could not be predicted, all others were; carries the reasons
└── InterruptedRunError               Ctrl-C or SIGTERM arrived and the state was saved
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

# Names that share less are another word, not a slip: a column "phase" was not meant to be "case".
_LEAST_LIKENESS = 0.7


class VoxelocityError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(VoxelocityError, ValueError):
    """An input from the user is wrong. The message names the value, the place and the cure."""


class DatasetError(InputError):
    """The description of a data set is wrong, or it lists something that does not exist."""


class ScanError(InputError):
    """One scan, or one image and its label, cannot be used."""


class ConfigError(InputError):
    """A configuration key is unknown or its value is out of range."""


class OutputError(InputError):
    """A folder or file cannot be written."""


class ItemError(VoxelocityError, RuntimeError):
    """An item of a data set cannot be made. `__cause__` is the error of its transform."""


class CacheError(VoxelocityError):
    """A cache entry cannot be written or read."""


class CacheFullError(CacheError):
    """No space is left for a cache entry."""


class EntryTooLargeError(CacheFullError):
    """A cache entry is larger than the whole budget."""


class RankLostError(VoxelocityError):
    """Another process of a training on several ranks has failed or ended, and has reported why."""


class CheckpointError(VoxelocityError):
    """No usable checkpoint exists where one is needed."""


class DeviceMemoryError(VoxelocityError):
    """A training step does not fit into the memory of its device, and cannot be cut into smaller pieces."""


class CommandError(VoxelocityError):
    """The user's command cannot be started.

    Attributes:
        status: as in shells: 127 if the command does not exist, 126 if it cannot be executed.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class ExportError(VoxelocityError):
    """A network cannot be exported, or its export does not answer as it does."""


class NonFiniteLossError(VoxelocityError):
    """The loss became NaN or infinite.

    Attributes:
        case_ids: the cases whose patches made up the batch.
        step: the optimizer step, counted from 0.
    """

    def __init__(self, message: str, *, case_ids: Sequence[str], step: int) -> None:
        super().__init__(message)
        self.case_ids = tuple(case_ids)
        self.step = step


class UnpredictedError(VoxelocityError):
    """Some scans could not be predicted; the predictions of all others are written.

    Attributes:
        reasons: why, by case id.
    """

    def __init__(self, message: str, *, reasons: Mapping[str, str]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)


class InterruptedRunError(VoxelocityError):
    """A signal asked the run to stop; its state was saved first.

    Attributes:
        signal_number: the signal that arrived (2 for Ctrl-C, 15 for SIGTERM).
    """

    def __init__(self, message: str, *, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


def nearest_name(name: str, known: Collection[str]) -> str | None:
    """The known name that was probably meant; None if none is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=_LEAST_LIKENESS)), None)


def missing_path(path: Path) -> str:
    """That a path does not exist, with the one that was probably meant, as the middle of a sentence."""
    parts = path.parts
    first = next((n for n in range(1, len(parts) + 1) if not os.path.lexists(Path(*parts[:n]))), len(parts))
    with contextlib.suppress(OSError):
        siblings = os.listdir(Path(*parts[: first - 1]))
        for near in difflib.get_close_matches(parts[first - 1], siblings, n=1):
            return f"{path} does not exist (did you mean {Path(*parts[: first - 1], near, *parts[first:])}?)"
    return f"{path} does not exist"


def did_you_mean(name: str, known: Collection[str]) -> str:
    """The end of a sentence about an unknown name, with the nearest known one; of dotted keys the last part may do."""
    first_with = {key.rpartition(".")[2]: key for key in reversed(list(known))}
    near = nearest_name(name, known) or first_with.get(nearest_name(name.rpartition(".")[2], first_with) or "")
    return f"; did you mean '{near}'?" if near else ""
