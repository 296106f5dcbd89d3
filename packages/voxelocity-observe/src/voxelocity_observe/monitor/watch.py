"""Runs a command under a monitor, from its start to the page. Failures here never change the command's status."""

from __future__ import annotations

import datetime
import itertools
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from voxelocity_observe.core.command import shell_status, watch_command
from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.core.terminal_text import printable
from voxelocity_observe.monitor.files import SAMPLES
from voxelocity_observe.monitor.live import open_live_view
from voxelocity_observe.monitor.monitor import Monitor
from voxelocity_observe.monitor.record import MonitorRecord
from voxelocity_observe.monitor.samples import Sample
from voxelocity_observe.monitor.summary import summary_lines
from voxelocity_observe.spans.phases import FOLDER_VARIABLE

_DEFAULT_FOLDER = Path("monitor")
_LIVE_EVERY_S = 1.0


def watch(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    period_s: float = 0.5,
    is_live: bool = False,
    has_page: bool = True,
    openmetrics: Path | None = None,
    stream: TextIO | None = None,
) -> int:
    """The command's exit status as a shell reports it; the folder holds its record.

    Nothing is written to stdout, which belongs to the command.

    Args:
        command: its name or path, and its arguments.
        folder: of the record; by default one below `monitor` in the current folder, named by date and time.
        period_s: seconds between two samples.
        is_live: whether the last lines of the terminal show the newest sample, if `stream` is a terminal.
        has_page: whether a page and a picture are made at the end.
        openmetrics: file that always holds the newest sample.
        stream: where messages go; stderr if not given.

    Raises:
        CommandError: the command cannot be started; nothing is left in the folder.
        ConfigError: the period is out of range.
        OutputError: the folder holds a record already, or cannot be written.
    """
    # A program that was started without a stderr has none.
    stream = stream or sys.stderr
    speak = _speaker(stream) if stream is not None else lambda text: None

    def prepare(place: Path) -> Monitor:
        """Reports a folder that cannot be written before the command starts."""
        on_sample = None if openmetrics is None else lambda sample: _write_openmetrics(sample, openmetrics, monitor)
        return Monitor(place, period_s, command=command, tell=speak, on_sample=on_sample).prepare()

    place, monitor = _in_new_folder(prepare) if folder is None else (folder, prepare(folder))
    view = open_live_view(stream, speak) if is_live and stream is not None else None

    def tick() -> None:
        cpu_begin_s = time.thread_time()
        if view is not None:
            view.draw(monitor.last, command)
        monitor.other_cpu_s += time.thread_time() - cpu_begin_s

    def at_start(pid: int) -> None:
        monitor.start(pid)
        tick()

    try:
        status = watch_command(
            command,
            environment={FOLDER_VARIABLE: str(monitor.folder)},
            on_start=at_start,
            tick=None if view is None else tick,
            tick_s=_LIVE_EVERY_S,
            on_end=monitor.take,
        )
    except BaseException:
        monitor.discard()
        raise
    finally:
        if view is not None:
            view.close()
    record = monitor.stop(status)
    made = _render(record, place, speak) if has_page else None
    for line in summary_lines(record, made or place, reported=monitor.notes):
        speak(line)
    return shell_status(status)


def _render(record: MonitorRecord, folder: Path, speak: Callable[[str], None]) -> Path | None:
    """The page, None if it could not be made."""
    from voxelocity_observe.monitor.page import draw_record

    try:
        return draw_record(record, folder)
    except Exception as error:
        # Whatever failed, the record is complete, and the command's own status counts.
        kind = "" if isinstance(error, (OutputError, OSError)) else f"{type(error).__name__}: "
        speak(f"the page could not be made ({kind}{error}); the record is complete")
        return None


def _write_openmetrics(sample: Sample, path: Path, monitor: Monitor) -> None:
    from voxelocity_observe.monitor.exposition import write_openmetrics

    try:
        write_openmetrics(sample, path)
    except (OutputError, OSError) as error:
        monitor.note(f"openmetrics: {error}")


def _in_new_folder(prepare: Callable[[Path], Monitor]) -> tuple[Path, Monitor]:
    """A folder that did not exist, named by date and time, and its monitor."""
    name = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    place, numbers = _DEFAULT_FOLDER / name, itertools.count(2)
    while True:
        try:
            return place, prepare(place)
        except OutputError:
            # It may belong to another monitor, such as another rank's, that began in the same second.
            if not (place / SAMPLES).exists():
                raise
            place = _DEFAULT_FOLDER / f"{name}_{next(numbers)}"


def _speaker(stream: TextIO) -> Callable[[str], None]:
    def speak(text: str) -> None:
        line = f"voxelocity: {printable(text)}"
        if stream.isatty():
            columns = shutil.get_terminal_size().columns
            line = textwrap.fill(line, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        try:
            print(line, file=stream, flush=True)
        except (OSError, ValueError):
            # The reader of the stream is gone; the command's status still counts.
            return

    return speak
