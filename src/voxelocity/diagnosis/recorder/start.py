"""Starts and stops the recording of a process, and carries it over into its child processes."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from .recording import Recording
from .settings import VARIABLE, Settings
from .writer import note_failure

_recording: Recording | None = None
_is_at_fork = False


def begin(settings: Settings, *, is_from_start: bool = False) -> Recording:
    """Starts recording this process; hooks are set when the program imports torch.

    Args:
        settings: limits and switches.
        is_from_start: whether the process has just begun, so that all of it is recorded until it ends.
    """
    global _recording, _is_at_fork
    recording = _recording = Recording(settings, ends_process=is_from_start)
    recording.start()
    if is_from_start:
        atexit.register(_at_exit, os.getpid())
    if not _is_at_fork and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
        _is_at_fork = True
    return recording


def end(recording: Recording, reason: str, note: str = "") -> None:
    """Ends a recording: what was seen is written and all hooks are removed."""
    global _recording
    recording.stop(reason, note)
    if _recording is recording:
        _recording = None


def begin_from_environment() -> None:
    """Starts recording if the environment asks for it; called when Python starts."""
    text = os.environ.get(VARIABLE)
    if text:
        begin(Settings.from_json(text), is_from_start=True)


def begin_worker(settings: Settings, key: int, worker_id: int, *, asked_s: float) -> None:
    """Records a loader's worker process, from now on.

    Args:
        settings: of the recording.
        key: the loader's.
        worker_id: its number among the loader's workers.
        asked_s: `time.monotonic()` when the program asked for workers.
    """
    global _recording
    try:
        recording = _recording
        if recording is None:
            recording = _recording = Recording(settings)
        recording.become_worker(worker_id, asked_s=asked_s)
        _at_end_of_child(recording)
    except Exception:
        note_failure(settings.folder, f"worker {worker_id} of loader {key} could not be watched")


def _after_fork() -> None:
    recording = _recording
    if recording is None:
        return
    try:
        recording.after_fork(lambda: _at_end_of_child(recording))
    except Exception:
        note_failure(recording.settings.folder, "a forked process could not be watched")


def _at_end_of_child(recording: Recording) -> None:
    """Children of multiprocessing end without `atexit`."""
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, end, args=(recording, "program"), exitpriority=100)


def _at_exit(pid: int) -> None:
    if _recording is None or os.getpid() != pid:
        return
    error = getattr(sys, "last_value", None)
    if error is None:
        end(_recording, "program")
    else:
        end(_recording, "error", f"{type(error).__name__}: {error}"[:500])
