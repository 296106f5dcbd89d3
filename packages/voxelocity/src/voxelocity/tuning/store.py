"""Where a study keeps its trials: Optuna's own storage in one file, which its dashboard reads. Alone imports Optuna."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from voxelocity.tuning.space import Knob, Settings
from voxelocity.tuning.trial import TrialOutcome
from voxelocity_observe.core.errors import ConfigError, InputError, OutputError
from voxelocity_observe.core.plain import plain_data

Phase = Literal["default", "size", "search", "confirm"]
_PHASES: Mapping[str, Phase] = {phase: phase for phase in get_args(Phase)}

STUDY_FILE = "study.db"
_NAME = "voxelocity"
_SETTINGS, _OUTCOME, _PHASE, _ABOUT = "settings", "outcome", "phase", "about"
# Random trials before TPE has anything to learn from; the trials of single changes count too.
_NUM_STARTUP = 4
# SQLite removes the file that a journal with this end names, wherever it is (readSuperJournal in pager.c).
_NAMES_ANOTHER_FILE = bytes.fromhex("d9d505f920a163d7")


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A trial of a study.

    Attributes:
        number: as in Optuna's dashboard.
        phase: what it was for: the default settings, finding the largest size, the search, or confirming a choice.
        cost: what the study minimizes; None where the outcome is not acceptable.
    """

    number: int
    phase: Phase
    settings: Settings
    outcome: TrialOutcome
    cost: float | None


class TrialStore:
    """The trials of one study in one file. Use it within `open_store`, from one process at a time.

    Args:
        study: Optuna's.
        knobs: what is searched.
    """

    def __init__(self, study: Any, knobs: Sequence[Knob]) -> None:
        import optuna

        self._optuna, self._study = optuna, study
        self._knobs = [knob for knob in knobs if knob.is_open]
        self._fixed = {knob.name: knob.default for knob in knobs if not knob.is_open}
        self._values = {knob.name: {_label(choice): choice for choice in knob.choices} for knob in self._knobs}
        self._distributions = {
            knob.name: optuna.distributions.CategoricalDistribution([_label(choice) for choice in knob.choices])
            for knob in self._knobs
        }

    def records(self) -> list[TrialRecord]:
        """All trials with an outcome, in order."""
        trials = self._study.get_trials(deepcopy=False)
        return [self._record(trial) for trial in trials if _OUTCOME in trial.user_attrs]

    def _record(self, trial: Any) -> TrialRecord:
        attributes = trial.user_attrs
        settings = attributes[_SETTINGS]
        allowed = {name: [*values.values()] for name, values in self._values.items()}
        allowed |= {name: [value] for name, value in self._fixed.items()}
        # They become keys of a plan, and the file may come from someone else.
        if settings.keys() != allowed.keys() or any(value not in allowed[name] for name, value in settings.items()):
            raise ValueError(f"trial {trial.number} has settings that are not searched")
        return TrialRecord(
            number=trial.number,
            phase=_PHASES[attributes[_PHASE]],
            settings=settings,
            outcome=TrialOutcome.from_plain(attributes[_OUTCOME]),
            cost=float(trial.value) if trial.state.name == "COMPLETE" else None,
        )

    def begin(self, phase: Phase, settings: Settings | None = None) -> tuple[Any, dict[str, Any]]:
        """A trial that is now running, with its settings: those given, or what TPE proposes."""
        if settings is not None:
            self._study.enqueue_trial({knob.name: _label(settings[knob.name]) for knob in self._knobs})
        trial = self._study.ask(self._distributions)
        chosen = {name: self._values[name][label] for name, label in trial.params.items()} | self._fixed
        trial.set_user_attr(_PHASE, phase)
        trial.set_user_attr(_SETTINGS, chosen)
        return trial, chosen

    def end(self, trial: Any, outcome: TrialOutcome, cost: float | None) -> None:
        """Keeps the outcome; TPE counts a trial without a cost as worse than any other."""
        trial.set_user_attr(_OUTCOME, outcome.to_plain())
        self.skip(trial, cost)

    def skip(self, trial: Any, cost: float | None) -> None:
        """Ends a trial that was not run, since its cost is known already."""
        state = self._optuna.trial.TrialState
        if cost is None:
            self._study.tell(trial, state=state.PRUNED)
        else:
            self._study.tell(trial, cost)

    def abandon_running(self) -> None:
        """Marks what a killed tuning left running as failed; TPE then ignores it, and it is begun again."""
        state = self._optuna.trial.TrialState
        for trial in self._study.get_trials(deepcopy=False, states=(state.RUNNING, state.WAITING)):
            if trial.state == state.WAITING:
                # Only a running trial can be ended.
                self._study.ask()
            self._study.tell(trial.number, state=state.FAIL)


