"""The folder of a monitor: `samples.csv`, one row per sample, and `monitor.json`, what was watched and how it ended.

Each row is written in one piece and at once, so whatever kills the monitor, at most the last row is torn. A full disk
loses rows but never stops the watching: a failure is reported once, and the next sample tries again."""

from __future__ import annotations

import csv
import errno
import heapq
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from voxelocity_observe.core.errors import InputError, OutputError
from voxelocity_observe.core.warn_once import WarnOnce
from voxelocity_observe.core.whole_file import write_whole
from voxelocity_observe.monitor.nvml import GpuName
from voxelocity_observe.monitor.record import MonitorRecord, columns, number_of, row, row_reader
from voxelocity_observe.monitor.samples import PhaseMark, Sample, ThinnedSamples

SAMPLES, DESCRIPTION = "samples.csv", "monitor.json"
PAGE, PICTURE = "monitor.html", "monitor.png"
_FORMAT = 1
# Errors of a full disk: samples then stay in memory. The user must fix any other failure.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

MAX_PHASES = 10_000


class MonitorFiles:
    """Writes the folder while a program runs. Use it from one thread at a time; another may call `describe`.

    Args:
        folder: is made if it is missing.
        tell: is called with the first failure to write, in words.

    Raises:
        OutputError: the folder holds a monitor's record already, or cannot be written; a full disk is only reported.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self._warn = WarnOnce(tell)
        self._descriptor = -1
        self._num_cores: int | None = None
        self._made = [place for place in (folder, *folder.parents) if not place.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(folder / SAMPLES, flags, 0o644)
        except FileExistsError:
            if not folder.is_dir():
                raise OutputError(f"monitoring: {folder} is a file; name a folder for the record") from None
            raise OutputError(
                f"monitoring: {folder} holds a record already; name another folder, or remove that one"
            ) from None
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise OutputError(
                    f"monitoring: cannot write to {folder} ({error.strerror}); name a folder you may write to"
                ) from None
            self._warn_of_failure(str(error.strerror))

    def add(self, sample: Sample, gpus: Sequence[GpuName]) -> None:
        """Writes a sample's row, and before the first one the names of the columns.

        Args:
            sample: the next one.
            gpus: the GPUs that have columns; the same each time.
        """
        if self._descriptor < 0:
            return
        devices = [(gpu.index, gpu.slice) for gpu in gpus]
        if self._num_cores is None:
            if not self._append(columns(sample, devices)):
                return
            self._num_cores = len(sample.host.core_shares)
        self._append(row(sample, devices, num_cores=self._num_cores))

    def describe(self, record: MonitorRecord, *, begin_s: float, gpus: Sequence[GpuName], is_over: bool) -> None:
        """Writes `monitor.json`: all of a record except its samples and phases."""
        description = {
            "format": _FORMAT,
            "is_over": is_over,
            "command": list(record.command),
            "status": record.status,
            "seconds": round(record.seconds, 3),
            "period_s": record.period_s,
            "own_cpu_s": round(record.own_cpu_s, 4),
            "missing": list(record.missing),
            "begin_s": begin_s,
            "gpus": [asdict(gpu) for gpu in gpus],
            "environment": dict(record.environment),
        }
        try:
            write_whole(self.folder / DESCRIPTION, (json.dumps(description, indent=1) + "\n").encode())
        except OutputError as error:
            reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else ""
            self._warn_of_failure(str(reason or error))

    def close(self) -> None:
        """Closes the file. A second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        """Removes the file, and the folder and those of its parents that were made for it and are empty."""
        self.close()
        (self.folder / SAMPLES).unlink(missing_ok=True)
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()

    def _append(self, cells: Sequence[str]) -> bool:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        line = text.getvalue().encode()
        try:
            size_bytes = os.fstat(self._descriptor).st_size
            if os.write(self._descriptor, line) < len(line):
                # A full disk takes part of a row; the next row would be appended to the rest.
                os.ftruncate(self._descriptor, size_bytes)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._warn_of_failure(str(error.strerror))
            return False
        return True

    def _warn_of_failure(self, reason: str) -> None:
        self._warn(
            "not writable",
            f"files: {self.folder} cannot be written ({reason}); samples are kept in memory, and rows are written "
            "again when there is space",
        )


