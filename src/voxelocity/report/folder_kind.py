"""Which of the commands wrote a folder, recognized by the file that only this command writes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

FolderKind = Literal["run", "monitor", "diagnosis"]

_MARKS: dict[str, FolderKind] = {"run.yaml": "run", "monitor.json": "monitor", "diagnosis.json": "diagnosis"}


def folder_kind(folder: Path) -> FolderKind | None:
    """The kind of a folder; None where it holds none of them. A run that was watched as well is a run."""
    return next((kind for name, kind in _MARKS.items() if (folder / name).is_file()), None)
