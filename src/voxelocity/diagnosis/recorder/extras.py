"""What is seen beside the steps, each by a module of its own with `start(writer, current_part)` and `stop()`."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Callable

from .writer import Writer, note_failure

EXTRAS = ("stacks", "syncs", "transforms", "files")
"""Modules of this package, in the order in which they are started."""


def start_extras(writer: Writer, current_part: Callable[[], str], names: tuple[str, ...] = EXTRAS) -> list[Any]:
    """Starts those that are there; one that fails is told of in the recording and left out."""
    started = []
    for name in names:
        module = find_module(name)
        if module is None:
            continue
        try:
            module.start(writer, current_part)
        except Exception:
            note_failure(writer.folder, f"{name} could not be started")
        else:
            started.append(module)
    return started


def stop_extras(started: list[Any], folder: str) -> None:
    """Stops them, last one first, and empties the list."""
    while started:
        module = started.pop()
        try:
            module.stop()
        except Exception:
            note_failure(folder, f"{module.__name__} could not be stopped")


def find_module(name: str) -> Any:
    """A module of this package, None where there is none of this name."""
    full_name = f"{__package__}.{name}"
    return importlib.import_module(full_name) if importlib.util.find_spec(full_name) is not None else None