def read_monitor(folder: str | Path) -> MonitorRecord:
    """What a monitor wrote to its folder, even if it was killed or still runs.

    Torn rows are left out. Long records are thinned as while watching.

    Raises:
        InputError: the folder holds no record, or its description is damaged.
    """
    place = Path(folder)
    try:
        return _read_record(place)
    except InputError:
        raise
    # Values of other kinds than a monitor writes.
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(
            f"monitoring: {place / DESCRIPTION} is damaged ({error}); restore it, or remove it to see the samples alone"
        ) from None


def _read_record(place: Path) -> MonitorRecord:
    described = _read_description(place / DESCRIPTION)
    gpus = [GpuName(**gpu) for gpu in described.get("gpus", ())]
    thinned, missing = ThinnedSamples(), [str(line) for line in described.get("missing", ())]
    num_torn = 0
    try:
        for sample in _read_samples(place / SAMPLES, gpus):
            if sample is None:
                num_torn += 1
            else:
                thinned.add(sample)
    except OSError as error:
        if not described:
            raise InputError(
                f"monitoring: {place} holds no record of a monitor ({SAMPLES}: {error.strerror}); name the folder that "
                "'voxelocity monitor -o' was given"
            ) from None
        missing.append(f"samples: {SAMPLES} cannot be read ({error.strerror})")
    samples = thinned.samples()
    if not described:
        missing.append(f"what was watched: {DESCRIPTION} is missing or damaged")
    elif not described.get("is_over"):
        missing.append("the end: the monitor was killed, or still runs")
    if num_torn:
        missing.append(f"samples: {num_torn} torn {'row' if num_torn == 1 else 'rows'} of {SAMPLES}")
    phases, left_out = read_phases(place, number_of(described.get("begin_s", 0.0))) if described else ([], "")
    return MonitorRecord(
        command=tuple(described.get("command", ())),
        status=described.get("status"),
        seconds=max(number_of(described.get("seconds", 0.0)), samples[-1].time_s if samples else 0.0),
        period_s=number_of(described.get("period_s", samples[0].period_s if samples else 0.0)),
        own_cpu_s=number_of(described.get("own_cpu_s", 0.0)),
        samples=samples,
        phases=phases,
        missing=[*missing, left_out] if left_out else missing,
        environment=described.get("environment", {}),
    )


def _read_description(path: Path) -> Mapping[str, Any]:
    try:
        described = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return described if isinstance(described, dict) and described.get("format") == _FORMAT else {}


def _read_samples(path: Path, gpus: Sequence[GpuName]) -> Iterator[Sample | None]:
    """Each row's sample, None for a torn row."""
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        rows = csv.reader(_whole_lines(file))
        header = next(rows, None)
        if header is None or "time_s" not in header or "period_s" not in header:
            return
        read = row_reader(header, gpus)
        for cells in rows:
            try:
                yield read(cells)
            except ValueError:
                yield None


def _whole_lines(file: io.TextIOWrapper) -> Iterator[str]:
    # A torn last row may have all its cells and half a number.
    return (line if line.endswith("\n") else "torn" for line in file)


def read_phases(folder: Path, begin_s: float) -> tuple[list[PhaseMark], str]:
    """The phases by their beginning, at most the `MAX_PHASES` longest; and a note if some were left out.

    Torn or strange lines are skipped: a program may be killed while it writes one.

    Args:
        folder: with the span files; a folder without any is not an error.
        begin_s: the machine's clock (`time.perf_counter`) when sampling began.
    """
    num_seen = 0
    longest: list[tuple[float, int, PhaseMark]] = []
    for number, span in enumerate(_spans(folder)):
        mark = _mark(span, begin_s)
        if mark is None:
            continue
        num_seen += 1
        entry = (mark.seconds, -number, mark)
        if len(longest) < MAX_PHASES:
            heapq.heappush(longest, entry)
        else:
            heapq.heappushpop(longest, entry)
    marks = sorted((mark for _, _, mark in longest), key=lambda mark: (mark.start_s, -mark.seconds))
    left_out = num_seen - len(marks)
    return marks, f"phases: the {left_out:,} shortest of {num_seen:,} are left out" if left_out else ""


def _spans(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.glob("spans-*.jsonl")):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        yield json.loads(line)
                    except ValueError:
                        continue
        except OSError:
            continue


def _mark(span: Any, begin_s: float) -> PhaseMark | None:
    try:
        return PhaseMark(
            name=str(span["name"]),
            start_s=number_of(span["start_s"]) - begin_s,
            seconds=number_of(span["seconds"]),
            color=str(span.get("color") or ""),
            rank=int(span.get("rank") or 0),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
