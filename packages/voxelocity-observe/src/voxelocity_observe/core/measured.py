"""Measurements kept in the user's cache folder, so that each is made once on each machine.

One file for each thing that was measured. It describes what was measured next to the values, and may be removed at any
time: a missing or damaged file costs one more measurement.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.core.whole_file import write_whole

FOLDER_NAME = "measured"
"""Of the folder with the files, in the cache folder."""


def read_measured(folder: Path, about: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was kept about exactly this, `about` included; None if there is no such file or it is damaged.

    Args:
        folder: may be missing.
        about: what was measured and where, as plain data.
    """
    try:
        record = json.loads(measured_path(folder, about).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or any(record.get(key) != value for key, value in about.items()):
        return None
    return record


def keep_measured(folder: Path, about: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Keeps `values` for `read_measured`; False if the folder is full or protected: the next run measures again."""
    try:
        write_whole(measured_path(folder, about), json.dumps({**about, **values}, indent=1).encode())
    except OutputError:
        return False
    return True


def measured_path(folder: Path, about: Mapping[str, Any]) -> Path:
    """The file for exactly this, which may not exist."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
    return folder / f"{digest}.json"
