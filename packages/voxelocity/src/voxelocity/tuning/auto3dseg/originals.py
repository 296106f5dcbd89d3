"""What customizing replaces in a work folder is kept there, and put back as it was, byte for byte.

The kept files are moved back, not copied, so that a full disk cannot prevent it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.core.whole_file import is_out_of_space, put_in_place

TUNE_FOLDER = "tune"
"""Below the work folder: studies, pages and originals."""

_ORIGINALS, _CHANGED, _WRITTEN = "originals", "changed", "written.json"


class Originals:
    """The kept files of one algorithm.

    Args:
        folder: of the algorithm, in its work folder.
        files: that customizing writes, relative to the folder.
    """

    def __init__(self, folder: Path, files: tuple[Path, ...]) -> None:
        self._folder, self._files = folder, files
        self.place = folder.parent / TUNE_FOLDER / _ORIGINALS / folder.name

    @property
    def exist(self) -> bool:
        """Whether there is anything to put back."""
        return self.place.is_dir()

    def keep(self) -> None:
        """Keeps the files as they are now, in place of what was kept before.

        Raises:
            OutputError: they cannot be copied; nothing is changed then.
        """
        part = self.place.with_name(f".{self.place.name}.part")
        try:
            shutil.rmtree(part, ignore_errors=True)
            for file in self._files:
                target = part / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self._folder / file, target)
            shutil.rmtree(self.place, ignore_errors=True)
            part.rename(self.place)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise write_error(self._folder, error) from None

    def seal(self) -> None:
        """Notes what was written in their place, so that later changes by others are recognized."""
        written = json.dumps({str(file): _digest(self._folder / file) for file in self._files})
        put_in_place(self.place / _WRITTEN, written.encode())

    @property
    def are_current(self) -> bool:
        """Whether what was written in their place has not been changed since, or was not finished."""
        written = self._written()
        # One that is not here was put back already, by a call that did not end.
        kept = [file for file in self._files if (self.place / file).exists()]
        return all(written.get(str(file)) in (None, _digest(self._folder / file)) for file in kept)

    def put_back(self) -> Path | None:
        """Moves the files back. Returns where those are that were changed after they had been written; None if none.

        Raises:
            OutputError: they cannot be moved.
        """
        written, changed = self._written(), None
        try:
            for file in self._files:
                current, kept = self._folder / file, self.place / file
                if kept.exists():
                    if current.exists() and written.get(str(file)) not in (None, _digest(current)):
                        changed = self.place.parents[1] / _CHANGED / self.place.name
                        (changed / file).parent.mkdir(parents=True, exist_ok=True)
                        os.replace(current, changed / file)
                    os.replace(kept, current)
            self.forget()
        except OSError as error:
            raise write_error(self._folder, error) from None
        return changed

    def forget(self) -> None:
        """Removes what was kept."""
        shutil.rmtree(self.place)

    def _written(self) -> dict[str, str]:
        try:
            found: dict[str, str] = json.loads((self.place / _WRITTEN).read_bytes())
        except (OSError, ValueError):
            return {}
        return found


def write_error(folder: Path, error: OSError) -> OutputError:
    """What to say where the files of an algorithm cannot be written."""
    why = "no space left" if is_out_of_space(error) else error.strerror or str(error)
    return OutputError(
        f"tune: cannot write into {folder} ({why}); its settings stay as they were. Free some space or make the folder "
        "writable, and repeat the command; finished trials are kept"
    )


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return "missing"
