"""A run's folder: where its files are, and whether a command may start or continue a run there or must be refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from voxelocity.core.learning import UNLEARNED
from voxelocity.core.records import CaseScore
from voxelocity.infer import SPEC_NAME, WEIGHTS_NAME
from voxelocity.metrics import NSD_TOLERANCE_MM
from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.core.events import events_path, read_events
from voxelocity_observe.core.links import check_links
from voxelocity_observe.core.plain import parse_yaml, yaml_text
from voxelocity_observe.core.quantities import listed
from voxelocity_observe.core.whole_file import put_in_place, remove_abandoned
from voxelocity_observe.sinks import TRACKERS

_LONGEST_NAME_BYTES = 255
_LONGEST_PATH_BYTES = 4096
# Below the folder: "checkpoints/" and the hidden name of a file that is being written.
_LONGEST_INSIDE_BYTES = 100
# What a run writes in place, and the folders that it writes into; of those of trackers, their own links stay theirs.
_WRITTEN = ("events*.jsonl", ".lock", "checkpoints")
_TRACKED = (
    "tracking",
    "tracking/*",
    *(f"tracking/{folder}" for tracker in TRACKERS.values() for folder in tracker.folders),
)
EXPOSED = "start_may_have_learned_from_it"
"""The key of a case in `scores.json` whose score may be too high for this reason; also of the event `start`."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class RunFolder:
    """Paths of one run. `run.yaml` marks it as begun, the event `run_finished` as finished."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "run.yaml"
        self.events = events_path(path)
        self.checkpoints = path / "checkpoints"
        self.scores = path / "scores.json"
        self.slices = path / "slices.npz"
        self.metrics = path / "metrics.csv"
        self.progress_picture = path / "progress.png"
        self.report = path / "report.html"
        self.tracking = path / "tracking"

    @property
    def holds_run(self) -> bool:
        # Not `Path.is_file`, which raises an error where a folder above may not be entered; `check` names that folder.
        return os.path.isfile(self.record)

    def cure_without_run(self, otherwise: str) -> str:
        """What to do where there is no run: `otherwise`, unless there are folds, each of which is one."""
        folds = sorted(record.parent.name for record in self.path.glob(f"fold_*/{self.record.name}"))
        if not folds:
            return otherwise
        return f"it has {listed(folds, 5)}: repeat the command with --folds, or name one of these folders"

    def is_of_job(self, job: str) -> bool:
        """Whether the run was begun by this job of a launcher, which may have been started again since."""
        try:
            record = parse_yaml(self.record.read_text(encoding="utf-8"))
        except (ValueError, OSError):
            return False
        return isinstance(record, dict) and record.get("job", "") == job

    def is_finished(self) -> bool:
        """Whether the run came to its end, by its events: a page can be rendered at any time and proves nothing.

        It stays finished while it is validated again, and if that is stopped; it is not, once it got more time.

        Raises:
            InputError: the events are damaged.
        """
        events = read_events(self.events) if self.events.exists() else []
        ends = [event["event"] for event in events if event["event"] in ("run_finished", "extended")]
        return ends[-1:] == ["run_finished"]

    def check(self) -> None:
        """Refuses, before any work is done, a folder that `open` would refuse later; creates and writes nothing.

        Raises:
            OutputError: it is below a file, cannot be written, holds something that is not a run, or a link in it leads
                elsewhere.
        """
        place = self.path.absolute()
        while not os.path.exists(place):
            place = place.parent
        if not place.is_dir():
            raise self._unwritable(f"{place} is a file")
        if not os.access(place, os.W_OK | os.X_OK):
            raise self._unwritable(f"no permission to write into {place}")
        is_other = place == self.path.absolute() and not self.holds_run
        if is_other and any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            cure = self.cure_without_run("choose another with -o, or empty it")
            raise OutputError(f"train: the folder {self.path} is not empty and holds no run; {cure}")
        check_links(self.path, _WRITTEN, where="train")
        check_links(self.path, _TRACKED, where="train", deep=False)

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

    def check_path(self) -> None:
        """Refuses a path that the system would reject or `run.yaml` cannot hold, before anything uses it.

        Raises:
            OutputError: a name in it, or the whole path, is too long or not UTF-8.
        """
        place = self.path.absolute()
        try:
            str(place).encode()
        except UnicodeEncodeError:
            raise self._unwritable("its path is not UTF-8 text") from None
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

    def clear(self) -> None:
        """Removes what a run writes, but for its record, and nothing else that is in the folder.

        The record of the next run takes its place: without one, a folder with files of the user's would be refused.
        """
        for folder in (self.checkpoints, self.tracking):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (*self._locked_files(), self.events, self.report, *self.path.glob("events-rank*.jsonl")):
            if file != self.record:
                file.unlink(missing_ok=True)

    def _locked_files(self) -> tuple[Path, ...]:
        """Files that are written under the lock only. Not the page: `voxelocity report` writes it without the lock."""
        models = (self.path / WEIGHTS_NAME, self.path / SPEC_NAME)
        return (self.record, self.scores, self.slices, self.metrics, self.progress_picture, *models)

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
                f"train: the file system of {self.path} has no locks, so a second process could train into the same "
                "folder; do not start one"
            )
        try:
            remove_abandoned(self.path, names=tuple(file.name for file in self._locked_files()))
            yield notice
        finally:
            lock.release()

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Writes `run.yaml`."""
        put_in_place(self.record, yaml_text(record).encode())

    def write_scores(
        self, scores: Iterable[CaseScore], *, unlearned: str = "", exposed: Mapping[str, str] | None = None
    ) -> None:
        """Writes `scores.json`.

        Args:
            scores: of the cases.
            unlearned: why the training is too short to be scored, if it is.
            exposed: ids of cases that the model which the run started from may have learned from, and why.
        """
        marks = exposed or {}
        record = {
            "nsd_tolerance_mm": NSD_TOLERANCE_MM,
            UNLEARNED: unlearned,
            "cases": [
                asdict(score) | ({EXPOSED: marks[score.case_id]} if score.case_id in marks else {}) for score in scores
            ],
        }
        put_in_place(self.scores, (json.dumps(record, indent=1) + "\n").encode())
