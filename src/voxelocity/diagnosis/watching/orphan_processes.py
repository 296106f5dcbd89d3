"""Processes that a command leaves behind when it ends and that are still recorded: background jobs, daemons."""

from __future__ import annotations

from pathlib import Path

import psutil

from voxelocity.diagnosis.recorder.settings import VARIABLE, Settings


def orphan_processes(recording: Path) -> list[int]:
    """Ids of the processes that still run with this recording in their environment, as far as we may read it.

    Reads the environment of each process on the machine.
    """
    folder = str(recording.resolve())
    return [process.pid for process in psutil.process_iter() if _folder_of(process) == folder]


def orphan_processes_text(pids: list[int], folder: Path) -> str:
    """What to say about them, and what to do."""
    those = f"process {pids[0]}" if len(pids) == 1 else f"processes {', '.join(map(str, pids))}"
    runs = "still runs and is" if len(pids) == 1 else "still run and are"
    return (
        f"the command has ended, but its {those} {runs} recorded: this report covers what was seen until now; "
        f"start it in the foreground, or remove {folder / 'diagnosis.json'} when it has ended and run "
        f"'voxelocity diagnose {folder}'"
    )


def _folder_of(process: psutil.Process) -> str | None:
    """The folder of the recording that the process was started into; None if there is none, or we may not read it."""
    try:
        text = process.environ().get(VARIABLE)
        return None if text is None else Settings.from_json(text).folder
    except (psutil.Error, OSError, ValueError):
        return None