@contextmanager
def open_store(folder: Path, knobs: Sequence[Knob], *, about: Mapping[str, Any], seed: int) -> Iterator[TrialStore]:
    """The store in a folder: a new one, or one that continues. The folder exists and is locked.

    Args:
        folder: where the file is.
        knobs: what is searched.
        about: what is tuned, as plain data; a study that continues must be about the same.
        seed: of TPE.

    Raises:
        InputError: Optuna is not installed.
        ConfigError: the folder holds a study about something else.
        OutputError: the file cannot be written, or holds what no tuning writes.
    """
    optuna = _import_optuna()
    path = folder / STUDY_FILE
    _check_file(path)
    about = {**plain_data(about, where="tune"), "knobs": plain_data(list(knobs), where="tune"), "seed": seed}
    # A line for each trial would be shown twice.
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = None
    try:
        with _errors_in_words(path, optuna):
            # In a URL, a folder's name could not hold "?", "%" or "{".
            connect = partial(sqlite3.connect, path.absolute(), check_same_thread=False)
            try:
                storage = optuna.storages.RDBStorage(f"sqlite:///{STUDY_FILE}", engine_kwargs={"creator": connect})
                store = _load_store(optuna, storage, folder, knobs, about=about, seed=seed)
            except InputError:
                raise
            # Whatever Optuna and we meet in values of other kinds, and Optuna of files of other versions.
            except (LookupError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError) as error:
                raise _damaged(path, error) from error
            yield store
    finally:
        if storage is not None:
            storage.remove_session()
            storage.engine.dispose()
        optuna.logging.set_verbosity(verbosity)


def _load_store(
    optuna: Any, storage: Any, folder: Path, knobs: Sequence[Knob], *, about: Mapping[str, Any], seed: int
) -> TrialStore:
    """The store of the study in the file, or of a new one; what a killed tuning left running is ended.

    Raises:
        ConfigError: the study is about something else.
        ValueError, TypeError, LookupError, AttributeError: it holds what no tuning writes.
    """
    study = optuna.create_study(storage=storage, study_name=_NAME, load_if_exists=True)
    before = study.user_attrs.get(_ABOUT)
    if before is not None and before != about:
        keys = [key for key in about if before.get(key) != about[key]]
        raise ConfigError(
            f"tune: {folder} holds a study that differs in {', '.join(keys)}; name another folder with -o, or "
            "replace it with --overwrite"
        )
    if before is None:
        study.set_user_attr(_ABOUT, about)
    # A study that continues must not draw again what it has drawn.
    number = len(study.get_trials(deepcopy=False))
    study.sampler = optuna.samplers.TPESampler(seed=seed + number, n_startup_trials=_NUM_STARTUP)
    store = TrialStore(study, knobs)
    store.abandon_running()
    store.records()
    return store


def _check_file(path: Path) -> None:
    """Refuses files that do more than hold trials, before SQLite opens them.

    Raises:
        OutputError: they do.
    """
    journal = path.with_name(f"{path.name}-journal")
    if journal.is_file():
        with journal.open("rb") as file:
            file.seek(max(0, journal.stat().st_size - len(_NAMES_ANOTHER_FILE)))
            if file.read() == _NAMES_ANOTHER_FILE:
                raise _damaged(journal, "it names another file, which SQLite would remove")
    if path.is_file():
        try:
            found = sqlite3.connect(path.absolute())
            try:
                names = found.execute("select name from sqlite_master where type in ('trigger', 'view')").fetchall()
            finally:
                found.close()
        except sqlite3.Error:
            # Optuna meets it too, and that is reported.
            return
        if names:
            raise _damaged(path, f"it runs {names[0][0]!s:.40} when it is written")


def _damaged(path: Path, reason: object) -> OutputError:
    return OutputError(
        f"tune: {path} contains objects that tuning does not write ({reason}); name another folder with -o, or start "
        "again with --overwrite"
    )


@contextmanager
def _errors_in_words(path: Path, optuna: Any) -> Iterator[None]:
    import sqlalchemy.exc

    try:
        yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
        cause = error.__cause__ or error
        why = str(getattr(cause, "orig", cause)).partition("\n")[0]
        raise OutputError(
            f"tune: cannot read or write {path} ({why}); free some space there and repeat the command, which continues "
            "after the last trial, or remove the file if it is damaged"
        ) from error


def _import_optuna() -> Any:
    try:
        import optuna
        import sqlalchemy  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"tune: searching needs Optuna, and {error.name or 'optuna'} is not installed; "
            "pip install 'voxelocity[tune]'"
        ) from None
    return optuna


def _label(choice: Any) -> Any:
    """A choice as Optuna takes it: itself, or as text."""
    return choice if choice is None or isinstance(choice, (bool, int, float, str)) else json.dumps(choice)
