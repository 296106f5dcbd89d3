"""A run's folder: where its files are, and whether a command may start or continue a run there or must be refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from filelock import FileLock, Timeout

from voxelocity.core.errors import ConfigError, InputError, OutputError
from voxelocity.core.plain import parse_yaml, shortened
from voxelocity.core.whole_file import put_in_place, remove_abandoned
from voxelocity.infer import SPEC_NAME, WEIGHTS_NAME
from voxelocity.observe import events_path, read_events
from voxelocity.training.saved_run import SavedRun

State = Literal["empty", "unfinished", "finished"]

_LONGEST_NAME_BYTES = 255
_LONGEST_PATH_BYTES = 4096
# Below the folder: "checkpoints/" and the hidden name of a file that is being written.
_LONGEST_INSIDE_BYTES = 100
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run. `run.yaml` marks it as begun, the event `run_finished` as finished."""

    path: Path

    @property
    def record(self) -> Path:
        return self.path / "run.yaml"

    @property
    def events(self) -> Path:
        return events_path(self.path)

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

    @property
    def tracking(self) -> Path:
        return self.path / "tracking"

    @property
    def holds_run(self) -> bool:
        return self.record.is_file()

    def state(self) -> State:
        """How far a run came here, by its events: a page can be rendered at any time and proves nothing.

        Raises:
            InputError: the events are damaged.
        """
        if not self.holds_run:
            return "empty"
        events = read_events(self.events) if self.events.exists() else []
        marks = [event["event"] for event in events if event["event"] in ("run_started", "run_finished")]
        return "finished" if marks[-1:] == ["run_finished"] else "unfinished"

    def check(self) -> None:
        """Refuses, before any work is done, a folder that `open` would refuse later; creates and writes nothing.

        Raises:
            OutputError: it is below a file, cannot be written, or holds something that is not a run.
        """
        place = self.path.absolute()
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise self._unwritable(f"{place} is a file")
        if not os.access(place, os.W_OK | os.X_OK):
            raise self._unwritable(f"no permission to write into {place}")
        if place == self.path.absolute() and not self.holds_run:
            self._check_holds_nothing_else()

    def open(self) -> None:
        """Creates the folder and checks that it can be written.

        Raises:
            OutputError: it cannot be created or written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from None

    def _unwritable(self, reason: str) -> OutputError:
        name = str(self.path)
        shown = name if len(name) <= 2 * _LONGEST_NAME_BYTES else f"{name[:60]}..."
        return OutputError(f"train: cannot write into the folder {shown} ({reason}); choose another with -o")

    def check_length(self) -> None:
        """Refuses a path that the system would reject, before anything uses it.

        Raises:
            OutputError: a name in it, or the whole path, is too long.
        """
        place = self.path.absolute()
        too_long = next((part for part in place.parts if len(os.fsencode(part)) > _LONGEST_NAME_BYTES), "")
        if too_long:
            raise self._unwritable(
                f"the name {too_long[:20]}... has {len(os.fsencode(too_long))} bytes, a file system allows "
                f"{_LONGEST_NAME_BYTES}"
            )
        num_bytes = len(os.fsencode(place))
        if num_bytes > _LONGEST_PATH_BYTES - _LONGEST_INSIDE_BYTES:
            raise self._unwritable(
                f"the path has {num_bytes} bytes, the system allows {_LONGEST_PATH_BYTES} with the names inside"
            )

    def _check_holds_nothing_else(self) -> None:
        if any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            raise OutputError(
                f"train: the folder {self.path} is not empty and holds no run; choose another with -o, or empty it"
            )

    def clear(self) -> None:
        """Removes what a run writes; anything else that the user has put into the folder stays."""
        for folder in (self.checkpoints, self.tracking):
            shutil.rmtree(folder, ignore_errors=True)
        models = (self.path / WEIGHTS_NAME, self.path / SPEC_NAME)
        written = (self.record, self.events, self.scores, self.slices, self.metrics, self.progress_picture, self.report)
        of_ranks = self.path.glob("events-rank*.jsonl")
        for file in (*written, *models, *of_ranks):
            file.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[str]:
        """Keeps other processes from training here within the block; the system frees the lock if this process dies.

        Removes what killed writers have left.

        Yields:
            Why nothing keeps others away, for a warning; normally "".

        Raises:
            OutputError: another process is training into this folder now, or the lock cannot be created.
        """
        lock = FileLock(self.path / ".lock", blocking=False)
        notice = ""
        try:
            lock.acquire()
        except Timeout:
            raise OutputError(
                f"train: another process is training into {self.path} now; wait for it, or choose another with -o"
            ) from None
        except (OSError, NotImplementedError) as error:
            # filelock raises NotImplementedError on a system without flock.
            if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
                raise self._unwritable(f"{self.path / '.lock'}: {error.strerror or error}") from None
            notice = (
                f"train: the file system of {self.path} has no locks, so nothing keeps another process from training "
                "into the same folder; do not start a second one"
            )
        try:
            self._remove_abandoned()
            yield notice
        finally:
            lock.release()

    def _remove_abandoned(self) -> None:
        # Not those of the page: `voxelocity report` writes it without the lock.
        written = (self.record, self.scores, self.slices, self.metrics, self.progress_picture)
        remove_abandoned(self.path, names=(*(file.name for file in written), WEIGHTS_NAME, SPEC_NAME))

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Writes `run.yaml` in one piece."""
        self.write_text(self.record, yaml.safe_dump(dict(record), sort_keys=False, width=110, allow_unicode=True))

    def read_saved_run(self) -> SavedRun:
        """How this run was started.

        Raises:
            ConfigError: `run.yaml` is damaged or was written by another version.
        """
        try:
            record = parse_yaml(self.record.read_text(encoding="utf-8"))
        # Text that is not UTF-8 raises ValueError too.
        except (ValueError, OSError) as error:
            raise ConfigError(f"train: {self.record} cannot be read ({error}); start again with --overwrite") from None
        if not isinstance(record, dict):
            raise ConfigError(
                f"train: {self.record} holds no run, but {shortened(record)}; start again with --overwrite"
            )
        return SavedRun.parse(record, where=str(self.record))

    def write_text(self, path: Path, text: str) -> None:
        """Writes a text file of this run so that a reader never sees half of it."""
        put_in_place(path, text.encode())

    def write_scores(self, cases: list[dict[str, Any]]) -> None:
        self.write_text(self.scores, json.dumps({"cases": cases}, indent=1) + "\n")


def refuse_finished(folder: RunFolder) -> InputError:
    """The error for a command that would train into a finished run."""
    page = "" if folder.report.is_file() else f" (`voxelocity report {folder.path}` renders its page, which is missing)"
    return OutputError(
        f"train: {folder.path} already holds a finished run{page}; choose another folder with -o, "
        "or replace it with --overwrite"
    )
