"""Files of the kernel: read now and then, or opened once and read again and again. Does not interpret them."""

from __future__ import annotations

import os
from pathlib import Path

_CHUNK_BYTES = 1 << 17


class KernelFile:
    """A file below /proc or /sys whose content changes. The descriptor is not passed on to children."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._is_missing = False

    def read(self) -> str:
        """All of it now; "" if it cannot be read, which is then not tried again."""
        if self._is_missing:
            return ""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            parts, position = [], 0
            # The kernel hands out a page or so at a time, whatever the requested size.
            while part := os.pread(self._descriptor, _CHUNK_BYTES, position):
                parts.append(part)
                position += len(part)
        except OSError:
            self._is_missing = True
            self.close()
            return ""
        return b"".join(parts).decode(errors="replace")

    def counters(self, beginning: str = "") -> dict[str, int]:
        return counters(self.read(), beginning)

    def close(self) -> None:
        """Closes the descriptor; a later `read` opens the file again unless it was missing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def file_text(path: Path) -> str:
    """All of a file, without surrounding whitespace; "" if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def counters(text: str, beginning: str = "") -> dict[str, int]:
    """Lines of a name and a whole number; a colon after the name and a unit after the number are dropped.

    Args:
        text: of a file.
        beginning: of the names that are wanted; parsing all of /proc/vmstat would cost as much as everything else.
    """
    pairs = {}
    for line in text.splitlines():
        if not line.startswith(beginning):
            continue
        name, _, rest = line.partition(" ")
        number = rest.split(maxsplit=1)[0] if rest.strip() else ""
        if number.isdigit():
            pairs[name.rstrip(":")] = int(number)
    return pairs


def file_number(*files: Path) -> int | None:
    """The whole number in the first of the files that exists; None if it holds "max" or none exists."""
    text = next((text for file in files if (text := file_text(file))), "")
    return int(text) if text.lstrip("-").isdigit() else None


def read_small(path: str) -> bytes:
    """A file of one process, below 4 KiB; b"" if it or the process is gone, or may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
