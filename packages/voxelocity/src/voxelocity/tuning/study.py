"""The search: default settings, largest sizes by bisection, the rest by TPE, and the winner measured again.

Knows neither what a trial runs nor what it measures; `command` and `cost` say so.
"""

from __future__ import annotations

import errno
import itertools
import math
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from filelock import FileLock, Timeout

from voxelocity.tuning.space import Knob, Settings, default_settings, is_hopeless, single_changes
from voxelocity.tuning.store import STUDY_FILE, Phase, TrialRecord, open_store
from voxelocity.tuning.trial import TrialLimits, TrialOutcome, run_trial
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.errors import ConfigError, OutputError
from voxelocity_observe.core.links import check_links
from voxelocity_observe.core.quantities import duration_text

Ended = Literal["trials", "time", "exhausted"]

TRIALS_FOLDER, RUNS_FOLDER = "trials", "runs"
"""Below the study's folder: what each trial printed and measured; the trainings of a tuning by Dice."""

_WRITTEN = (f"{STUDY_FILE}*", TRIALS_FOLDER, RUNS_FOLDER, "own.*")
# TPE may propose what is known already; after this many such proposals the search has come to an end.
_MAX_KNOWN = 15
# A trial hangs that takes this many times as long as the default settings did, and at least this long.
_TIMES_DEFAULT, _LEAST_LIMIT_S = 10.0, 180.0
# A winner must be cheaper than the default settings in every round of confirmations, and by this factor in the median.
_CLEARLY = 0.98
# Of the trials, those that may change a single setting before TPE begins.
_SINGLE_SHARE = 0.6


class MakeCommand(Protocol):
    """Says how a trial is run."""

    def __call__(self, settings: Settings, *, answer: Path, limits: TrialLimits) -> Sequence[str]:
        """The command that measures these settings and writes what it measured to `answer` (`write_answer`)."""
        ...


