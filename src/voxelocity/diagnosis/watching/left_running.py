"""Processes that a command leaves behind when it ends and that go on to be recorded: background jobs, daemons."""

from __future__ import annotations

from pathlib import Path

import psutil

from voxelocity.diagnosis.recorder.settings import VARIABLE, Settings


def left_running(recording: Path) -> list[int]:
    """Ids of the processes that still run with this recording in their environment, as far as we may look at them.

    Costs one look at each process of the machine.
    """
    folder = str(recording.resolve())
    return [process.pid for process in psutil.process_iter() if _folder_of(process) == folder]


def left_running_text(pids: list[int], folder: Path) -> str:
    """What to tell of them, and what to do."""
    those = f"process {pids[0]}" if len(pids) == 1 else f"processes {', '.join(map(str, pids))}"
    runs = "runs" if len(pids) == 1 else "run"
    return (
        f"the command has ended and {those} of it {runs} on, still recorded: what is told is what was seen until now; "
        f"start it in the foreground, or remove {folder / 'diagnosis.json'} when it has ended and give "
        f"'voxelocity diagnose {folder}'"
    )


def _folder_of(process: psutil.Process) -> str | None:
    """Of the recording that the process was started into; None where it was into none, or where nobody may look."""
    try:
        text = process.environ().get(VARIABLE)
        return None if text is None else Settings.from_json(text).folder
    except (psutil.Error, OSError, ValueError):
        return None
