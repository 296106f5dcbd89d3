"""Keeps the last lines of a terminal for the newest sample while a command writes to the lines above.

The terminal scrolls only the lines above ours (its scroll region, as apt does for its progress bar), and each redraw is
one write that puts the cursor back. So the command's output does not change, and there is no pseudo-terminal between
the terminal and the command. The limit: the lines overwrite a full-screen program, which takes the whole terminal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from voxelocity.monitoring.lines import command_title, live_lines, num_lines
from voxelocity.observe.samples import Sample

_LEAST_ROWS, _LEAST_COLUMNS = 12, 40
_SAVE, _RESTORE, _PLAIN = "\x1b7", "\x1b8", "\x1b[0m"


class LiveView:
    """The live lines, from construction to `close`.

    Args:
        stream: a terminal.
        environ: variables that may hold `NO_COLOR` and `COLUMNS`.
        size: returns columns and rows of the terminal.
        write: writes to it, unbuffered.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        environ: Mapping[str, str] = os.environ,
        size: Callable[[], tuple[int, int]] | None = None,
        write: Callable[[str], None] | None = None,
    ) -> None:
        self._stream = stream
        self._size = size or (lambda: tuple(os.get_terminal_size(stream.fileno())))  # type: ignore[return-value]
        self._write = write or self._write_through
        self._has_color = not environ.get("NO_COLOR")
        self._is_ascii = "utf" not in (stream.encoding or "").lower()
        columns = environ.get("COLUMNS", "")
        self._max_columns = int(columns) if columns.isdigit() and int(columns) >= _LEAST_COLUMNS else 10_000
        self._rows = 0
        self._num_lines = 0

    def draw(self, sample: Sample | None, command: Sequence[str]) -> None:
        """Shows the sample. Does nothing while the command is in the background, or the terminal is too small."""
        if not self._is_in_foreground():
            return
        columns, rows = self._size()
        wanted = min(num_lines(0 if sample is None else len(sample.gpus)), rows // 3)
        if rows < _LEAST_ROWS or columns < _LEAST_COLUMNS:
            self.close()
            return
        opening = self._reserve(rows, wanted) if (rows, wanted) != (self._rows, self._num_lines) else ""
        lines = live_lines(
            sample,
            title=command_title(command),
            # Some terminals go to the next line after the last column.
            width=min(columns, self._max_columns) - 1,
            max_lines=wanted,
            has_color=self._has_color,
            is_ascii=self._is_ascii,
        )
        first = rows - wanted + 1
        lines += [""] * (wanted - len(lines))
        drawn = "".join(f"\x1b[{first + at};1H{_PLAIN}\x1b[2K{line}" for at, line in enumerate(lines))
        self._write(f"{opening}{_SAVE}{drawn}{_RESTORE}")

    def close(self) -> None:
        """Returns the lines to the terminal, empty. A second call does nothing."""
        if self._rows:
            self._write(self._release())

    def _reserve(self, rows: int, wanted: int) -> str:
        released = self._release() if self._rows else ""
        self._rows, self._num_lines = rows, wanted
        # Text in our lines scrolls up; then the cursor is where it was, relative to the text above it.
        return f"{released}{chr(10) * wanted}\x1b[{wanted}A{_SAVE}\x1b[1;{rows - wanted}r{_RESTORE}"

    def _release(self) -> str:
        first = self._rows - self._num_lines + 1
        cleared = "".join(f"\x1b[{first + at};1H\x1b[2K" for at in range(self._num_lines))
        self._rows = self._num_lines = 0
        return f"{_SAVE}\x1b[r{_PLAIN}{cleared}{_RESTORE}"

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        except OSError:
            return False

    def _write_through(self, text: str) -> None:
        content = text.encode(self._stream.encoding or "ascii", errors="replace")
        try:
            # One write, so that no output of the command comes between.
            os.write(self._stream.fileno(), content)
        except OSError:
            # The terminal is gone, or does not accept it now; the next line may succeed.
            return


def open_live_view(
    stream: TextIO, tell: Callable[[str], None], *, environ: Mapping[str, str] = os.environ
) -> LiveView | None:
    """A view on the stream; None, after saying why, if the stream cannot have one."""
    if not stream.isatty():
        tell("--live shows nothing: stderr is not a terminal")
        return None
    if environ.get("TERM", "dumb") == "dumb":
        tell("--live shows nothing: this terminal (TERM=dumb) cannot move its cursor")
        return None
    return LiveView(stream, environ=environ)
