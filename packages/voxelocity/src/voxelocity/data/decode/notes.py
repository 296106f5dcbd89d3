"""What was changed about a file while it was read, without a loss, or cannot be known: said once for each data set."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from voxelocity_observe.core.warn_once import WarnOnce

Note = Callable[[str, str], None]
"""Called with the kind of a note and its text, which names the file."""


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


warn_once = WarnOnce(_warn)
"""For what concerns one folder or file, named in the cause: commands read the same files several times."""


_data_set_of_folder: dict[str, str] = {}


def as_one_data_set(files: Iterable[Path]) -> None:
    """Lets notes about these files be said once for all of them, also where each case has a folder of its own."""
    folders = {os.path.dirname(os.path.abspath(file)) for file in files}
    # Not the folder above all of them: it may be above other data sets too, whose notes would be lost.
    _data_set_of_folder.update(dict.fromkeys(folders, min(folders, default="")))


def data_set_of(folder: str) -> str:
    """A name of the data set that this folder is known to belong to; the folder where that is not known."""
    return _data_set_of_folder.get(folder, folder)


def notes_about(files: Iterable[Path]) -> Note:
    """Warns once of each kind for the data set of these files of one case: the folder that holds the case, or all."""
    folders = {os.path.dirname(os.path.abspath(file)) for file in files}
    # Files in one folder may have a folder for each case above them.
    place = os.path.commonpath(folders) if len(folders) > 1 else os.path.dirname(next(iter(folders)))
    place = _data_set_of_folder.get(min(folders), place)
    return lambda kind, text: warn_once(f"{kind} {place}", f"{text} (reported once per data set)")
