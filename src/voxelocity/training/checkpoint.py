"""Training state on disk: written beside its place, synced, then moved there; an older good one is kept."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from voxelocity.core.errors import CheckpointError

_NAME = re.compile(r"step_\d{9}\.pt$")


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

    def latest_step(self) -> int:
        """Steps done at the newest checkpoint; 0 where there is none."""
        return max((int(path.stem.removeprefix("step_")) for path in self.paths()), default=0)

    def load_latest(self, *, like: Mapping[str, Any]) -> tuple[dict[str, Any], Path, list[Path]] | None:
        """The newest state that can be used, its file, and newer files that could not; None where there is no file.

        Args:
            like: a state before the first step. One that can be used has the same keys, and tensors of the same shapes.

        Raises:
            CheckpointError: there are files, but none can be used.
        """
        damaged: list[Path] = []
        for path in reversed(self.paths()):
            state = _load(path)
            if _fits(state, like):
                return state, path, damaged
            damaged.append(path)
        if damaged:
            raise CheckpointError(
                f"train: none of the {len(damaged)} checkpoints in {self._folder} can be used; "
                "start the run anew with --overwrite"
            )
        return None


def _load(path: Path) -> Any:
    """What the file holds; None where it is damaged."""
    try:
        # Torch would take anything else for a format of old, and fail in many ways.
        if zipfile.is_zipfile(path):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, LookupError, pickle.UnpicklingError, zipfile.BadZipFile):
        pass
    return None


def _fits(state: Any, like: Any) -> bool:
    if isinstance(like, torch.Tensor):
        return isinstance(state, torch.Tensor) and state.shape == like.shape
    if not isinstance(like, Mapping):
        return not isinstance(state, Mapping)
    if not isinstance(state, Mapping):
        return False
    # What is empty before the first step is filled by it: the moments of an optimiser.
    return not like or (state.keys() == like.keys() and all(_fits(state[key], like[key]) for key in like))
