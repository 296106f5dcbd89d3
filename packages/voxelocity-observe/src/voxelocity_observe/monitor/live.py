"""Keeps the last lines of a terminal for the newest sample while a command writes to the lines above.

The terminal scrolls only the lines above ours (its scroll region, as apt does for its progress bar), and each redraw is
one write that puts the cursor back. So the command's output does not change, and there is no pseudo-terminal between
the terminal and the command. The limit: the lines overwrite a full-screen program, which takes the whole terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.text import Text

from voxelocity_observe.core.quantities import bytes_text, duration_text, share_text
from voxelocity_observe.core.terminal_text import printable
from voxelocity_observe.monitor.samples import GpuSample, HostSample, Sample

_LEAST_ROWS, _LEAST_COLUMNS = 12, 40
_SAVE, _RESTORE, _PLAIN = "\x1b7", "\x1b8", "\x1b[0m"

_NAME_COLUMNS = 8
_BAR_COLUMNS = 10
_BUSY, _FULL = 0.8, 0.9


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
        # Head, CPU, memory, traffic, and each GPU.
        wanted = min(4 + (0 if sample is None else len(sample.gpus)), rows // 3)
        if rows < _LEAST_ROWS or columns < _LEAST_COLUMNS:
            self.close()
            return
        opening = self._reserve(rows, wanted) if (rows, wanted) != (self._rows, self._num_lines) else ""
        lines = live_lines(
            sample,
            title=printable(" ".join(command)),
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


def live_lines(
    sample: Sample | None, *, title: str, width: int, max_lines: int, has_color: bool, is_ascii: bool
) -> list[str]:
    """Lines with terminal codes, at most `max_lines` of `width` columns: head, CPU, memory, disk, each GPU.

    Args:
        sample: the newest; None if there is none yet.
        title: names what runs.
        width: columns of the terminal; longer lines are cut.
        max_lines: the last line counts the GPUs that do not fit.
        has_color: whether bars are colored.
        is_ascii: whether the terminal supports only ASCII.
    """
    rows = [_head(sample, title, is_ascii)]
    if sample is not None:
        host = [_cpu(sample.host, is_ascii), _memory(sample.host, is_ascii), _traffic(sample.host)]
        rows += [*host, *(_gpu(gpu, is_ascii) for gpu in sample.gpus)]
    if len(rows) > max_lines:
        more = f"and {len(rows) - max_lines + 1} more"
        rows = [*rows[: max_lines - 1], Text(more)]
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=True,
        no_color=not has_color,
        color_system="standard",
        legacy_windows=False,
        highlight=False,
    )
    lines = []
    for row in rows:
        row.truncate(width, overflow="crop" if is_ascii else "ellipsis")
        with console.capture() as capture:
            console.print(row, no_wrap=True, overflow="crop", end="")
        lines.append(capture.get())
    return lines


def _head(sample: Sample | None, title: str, is_ascii: bool) -> Text:
    rule = "--" if is_ascii else "──"
    time = "starting" if sample is None else duration_text(sample.time_s)
    return Text(f"{rule} {time} {rule} {title}", style="dim")


def _cpu(host: HostSample, is_ascii: bool) -> Text:
    cores = len(host.core_shares)
    busy = sum(host.core_shares)
    text = _row("CPU", busy / cores if cores else None, is_ascii)
    text.append(f"{busy:.1f} of {cores} cores busy" if cores else "not known")
    if host.program_cores is not None:
        text.append(f", program {host.program_cores:.1f}")
    if host.throttled_share:
        text.append(f", held back {share_text(host.throttled_share)}", style="bold red")
    return text


def _memory(host: HostSample, is_ascii: bool) -> Text:
    used, available = host.memory_used_bytes, host.memory_available_bytes
    total = None if used is None or available is None else used + available
    share = None if used is None or not total else used / total
    text = _row("memory", share, is_ascii)
    text.append(f"{bytes_text(used)} of {bytes_text(total)}")
    if host.program_memory_bytes is not None:
        text.append(f", program {bytes_text(host.program_memory_bytes)}")
    if host.swap_in_bytes_per_s or host.swap_out_bytes_per_s:
        text.append(", swapping", style="bold red")
    return text


def _traffic(host: HostSample) -> Text:
    text = Text("disk".ljust(_NAME_COLUMNS))
    text.append(f"read {_rate(host.disk_read_bytes_per_s)}, write {_rate(host.disk_write_bytes_per_s)}")
    text.append(f", network {_rate(host.network_receive_bytes_per_s)}")
    return text


def _gpu(gpu: GpuSample, is_ascii: bool) -> Text:
    name = f"GPU {gpu.index}" if gpu.slice is None else f"GPU {gpu.index}.{gpu.slice}"
    text = _row(name, gpu.busy_share, is_ascii)
    parts = [share_text(gpu.busy_share)] if gpu.busy_share is not None else []
    parts.append(f"{bytes_text(gpu.memory_used_bytes)} of {bytes_text(gpu.memory_total_bytes)}")
    parts += [f"{gpu.power_w:.0f} W"] if gpu.power_w is not None else []
    parts += [f"{gpu.temperature_c:.0f} °C"] if gpu.temperature_c is not None and not is_ascii else []
    text.append(", ".join(parts))
    if gpu.throttle_reasons:
        text.append(f", {gpu.throttle_reasons[0]}", style="bold red")
    return text


def _row(name: str, share: float | None, is_ascii: bool) -> Text:
    """The name and a bar; blanks if the share is not known, so that figures stay aligned."""
    text = Text(name.ljust(_NAME_COLUMNS - 1) + " ")
    if share is None:
        return text.append(" " * (_BAR_COLUMNS + 2))
    full, empty = ("#", ".") if is_ascii else ("█", "░")
    num_full = round(min(1.0, max(0.0, share)) * _BAR_COLUMNS)
    style = "red" if share >= _FULL else "yellow" if share >= _BUSY else "green"
    text.append(full * num_full, style=style)
    text.append(empty * (_BAR_COLUMNS - num_full), style="dim")
    return text.append("  ")


def _rate(bytes_per_s: float | None) -> str:
    return "n/a" if bytes_per_s is None else f"{bytes_text(bytes_per_s)}/s"
