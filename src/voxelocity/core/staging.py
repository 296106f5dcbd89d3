"""Files whose content is somewhere else until it is read: which local file has it. Knows no network.

A folder of such files is registered with a function that brings the content of one of them here
(`data.source.remote`). Whatever opens scans asks `staged` for the file to open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Stage = Callable[[Path], Path]
"""Brings the content of a file here, or of all files in a folder; where it is. Safe from several threads."""

_stages: dict[str, Stage] = {}


def register(root: Path, stage: Stage) -> None:
    """From now on, files below `root` are read where `stage` puts them."""
    _stages[os.path.join(os.fspath(root), "")] = stage


def is_registered(root: Path) -> bool:
    """Whether files below `root` are read somewhere else."""
    return os.path.join(os.fspath(root), "") in _stages


def staged(path: Path) -> Path:
    """The file or folder to read: `path` itself unless it lies below a registered folder.

    Raises:
        ScanError: its content cannot be brought here.
    """
    for root, stage in _stages.items():
        if os.fspath(path).startswith(root):
            return stage(path)
    return path
