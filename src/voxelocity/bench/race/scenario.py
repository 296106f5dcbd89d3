"""`voxelocity bench time-to-target`: whole trainings to a target, or within a budget, on one of the `TASKS`."""

from __future__ import annotations

import difflib
import importlib.util
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voxelocity.bench.peers import versions
from voxelocity.bench.phantom import default_folder
from voxelocity.bench.places import Places, made, real_data
from voxelocity.bench.race.job import LIMITS
from voxelocity.bench.race.page import race_document
from voxelocity.bench.race.rounds import Outcome, run_rounds
from voxelocity.bench.race.sides import LABELS, Race, SideName
from voxelocity.bench.race.tasks import TASKS, Task
from voxelocity.bench.record import Record
from voxelocity.core.errors import InputError
from voxelocity.data.source import open_cases
from voxelocity.observe import environment
from voxelocity.planning import make_plan
from voxelocity.report import Document, duration_text, write_page

NAME = "time-to-target"
_SIDES: tuple[SideName, ...] = ("fast", "plain", "switched", "nnunet", "ours")
# A training that has not reached its target by then is not going to; below the budget at which networks get wider.
_LIMIT_S = 480.0


@dataclass(frozen=True, kw_only=True)
class RaceSettings:
    """What was raced.

    Attributes:
        task: one of `TASKS`.
        num_seeds: trainings a side.
        budget_s: of each training; 0 trains to the target of the task.
        sides: which trained.
        is_equal: whether ours trains the peers' network with their optimizer.
    """

    task: str
    num_seeds: int = 5
    budget_s: float = 0.0
    sides: tuple[SideName, ...] = field(default_factory=lambda: check_sides(()))
    is_equal: bool = False

    @property
    def name(self) -> str:
        """Of files."""
        budget = f"_{duration_text(self.budget_s).replace(' ', '')}" if self.budget_s else ""
        return f"{self.task}{budget}{'_equal' if self.is_equal else ''}"


def run_race(
    settings: RaceSettings,
    *,
    work: Path | None = None,
    data: Path | None = None,
    out: Path | None = None,
    keys: dict[str, Any] | None = None,
    on_start: Callable[[str, int], None],
) -> tuple[Record, Outcome]:
    """Trains every side with every seed on a task; `out` holds the results so far after each round.

    Args:
        settings: what to race.
        work: where phantoms are kept; below the system's temporary folder if not given.
        data: folder of real scans; as `run_scenario` finds it if not given.
        out: folder of the record and the page; nothing is written if not given.
        keys: of the plan, for all sides, in place of those of the task.
        on_start: called with the side and the seed before each training.

    Raises:
        InputError: the task is unknown, or its scans are not there.
        OutputError: a folder cannot be written.
        VoxelocityError: a training failed.
    """
    task = _task(settings.task)
    places = Places(work=made(work or default_folder()), data=real_data(data))
    dataset = task.dataset(places)
    target_dice = 0.0 if settings.budget_s else task.target_dice
    shared = {**LIMITS, "train.target_dice": target_dice, **task.keys, **(keys or {})}
    peer_keys = {key: value for key, value in task.peer_keys.items() if key not in (keys or {})}
    with tempfile.TemporaryDirectory(prefix="race-", dir=places.work) as folder:
        race = Race(
            dataset=dataset,
            # Steps that this plan times are kept apart: `voxelocity train` must not find them done.
            planned=make_plan(
                open_cases(dataset),
                overrides=shared | peer_keys,
                time_budget_s=settings.budget_s or _LIMIT_S,
                cache_folder=Path(folder) / "plan",
            ),
            out=Path(folder),
            target_dice=target_dice,
            limit_s=settings.budget_s or _LIMIT_S,
            epochs_per_validation=task.epochs_per_validation,
            keys=shared | peer_keys if settings.is_equal else shared,
        )

        def keep(outcome: Outcome) -> None:
            if out is not None:
                _record(settings, outcome).write_json(out)
                write_page(_document(settings, outcome), out / f"bench_race_{settings.name}.html")

        outcome = run_rounds(race, settings.sides, range(settings.num_seeds), on_start=on_start, on_outcome=keep)
    return _record(settings, outcome), outcome


def _task(name: str) -> Task:
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.5)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise InputError(f"bench: unknown task '{name}'{hint}; choose one of {', '.join(TASKS)}")
    return TASKS[name]


def check_sides(names: Sequence[str]) -> tuple[SideName, ...]:
    """The sides of these names in the order in which pages have them; all that are installed where none is named.

    Raises:
        InputError: a side is unknown, nnU-Net is not installed, or Voxelocity is not among them.
    """
    has_nnunet = importlib.util.find_spec("nnunetv2") is not None
    unknown = [name for name in names if name not in LABELS]
    if unknown:
        raise InputError(f"bench: unknown side '{unknown[0]}'; choose among {', '.join(_SIDES)}")
    if "nnunet" in names and not has_nnunet:
        raise InputError("bench: the side 'nnunet' needs nnU-Net; install it with pip install nnunetv2")
    if names and ("ours" not in names or len(names) < 2):
        raise InputError("bench: a race needs 'ours' and another side; add it")
    return tuple(name for name in _SIDES if (name in names if names else name != "nnunet" or has_nnunet))


def _differing_text(settings: RaceSettings) -> str:
    if settings.is_equal:
        return "Network and optimizer are the same, too, and no side averages its weights."
    return (
        "The peers train with AdamW, Voxelocity with Muon, an augmentation that rises over the first epochs and, to a "
        "target, a running average of its weights. Where the task does not fix the network, the peers have nnU-Net's "
        "and Voxelocity the one that its rules choose. --equal makes all of it the same."
    )


def _command(settings: RaceSettings) -> str:
    budget = f" --time-budget {settings.budget_s:g}s" if settings.budget_s else ""
    sides = f"--sides {','.join(settings.sides)}"
    equal = " --equal" if settings.is_equal else ""
    return f"voxelocity bench {NAME} --task {settings.task}{budget} {sides} --seeds {settings.num_seeds}{equal}"


def _record(settings: RaceSettings, outcome: Outcome) -> Record:
    return Record(
        name=f"race_{settings.name}",
        command=_command(settings),
        date=time.strftime("%Y-%m-%d"),
        environment={**environment(), "peers": versions()},
        settings=settings,
        comparisons=(outcome.comparison(TASKS[settings.task].words),),
        details=outcome.to_plain() | {"plan": outcome.race.planned.plan.to_plain()},
    )


def _document(settings: RaceSettings, outcome: Outcome) -> Document:
    task = TASKS[settings.task]
    goal = f"in {duration_text(settings.budget_s)}" if settings.budget_s else f"to a mean Dice of {task.target_dice:g}"
    return race_document(
        outcome,
        title=f"Training {goal}: {task.words}",
        summary=(
            "The same cases, split, loss, patches, batch, augmentation and precision, one training after the other on "
            f"this machine. {_differing_text(settings)} Seconds count from the start of each process: imports, "
            "planning, caching and compiling included."
        ),
        command=_command(settings),
    )
