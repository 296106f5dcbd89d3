"""Links that lead out of a folder, which someone else may have made: nothing is written through them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from voxelocity_observe.core.errors import OutputError

_MOST_ENTRIES = 200_000


def leads_out(path: Path, folder: Path) -> bool:
    """Whether a path below a folder is, or passes through, a link to something outside of the folder."""
    real, inside = os.path.realpath(path), os.path.join(os.path.realpath(folder), "")
    return not (real + os.sep).startswith(inside)


def check_links(folder: Path, names: Iterable[str], *, where: str, deep: bool = True) -> None:
    """Refuses to write into a folder where that would write outside of it.

    The folder itself may be a link: the command names it.

    Args:
        folder: may be missing.
        names: files and folders in it that will be written, or patterns of these.
        where: begins the error.
        deep: look into these folders, too.

    Raises:
        OutputError: one of them, or something in them, is a link that leads out of the folder.
    """
    for name in names:
        for path in folder.glob(name) if "*" in name else (folder / name,):
            for link in _links(path, deep=deep):
                if leads_out(link, folder):
                    raise OutputError(
                        f"{where}: {link} is a link to {os.readlink(link)}, outside of {folder}, and links are not "
                        "written through; remove the link, or replace it with its target"
                    )


def _links(path: Path, *, deep: bool) -> Iterator[Path]:
    waiting, num_seen = [path], 0
    while waiting and num_seen < _MOST_ENTRIES:
        num_seen += 1
        path = waiting.pop()
        if path.is_symlink():
            yield path
        elif deep and path.is_dir():
            try:
                waiting.extend(path.iterdir())
            except OSError:
                # What cannot be listed is reported when it is used.
                continue
