"""A run's folder: what lies where, and whether a command may start, go on, or must be refused there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from filelock import FileLock, Timeout

from voxelocity.core.cases import Fold
from voxelocity.core.errors import ConfigError, InputError, OutputError
from voxelocity.infer import SPEC_NAME, WEIGHTS_NAME
from voxelocity.planning import Plan

State = Literal["empty", "unfinished", "finished"]


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run. `run.yaml` marks a run as begun, `report.html` is its last file."""

    path: Path

    @property
    def record(self) -> Path:
        return self.path / "run.yaml"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def scores(self) -> Path:
        return self.path / "scores.json"

    @property
    def slices(self) -> Path:
        return self.path / "slices.npz"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def progress_picture(self) -> Path:
        return self.path / "progress.png"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def state(self) -> State:
        if not self.record.is_file():
            return "empty"
        return "finished" if self.report.is_file() else "unfinished"

    def check(self) -> None:
        """Refuses, before any work is done, a folder that `open` would refuse later; makes and writes nothing.

        Raises:
            OutputError: it lies below a file, cannot be written, or holds something that is not a run.
        """
        place = self.path.absolute()
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise self._unwritable(f"{place} is a file")
        if not os.access(place, os.W_OK | os.X_OK):
            raise self._unwritable(f"no right to write into {place}")
        if place == self.path.absolute() and self.state() == "empty":
            self._check_holds_nothing_else()

    def open(self) -> None:
        """Makes the folder and proves that it can be written.

        Raises:
            OutputError: it cannot be made or written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".writable.{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from None

    def _unwritable(self, reason: str) -> OutputError:
        return OutputError(f"train: cannot write into the folder {self.path} ({reason}); choose another with -o")

    def _check_holds_nothing_else(self) -> None:
        if any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            raise OutputError(
                f"train: the folder {self.path} is not empty and holds no run; choose another with -o, or empty it"
            )

    def clear(self) -> None:
        """Removes what a run writes; anything else a person has put into the folder stays."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        models = (self.path / WEIGHTS_NAME, self.path / SPEC_NAME)
        written = (self.record, self.events, self.scores, self.slices, self.metrics, self.progress_picture, self.report)
        for file in (*written, *models):
            file.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training here meanwhile; the system lets go when this process dies.

        Raises:
            OutputError: another process trains into this folder now.
        """
        lock = FileLock(self.path / ".lock", blocking=False)
        try:
            lock.acquire()
        except Timeout:
            raise OutputError(
                f"train: another process is training into {self.path} now; wait for it, or choose another with -o"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Writes `run.yaml` at once."""
        self.write_text(self.record, yaml.safe_dump(dict(record), sort_keys=False, width=110, allow_unicode=True))

    def read_plan(self) -> Plan:
        """The plan this run was begun with.

        Raises:
            ConfigError: `run.yaml` is damaged or was written by another version.
        """
        return Plan.parse(self._read_record("plan"), where=str(self.record))

    def read_fold(self) -> Fold:
        """The fold this run was begun with.

        Raises:
            ConfigError: `run.yaml` is damaged.
        """
        fold = self._read_record("dataset").get("fold")
        if fold == "all" or isinstance(fold, int):
            return fold
        raise ConfigError(f"train: {self.record} names no fold ({fold!r}); start anew with --overwrite")

    def _read_record(self, key: str) -> dict[str, Any]:
        try:
            values = yaml.safe_load(self.record.read_text())[key]
        except (yaml.YAMLError, KeyError, TypeError, OSError) as error:
            raise ConfigError(f"train: {self.record} cannot be read ({error}); start anew with --overwrite") from None
        if not isinstance(values, dict):
            raise ConfigError(f"train: {self.record}: '{key}' is damaged; start anew with --overwrite")
        return values

    def write_text(self, path: Path, text: str) -> None:
        """Writes a text file of this run so that a reader never sees half of it."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(text)
        os.replace(temporary, path)

    def write_scores(self, cases: list[dict[str, Any]]) -> None:
        self.write_text(self.scores, json.dumps({"cases": cases}, indent=1) + "\n")


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys whose values differ between two plain plans, as `key: old -> new`."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines.extend(differing_keys(before, after, f"{prefix}{key}."))
        elif before != after:
            lines.append(f"{prefix}{key}: {before} -> {after}")
    return lines


def refuse_finished(folder: RunFolder) -> InputError:
    """The error for a command that would train into a finished run."""
    return OutputError(
        f"train: {folder.path} already holds a finished run; choose another folder with -o, "
        "or replace it with --overwrite"
    )
