"""What was changed about a file while it was read, without a loss, or cannot be known: said once for each data set."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from voxelocity.core.warn_once import WarnOnce

Note = Callable[[str, str], None]
"""Called with the kind of a note and its text, which names the file."""


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


warn_once = WarnOnce(_warn)
"""For what concerns one folder or file, named in the cause: commands read the same files several times."""


_data_sets: set[str] = set()


def as_one_data_set(files: Iterable[Path]) -> None:
    """Lets notes about these files be said once for all of them, also where each case has a folder of its own."""
    if folders := {os.path.dirname(os.path.abspath(file)) for file in files}:
        _data_sets.add(os.path.commonpath(folders))


def data_set_of(folder: str) -> str:
    """The folder of the data set that this one is known to belong to; itself where that is not known."""
    known = (place for place in tuple(_data_sets) if os.path.join(folder, "").startswith(os.path.join(place, "")))
    return max(known, key=len, default=folder)


def notes_about(files: Iterable[Path]) -> Note:
    """Warns once of each kind for the data set of these files of one case: the folder that holds the case, or all."""
    folders = {os.path.dirname(os.path.abspath(file)) for file in files}
    # Files in one folder may have a folder for each case above them.
    place = os.path.commonpath(folders) if len(folders) > 1 else os.path.dirname(next(iter(folders)))
    place = data_set_of(place)
    return lambda kind, text: warn_once(f"{kind} {place}", f"{text} (said once for each data set)")
