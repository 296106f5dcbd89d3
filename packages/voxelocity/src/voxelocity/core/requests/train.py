"""The request of `train`, of one fold or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from voxelocity.core.requests.plan import PlanKeyOptions, StartKeys, StartOptions
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.quantities import parse_duration_s
from voxelocity_observe.core.request import Option


def read_folds(text: str) -> tuple[int, ...]:
    """The numbers in "0,2"; none for "all".

    Raises:
        ConfigError: the text is neither.
    """
    if text == "all":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"'{text}' is neither 'all' nor numbers such as 0,2")
    return tuple(map(int, parts))


class MoreTime(float):
    """Seconds on top of those that a run has taken."""


def read_time_budget(text: str) -> float:
    """Seconds in "5m"; `MoreTime` in "+5m".

    Raises:
        ConfigError: the text is not a duration.
    """
    is_more = text.strip().startswith("+")
    seconds = parse_duration_s(text.strip().removeprefix("+"))
    return MoreTime(seconds) if is_more else seconds


@dataclass(frozen=True, kw_only=True)
class TrainRequest(StartKeys):
    """What `voxelocity.train`, `voxelocity.train_folds` and `voxelocity train` take."""

    CALL: ClassVar[str] = "vx.train"

    out: Annotated[Path, Option(flags=("-o", "--out"))]
    """Folder of the run."""
    time_budget_s: Annotated[
        float | Literal["auto"], Option(flags=("--time-budget",), read=read_time_budget, shown="")
    ] = "auto"
    """Time limit, validation and report included: 90s, 5m, 1h; with --resume, +5m adds time.

    Seconds as a number; 0 sets no limit. "auto" is 0, or the budget of a resumed run. More time continues a finished
    run from its last checkpoint, on the learning rate's schedule for the whole time.
    """
    folds: Annotated[tuple[int, ...] | None, Option(read=read_folds, shown="")] = None
    """Train several folds into OUT/fold_K, one after the other: 'all', or numbers such as 0,2.

    No numbers mean every fold of the data set; None trains the fold in `fold`.
    """
    epochs: Annotated[int | None, Option(least=1)] = None
    """Train for this many passes over the training cases.

    With a time budget, the run ends at whichever comes first.
    """
    resume: Annotated[bool, Option()] = False
    """Continue a run with its own plan: --resume RUN, or the first command with --resume.

    If you give fold, budget, seed or overrides, they must match the run's. Keys of `parallel` and `planner` may differ.
    """
    overwrite: Annotated[bool, Option()] = False
    """Replace the run in --out."""
    full_validation: Annotated[bool, Option()] = False
    """Never shorten the final validation to meet a time budget; with --resume, also for a finished run."""
    skip_broken: Annotated[bool, Option()] = False
    """Leave out cases that cannot be used, and report which and why.

    A resumed run also leaves them out.
    """
    log: Annotated[tuple[str, ...], Option()] = ()
    """Trackers that also get the run (`voxelocity_observe.sinks.TRACKERS`), with their address behind a colon."""

    def _check(self) -> None:
        super()._check()
        if self.epochs is not None:
            self.check_number("epochs", "give a whole number from 1", least=1, is_whole=True)
        if isinstance(self.time_budget_s, MoreTime) and (self.folds is not None or not self.resume):
            raise self.refusal("a + adds time to an existing run; name it with --resume RUN", "time_budget_s")
        self.check_one_of("the first keeps the run, the second replaces it", "resume", "overwrite")
        if self.folds is not None and self.fold != "auto":
            raise self.refusal("the first trains one fold, the second several; give one of them", "fold", "folds")


class EachFoldOptions(PlanKeyOptions, StartOptions, total=False):
    """The fields of `TrainRequest` that one training and several folds take as keywords."""

    epochs: int | None
    overwrite: bool
    full_validation: bool
    skip_broken: bool
    log: Sequence[str]


class TrainOptions(EachFoldOptions, total=False):
    """The keywords of `voxelocity.train`."""

    resume: bool


class FoldsOptions(EachFoldOptions, total=False):
    """The keywords of `voxelocity.train_folds`, which itself resumes what is unfinished."""

    folds: Sequence[int]
