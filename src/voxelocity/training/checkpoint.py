"""Training state on disk: written beside its place, synced, then moved there; an older good one is kept."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import torch

from voxelocity.core.errors import CheckpointError

_NAME = re.compile(r"step_(\d{9})\.pt$")


class Checkpoints:
    """The checkpoints in one folder. Files hold tensors and plain values and load with `weights_only=True`."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Writes the state after `step` steps; a reader, or a kill at any moment, sees the whole file or none of it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"step_{step:09d}.pt"
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        for old in self.paths()[: -self._keep]:
            old.unlink(missing_ok=True)
        return path

    def paths(self) -> list[Path]:
        """Checkpoint files, oldest first."""
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if _NAME.match(path.name))

    def load_latest(self) -> tuple[dict[str, Any], Path, list[Path]] | None:
        """The newest state that can be read, its file, and newer files that could not; None where there is no file.

        Raises:
            CheckpointError: there are files, but none can be read.
        """
        damaged: list[Path] = []
        for path in reversed(self.paths()):
            try:
                state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError):
                damaged.append(path)
                continue
            return state, path, damaged
        if damaged:
            raise CheckpointError(
                f"train: none of the {len(damaged)} checkpoints in {self._folder} can be read; "
                "start the run anew with --overwrite"
            )
        return None
