"""The newest sample in a few lines for a terminal. Makes texts of a given width and does not use the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from voxelocity.core.quantities import bytes_text, duration_text, share_text
from voxelocity.core.terminal_text import printable
from voxelocity.observe.samples import GpuSample, HostSample, Sample

_NAME_COLUMNS = 8
_BAR_COLUMNS = 10
_BUSY, _FULL = 0.8, 0.9


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


def num_lines(num_gpus: int) -> int:
    """Lines that a sample with this many GPUs takes."""
    return 4 + num_gpus


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


def command_title(command: Sequence[str]) -> str:
    """The command in one line without control characters."""
    return printable(" ".join(command))
