"""Whether a command can be watched at all, checked before it runs for hours, and what to say if nothing was seen."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath

from voxelocity.core.errors import InputError

_PYTHON = re.compile(r"(python|pypy)[0-9.]*(\.exe)?")
_SHUT_OFF = {
    "I": "ignores PYTHONPATH and all of the user's start-up files",
    "E": "ignores PYTHONPATH",
    "S": "reads no start-up files",
}


def refuse_unwatchable(command: Sequence[str]) -> None:
    """Returns if the command may be watched: it is not Python, or a Python that reads start-up files.

    Raises:
        InputError: a Python with -I, -E or -S, which cannot be recorded.
    """
    if not command or not _PYTHON.fullmatch(PurePath(command[0]).name.lower()):
        return
    flag = _shut_off_flag(command[1:])
    if flag:
        raise InputError(
            f"diagnose: {command[0]} with -{flag} {_SHUT_OFF[flag]}, so nothing could be seen of "
            f"'{shlex.join(command)}'; leave out -{flag} while it is diagnosed"
        )


def nothing_recorded_text(command: Sequence[str], status: int) -> str:
    """What to say if a command left no recording: whether it failed first, other reasons, and what to do."""
    said = f"diagnose: nothing was recorded of '{shlex.join(command)}'"
    if status != 0:
        return f"{said}, which ended with status {status} before Python started; see its own messages above"
    return (
        f"{said}: it started no Python that could be watched. Give the command that trains, such as 'python train.py'; "
        "inside a container or a batch system start 'voxelocity diagnose' there; leave out Python's -I, -E and -S, "
        "and leave PYTHONPATH unchanged"
    )


def _shut_off_flag(arguments: Sequence[str]) -> str:
    """The first of Python's own options that keeps a recorder out; "" where none does."""
    is_value = False
    for argument in arguments:
        if is_value:
            is_value = False
            continue
        if argument == "--check-hash-based-pycs":
            is_value = True
            continue
        if argument.startswith("--"):
            continue
        if not argument.startswith("-") or argument == "-":
            return ""
        for place, letter in enumerate(argument[1:], start=2):
            if letter in _SHUT_OFF:
                return letter
            if letter in "cm":
                return ""
            if letter in "WX":
                # The value follows in the same word or is the next one.
                is_value = place == len(argument)
                break
    return ""
