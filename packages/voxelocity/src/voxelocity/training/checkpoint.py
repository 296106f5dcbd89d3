"""Training state on disk: complete or absent, checked before it is used, with an older good one kept."""

from __future__ import annotations

import contextlib
import math
import pickle
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from voxelocity_observe.core.errors import CheckpointError, OutputError
from voxelocity_observe.core.whole_file import is_out_of_space, remove_abandoned, whole_file, with_causes

_NAME = re.compile(r"step_\d{9}\.pt$")


class Checkpoints:
    """The checkpoints in one folder. Files hold tensors and plain values and load with `weights_only=True`."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Writes the state after `step` steps; even after a kill, a reader sees the whole file or no file.

        Raises:
            OSError: the disk is full. Earlier checkpoints are untouched.
            OutputError: the file cannot be written for another reason.
        """
        path = self._folder / f"step_{step:09d}.pt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file, with_causes(file) as watched:
                torch.save(state, watched)
        except OSError as error:
            if is_out_of_space(error):
                raise
            raise OutputError(
                f"train: cannot write the checkpoint {path} ({error.strerror}); free the path, then repeat the same "
                "command with --resume: the run continues from its last checkpoint"
            ) from error
        for old in self.paths()[: -self._keep]:
            old.unlink(missing_ok=True)
        return path

    def remove_abandoned(self) -> None:
        """Removes what killed writers left. Only for the one process that may write here."""
        remove_abandoned(self._folder, names=("step_",))

    def paths(self) -> list[Path]:
        """Checkpoint files, oldest first."""
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if _NAME.match(path.name) and path.is_file())

    def latest_step(self) -> int:
        """Steps done at the newest checkpoint; 0 if there is none."""
        return max(map(_step_of, self.paths()), default=0)

    def load_good(self, *, like: Mapping[str, Any]) -> dict[str, Any] | None:
        """The newest usable state; None if there is none, for whatever reason."""
        with contextlib.suppress(CheckpointError):
            latest = self.load_latest(like=like)
            return None if latest is None else latest[0]
        return None

    def load_latest(self, *, like: Mapping[str, Any]) -> tuple[dict[str, Any], Path, list[Path]] | None:
        """The newest usable state, its file, and newer files that are not usable; None if there is no file.

        Every byte is checked against the checksum stored with it.

        Args:
            like: a state before the first step. A usable state has the same keys, values of the same types, and finite
                tensors of the same shapes.

        Raises:
            CheckpointError: there are files, but none can be used.
        """
        damaged: list[Path] = []
        for path in reversed(self.paths()):
            state = _load(path)
            if _fits(state, like) and state["loop"]["step"] == _step_of(path) and _is_finite(state):
                return state, path, damaged
            damaged.append(path)
        if damaged:
            raise CheckpointError(
                f"train: none of the {len(damaged)} checkpoints in {self._folder} can be used; "
                "start the run again with --overwrite"
            )
        return None


def _step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step_"))


def _load(path: Path) -> Any:
    """What the file holds; None if it is damaged."""
    try:
        # Torch would read anything else as an old format and fail in many ways, and it does not check checksums.
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    return None
            return torch.load(path, map_location="cpu", weights_only=True)
    except (
        OSError, RuntimeError, EOFError, ValueError, LookupError, pickle.UnpicklingError, zipfile.BadZipFile, zlib.error
    ):  # fmt: skip
        pass
    return None


def _fits(state: Any, like: Any) -> bool:
    if isinstance(like, torch.Tensor):
        return isinstance(state, torch.Tensor) and state.shape == like.shape
    if isinstance(like, Mapping):
        # A mapping that is empty before the first step is filled by it: the moments of an optimizer.
        return isinstance(state, Mapping) and (
            not like or (state.keys() == like.keys() and all(_fits(state[key], like[key]) for key in like))
        )
    if isinstance(like, (int, float)) and not isinstance(like, bool):
        return _is_number(state, whole=isinstance(like, int))
    return not isinstance(state, Mapping)


def _is_number(value: Any, *, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return False
    return math.isfinite(value) and (not whole or value >= 0)


def _is_finite(state: Any) -> bool:
    """Whether no tensor of the state holds NaN or infinity, which no run saves."""
    if isinstance(state, torch.Tensor):
        return not state.is_floating_point() or bool(state.isfinite().all())
    inner = state.values() if isinstance(state, Mapping) else state if isinstance(state, (list, tuple)) else ()
    return all(map(_is_finite, inner))