class Cost(Protocol):
    """Says what the search minimizes."""

    def __call__(self, outcome: TrialOutcome, default: TrialOutcome | None) -> float | None:
        """The cost of a finished trial; None if it is not acceptable. `default`: if the default settings finished."""
        ...


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched, and how long.

    Attributes:
        knobs: what can be set.
        limits: of each trial; one that takes ten times as long as the default settings, and three minutes, hangs too.
        num_trials: of the search, the default settings and the bisections included; confirmations come on top.
        time_budget_s: for everything, confirmations included; 0 sets no limit. A trial that has begun is not cut off.
        headroom: share of the memory limits that must stay free when the winner is measured again.
        num_confirmations: how often the winner and the default settings are measured again, alternating.
        seed: of TPE.
        about: what is tuned and within which limits, as plain data; a study continues only if it is the same.
    """

    knobs: tuple[Knob, ...]
    limits: TrialLimits
    num_trials: int
    time_budget_s: float = 0.0
    headroom: float = 0.1
    num_confirmations: int = 3
    seed: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.knobs:
            raise ConfigError("tune: nothing is left to search; name at least one setting")
        if self.num_trials < 1 or self.num_confirmations < 1:
            raise ConfigError(f"tune: {self.num_trials} trials cannot find a result; give a number from 1")
        if not 0.0 <= self.headroom < 1.0:
            raise ConfigError(f"tune: a headroom of {self.headroom} leaves no memory; give a share from 0 to below 1")
        if self.time_budget_s < 0.0 or self.limits.seconds <= 0.0:
            raise ConfigError("tune: a time limit is negative or 0; give seconds, or leave it out")


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """What a search found.

    Attributes:
        trials: all of them, in order.
        winner: the settings to take, which have been measured again in a fresh process with less memory; None if no
            settings fit.
        winner_trials: their confirmations.
        default_trials: the default settings measured again, alternating with the winner's; as many or fewer.
        refused: settings that were cheaper than the winner, but took too much memory, or failed when measured again.
        ended: why the search came to an end: trials or time used up, or nothing left to try.
        seconds: that all trials took together, earlier sessions included.
    """

    trials: tuple[TrialRecord, ...]
    winner: Settings | None
    winner_trials: tuple[TrialRecord, ...]
    default_trials: tuple[TrialRecord, ...]
    refused: tuple[Settings, ...]
    ended: Ended
    seconds: float


class Study:
    """One search in a folder. Trials that the folder holds already are not repeated.

    Args:
        folder: created if it is missing.
        search: what is searched.
        command: how a trial is run.
        cost: what is minimized.
        overwrite: begin again even if the folder holds a study.
        on_trial: called after each trial.
        clock: returns seconds.
    """

    def __init__(
        self,
        folder: Path,
        search: Search,
        *,
        command: MakeCommand,
        cost: Cost,
        overwrite: bool = False,
        on_trial: Callable[[TrialRecord], None] = lambda record: None,
        clock: Clock = system_clock,
    ) -> None:
        self.folder, self.search = folder, search
        self._command, self._cost = command, cost
        self._overwrite, self._on_trial, self._clock = overwrite, on_trial, clock
        self._records: list[TrialRecord] = []

    def run(self) -> StudyResult:
        """Searches until trials or time are used up, then confirms.

        Raises:
            OutputError: the folder cannot be written, or another process is tuning there.
            ConfigError: the folder holds a study about something else, or the time budget is too short.
            InputError: Optuna is not installed.
        """
        search = self.search
        with lock_folder(self.folder):
            if self._overwrite:
                for ending in ("", "-journal", "-wal", "-shm"):
                    (self.folder / f"{STUDY_FILE}{ending}").unlink(missing_ok=True)
                shutil.rmtree(self.folder / TRIALS_FOLDER, ignore_errors=True)
            (self.folder / TRIALS_FOLDER).mkdir(exist_ok=True)
            with open_store(self.folder, search.knobs, about=search.about, seed=search.seed) as self._store:
                self._records = self._store.records()
                ended = self._search()
                return self._confirm_winner(ended)

    def _search(self) -> Ended:
        start = default_settings(self.search.knobs)
        proposals: Iterator[tuple[Phase, dict[str, Any]]] = self._first_proposals(start)
        for phase, settings in proposals:
            if ended := self._used_up():
                return ended
            if self._known(settings) is None:
                self._run(phase, settings)
            if phase == "default":
                self._check_budget()
        num_known = 0
        while num_known < _MAX_KNOWN:
            if ended := self._used_up():
                return ended
            trial, settings = self._store.begin("search")
            known = self._known(settings)
            if known is None:
                self._run("search", settings, trial)
                num_known = 0
            else:
                self._store.skip(trial, known.cost)
                num_known += 1
        return "exhausted"

    def _first_proposals(self, start: dict[str, Any]) -> Iterator[tuple[Phase, dict[str, Any]]]:
        """The default settings, the bisections, and single changes, each made when it is asked for."""
        yield "default", start
        growing = [knob for knob in self.search.knobs if knob.grows_memory and knob.is_open]
        if growing and not self._fits(start):
            start = {**start, **{knob.name: knob.choices[0] for knob in growing}}
            yield "size", start
        for knob in growing:
            yield from self._bisected(knob, start)
        singles = [change for change in single_changes(self.search.knobs, start) if self._known(change) is None]
        most = max(1, int(_SINGLE_SHARE * (self.search.num_trials - self._num_searched)))
        for settings in singles[:most]:
            yield "search", settings

    def _bisected(self, knob: Knob, start: dict[str, Any]) -> Iterator[tuple[Phase, dict[str, Any]]]:
        """Settings to try until the largest value that fits is known; the largest of all first, as it often fits."""
        if not self._fits(start):
            return
        fits, fails = knob.choices.index(start[knob.name]), len(knob.choices)
        middle = fails - 1
        while fits < middle < fails:
            settings = {**start, knob.name: knob.choices[middle]}
            yield "size", settings
            if self._fits(settings):
                fits = middle
            else:
                fails = middle
            middle = (fits + fails) // 2

    def _used_up(self) -> Ended | None:
        if self._num_searched >= self.search.num_trials:
            return "trials"
        if not self.search.time_budget_s or not self._records:
            return None
        return "time" if self._seconds + self._next_s > self.search.time_budget_s else None

    @property
    def _next_s(self) -> float:
        """Of the next trial and the confirmations after it, as long as the longest of those that finished."""
        finished = [record.outcome.seconds for record in self._records if record.outcome.is_finished]
        return max(finished, default=0.0) * (1 + 2 * self.search.num_confirmations)

    def _check_budget(self) -> None:
        """Refuses a time budget in which nothing but the default settings can be tried."""
        budget_s, needed_s = self.search.time_budget_s, self._seconds + self._next_s
        is_first = len(self._records) == 1 and self._records[0].outcome.is_finished
        if budget_s and is_first and self.search.num_trials > 1 and needed_s > budget_s:
            raise ConfigError(
                f"tune: {duration_text(budget_s)} are too short: one trial takes {duration_text(self._seconds)} here, "
                f"and trying a single change takes {2 + 2 * self.search.num_confirmations} of them; give at least "
                f"--time-budget {math.ceil(needed_s)}s (this trial is kept)"
            )

    @property
    def _num_searched(self) -> int:
        return sum(record.phase != "confirm" for record in self._records)

    @property
    def _seconds(self) -> float:
        return sum(record.outcome.seconds for record in self._records)

    def _fits(self, settings: Settings) -> bool:
        known = self._known(settings)
        return known is not None and known.outcome.is_finished

    def _known(self, settings: Settings) -> TrialRecord | None:
        """The trial that says what these settings would give; None if they must be tried."""
        tried = [record for record in self._records if record.phase != "confirm"]
        same = next((record for record in tried if record.settings == settings), None)
        failed = (record for record in tried if record.outcome.kind == "out_of_memory")
        worse = (record for record in failed if is_hopeless(settings, record.settings, self.search.knobs))
        return same or next(worse, None)

    def _run(
        self, phase: Phase, settings: Settings, trial: Any = None, *, limits: TrialLimits | None = None
    ) -> TrialRecord:
        if trial is None:
            trial, settings = self._store.begin(phase, settings)
        limits = self._with_time(limits or self.search.limits)
        place = self.folder / TRIALS_FOLDER / f"{trial.number:03d}"
        answer = place.with_suffix(".json")
        outcome = run_trial(
            self._command(settings, answer=answer, limits=limits),
            answer=answer,
            log=place.with_suffix(".log"),
            limits=limits,
            clock=self._clock,
        )
        cost = self._cost(outcome, self._default_outcome) if outcome.is_finished else None
        self._store.end(trial, outcome, cost)
        record = TrialRecord(number=trial.number, phase=phase, settings=settings, outcome=outcome, cost=cost)
        self._records.append(record)
        self._on_trial(record)
        return record

    def _with_time(self, limits: TrialLimits) -> TrialLimits:
        """The limits with a time after which this trial hangs, once the time of the default settings is known."""
        default = self._default_outcome
        if default is None:
            return limits
        return replace(limits, seconds=min(limits.seconds, max(_LEAST_LIMIT_S, _TIMES_DEFAULT * default.seconds)))

    @property
    def _default_outcome(self) -> TrialOutcome | None:
        # The last one: the first runs on a machine whose caches are cold, and confirmations run next to one.
        start = default_settings(self.search.knobs)
        own = (record.outcome for record in reversed(self._records) if record.settings == start)
        return next((outcome for outcome in own if outcome.is_finished), None)

    def _confirm_winner(self, ended: Ended) -> StudyResult:
        """Measures the cheapest settings again, and the default ones next to them, until some are confirmed."""
        start = default_settings(self.search.knobs)
        tried = [record for record in self._records if record.phase != "confirm" and record.cost is not None]
        order = sorted(tried, key=lambda record: record.cost or 0.0)
        limits = self.search.limits.with_headroom(self.search.headroom)
        refused: list[Settings] = []
        winner: Settings | None = None
        for record in order:
            if limits.hold(record.outcome) and self._confirm(record.settings, start, limits):
                winner = record.settings
                break
            refused.append(record.settings)
        if winner is not None and winner != start and self._is_no_better(winner, start):
            # What looked better once was luck.
            refused, winner = [*refused, winner], start
        return StudyResult(
            trials=tuple(self._records),
            winner=winner,
            winner_trials=self._confirmations(winner),
            default_trials=self._defaults_next_to(self._confirmations(winner), start),
            refused=tuple(refused),
            ended=ended,
            seconds=self._seconds,
        )

    def _confirmations(self, settings: Settings | None) -> tuple[TrialRecord, ...]:
        return tuple(record for record in self._records if record.phase == "confirm" and record.settings == settings)

    def _defaults_next_to(self, trials: Sequence[TrialRecord], start: Settings) -> tuple[TrialRecord, ...]:
        """The default settings as they were measured right before each of these confirmations."""
        own = self._confirmations(start)
        pairs = itertools.pairwise(self._records)
        before = {record.number: previous for previous, record in pairs if previous in own}
        found = tuple(before[trial.number] for trial in trials if trial.number in before)
        return found if found and len(found) == len(trials) else own

    def _confirm(self, settings: Settings, start: Settings, limits: TrialLimits) -> bool:
        """Runs the settings again, the default ones next to them; whether they finish each time, within the limits."""
        default_fits = self._fits(start)
        for number in range(self.search.num_confirmations):
            done = self._confirmations(settings)
            if len(done) <= number:
                # With the limit as it is for the default settings, which are there for comparison.
                if settings != start and default_fits and self._records[-1] not in self._confirmations(start):
                    self._run("confirm", start, limits=limits)
                self._run("confirm", settings, limits=limits)
                done = self._confirmations(settings)
            if done[number].cost is None:
                return False
        return True

    def _is_no_better(self, settings: Settings, start: Settings) -> bool:
        """Whether the default settings, finished each time as well, are as cheap in any round or nearly so in all."""
        ours = self._confirmations(settings)
        ratios = cost_ratios(ours, self._defaults_next_to(ours, start))
        if len(ratios) < self.search.num_confirmations:
            return False
        return max(ratios) >= 1.0 or statistics.median(ratios) > _CLEARLY


def cost_ratios(ours: Sequence[TrialRecord], theirs: Sequence[TrialRecord]) -> tuple[float, ...]:
    """Our cost divided by theirs, by round, where both have one."""
    pairs = zip(ours, theirs, strict=False)
    return tuple(a.cost / b.cost for a, b in pairs if a.cost is not None and b.cost)


@contextmanager
def lock_folder(
    folder: Path, *, written: Sequence[str] = _WRITTEN, cure: str = "choose another folder with -o"
) -> Iterator[None]:
    """Keeps other tunings out of the folder, which is created; the system frees the lock if this process dies.

    Args:
        folder: of one study, or of what several tune.
        written: names or patterns of what is written there.
        cure: what else can be done where it cannot be had.

    Raises:
        OutputError: another process is tuning there, the folder cannot be written, or a link in it leads elsewhere.
    """
    check_links(folder, written, where="tune")
    lock = FileLock(folder / ".lock", blocking=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise OutputError(f"tune: another process is tuning in {folder} now; wait for it, or {cure}") from None
    except OSError as error:
        why = "no space left" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise OutputError(f"tune: cannot write into {folder} ({why}); {cure}") from None
    try:
        yield
    finally:
        lock.release()
