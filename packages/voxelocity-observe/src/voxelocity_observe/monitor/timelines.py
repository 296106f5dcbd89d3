"""The charts of a record: for the host and the GPUs, as descriptions that both page and picture draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from voxelocity_observe.document.timeline import Band, Line, Stroke, Timeline
from voxelocity_observe.monitor.columns import Column, Columns, GpuColumns, peak, spread_of, thinned

# Three colors that can be distinguished with any color vision, and three ways to draw them.
_GPU_COLORS = ("accent", "class-1", "class-2")
_STROKES: tuple[Stroke, ...] = ("solid", "dashed", "dotted")
_MAX_LINES = 8
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_PER_CENT = 100.0

Named = tuple[str, str, Column]


def host_timelines(columns: Columns) -> list[Timeline]:
    """CPU, memory, page cache, disk and network; charts without data are left out."""
    host = columns.host
    memory = [
        ("used", "accent", host("memory_used_bytes")),
        ("the program", "class-5", host("program_memory_bytes")),
        ("swap", "class-1", _if_any(host("swap_used_bytes"))),
        ("/dev/shm", "class-2", _if_any(host("shm_used_bytes"))),
    ]
    disk = [
        ("read", "accent", host("disk_read_bytes_per_s")),
        ("written", "class-5", host("disk_write_bytes_per_s")),
        ("read by the program", "class-2", host("program_read_bytes_per_s")),
    ]
    network = [
        ("received", "accent", _if_any(host("network_receive_bytes_per_s"))),
        ("sent", "class-5", _if_any(host("network_send_bytes_per_s"))),
    ]
    swapping = [
        ("from disk", "accent", _if_any(host("swap_in_bytes_per_s"))),
        ("to disk", "class-5", _if_any(host("swap_out_bytes_per_s"))),
    ]
    charts = [
        _cpu(columns),
        _of_bytes(columns, "memory", "Memory", memory, limit=columns.memory_limit_bytes),
        _of_bytes(columns, "page-cache", "Page cache", [("page cache", "accent", host("page_cache_bytes"))]),
        _of_bytes(columns, "disk", "Disk", disk, per="/s"),
        _of_bytes(columns, "network", "Network", network, per="/s"),
        _of_bytes(columns, "swapping", "Swapping", swapping, per="/s"),
    ]
    return [chart for chart in charts if chart is not None]


def gpu_timelines(columns: Columns) -> list[Timeline]:
    """One chart per quantity with a line for each GPU or slice; empty without GPUs.

    Beyond eight devices, a chart shows their mean, and a band from the lowest to the highest.
    """
    if not columns.devices:
        return []

    def series(field: str, scale: float = 1.0) -> list[tuple[str, Column]]:
        return [(device.name, device.column(field) * scale) for device in columns.devices]

    # In percent of each device's own memory, since devices may differ.
    memory = [(device.name, memory_share(device) * _PER_CENT) for device in columns.devices]
    total = _common_peak(columns, "memory_total_bytes") / 1024**3
    of_what = f"of {total:.0f} GiB (%)" if math.isfinite(total) else "of each GPU's own (%)"
    power_limit = _common_peak(columns, "power_limit_w")
    charts = [
        _chart(columns, "gpu-busy-share", "GPU busy", "busy (%)", series("busy_share", _PER_CENT), y_top=104.0),
        _chart(columns, "gpu-memory", "GPU memory", of_what, memory, limit=_PER_CENT, limit_name="total", y_top=104.0),
        _chart(columns, "gpu-power-w", "Power", "power (W)", series("power_w"), limit=power_limit, limit_name="limit"),
        _chart(columns, "gpu-temperature-c", "Temperature", "temperature (°C)", series("temperature_c")),
        _chart(columns, "gpu-sm-clock-mhz", "Processor clock", "clock (MHz)", series("sm_clock_mhz")),
        _chart(columns, "gpu-memory-clock-mhz", "Memory clock", "clock (MHz)", series("memory_clock_mhz")),
        _pcie(columns),
    ]
    return [chart for chart in charts if chart is not None]


def rank_timelines(columns: Columns) -> list[Timeline]:
    """CPU and memory with a line for each rank, as `gpu_timelines`; empty without several ranks."""
    cores = [(name, cores) for name, cores, _ in columns.ranks]
    memory = [(name, size / 1024**3) for name, _, size in columns.ranks]
    charts = (
        _chart(columns, "rank-cpu", "CPU of each rank", "cores", cores),
        _chart(columns, "rank-memory", "Memory of each rank", "GiB", memory),
    )
    return [chart for chart in charts if chart is not None]


def _cpu(columns: Columns) -> Timeline | None:
    mean, low, high = columns.cores
    cores = max(columns.num_cores, 1)
    series = [
        ("all cores", "accent", mean * _PER_CENT),
        ("the program", "class-5", columns.host("program_cores") / cores * _PER_CENT),
        ("other programs", "class-2", columns.host("others_cores") / cores * _PER_CENT),
        ("held back by the quota", "class-1", _if_any(columns.host("throttled_share")) * _PER_CENT),
    ]
    lines = _lines(columns, series)
    if not lines:
        return None
    spread = np.isfinite(mean).any() and columns.num_cores > 1
    points = thinned(columns.times_s, low * _PER_CENT, high * _PER_CENT) if spread else []
    band = Band(name="least to most busy core", color="accent", points=[(t, lo, hi) for t, lo, hi in points])
    return Timeline(
        key="cpu",
        title="CPU",
        y_label=f"of {columns.num_cores} cores (%)" if columns.num_cores else "busy (%)",
        lines=lines,
        bands=[band] if points else [],
        y_top=max(104.0, *(value for line in lines for _, value in line.points if math.isfinite(value))),
        until_s=columns.until_s,
    )


def _of_bytes(
    columns: Columns, key: str, title: str, series: Sequence[Named], *, limit: float = math.nan, per: str = ""
) -> Timeline | None:
    """Lines of bytes, in the unit that suits the largest of them."""
    highest = max((value for _, _, column in series if math.isfinite(value := peak(column))), default=math.nan)
    if math.isnan(highest):
        return None
    largest = max(highest, limit) if math.isfinite(limit) else highest
    unit = min(int(math.log(max(largest, 1.0), 1024) + 1e-9), len(_BYTE_UNITS) - 1)
    size = 1024.0**unit
    return Timeline(
        key=key,
        title=title,
        y_label=f"{_BYTE_UNITS[unit]}{per}",
        lines=_lines(columns, [(name, color, column / size) for name, color, column in series]),
        limit=limit / size if math.isfinite(limit) else None,
        limit_name="total" if math.isfinite(limit) else "",
        until_s=columns.until_s,
    )


def _chart(
    columns: Columns,
    key: str,
    title: str,
    y_label: str,
    series: Sequence[tuple[str, Column]],
    *,
    limit: float = math.nan,
    limit_name: str = "",
    y_top: float | None = None,
) -> Timeline | None:
    """A line for each device or rank; None if nothing is known of any."""
    lines, bands = _by_device(columns, series)
    has_limit = math.isfinite(limit)
    chart = Timeline(
        key=key,
        title=title,
        y_label=y_label,
        lines=lines,
        bands=bands,
        limit=limit if has_limit else None,
        limit_name=limit_name if has_limit else "",
        y_top=y_top,
        until_s=columns.until_s,
    )
    return chart if lines else None


def _common_peak(columns: Columns, field: str) -> float:
    """The peak of a field if all devices have the same; NaN otherwise."""
    peaks = {peak(device.column(field)) for device in columns.devices}
    return peaks.pop() if len(peaks) == 1 else math.nan


def _pcie(columns: Columns) -> Timeline | None:
    """Traffic of all devices together."""
    series = [
        ("to the GPU", "accent", _sum(device.column("pcie_receive_bytes_per_s") for device in columns.devices)),
        ("from the GPU", "class-5", _sum(device.column("pcie_send_bytes_per_s") for device in columns.devices)),
    ]
    return _of_bytes(columns, "gpu-pcie", "PCIe", series, per="/s")


def memory_share(device: GpuColumns) -> Column:
    """Share of the device's own memory in use; NaN where either figure is unknown."""
    total = device.column("memory_total_bytes")
    return device.column("memory_used_bytes") / np.where(total > 0.0, total, np.nan)


def _by_device(columns: Columns, series: Sequence[tuple[str, Column]]) -> tuple[list[Line], list[Band]]:
    known = [(name, column) for name, column in series if np.isfinite(column).any()]
    if len(known) <= _MAX_LINES:
        # A device looks the same in every chart, even in a chart that lacks another device.
        order = {name: number for number, (name, _) in enumerate(series)}
        looks = [divmod(order[name] % (len(_GPU_COLORS) * len(_STROKES)), len(_GPU_COLORS)) for name, _ in known]
        named = [(name, _GPU_COLORS[color], column) for (name, column), (_, color) in zip(known, looks, strict=True)]
        lines = _lines(columns, named)
        return [replace(line, stroke=_STROKES[stroke]) for line, (stroke, _) in zip(lines, looks, strict=True)], []
    mean, low, high = spread_of([column for _, column in known])
    points = [(t, lo, hi) for t, lo, hi in thinned(columns.times_s, low, high)]
    band = Band(name="lowest to highest", color="accent", points=points)
    return _lines(columns, [(f"mean of {len(known)}", "accent", mean)]), [band]


def _lines(columns: Columns, series: Iterable[Named]) -> list[Line]:
    named = [(name, color, column) for name, color, column in series if np.isfinite(column).any()]
    return [
        Line(
            name=name,
            color=color,
            points=[(time_s, value) for time_s, value in thinned(columns.times_s, column)],
            is_thin=number > 0,
        )
        for number, (name, color, column) in enumerate(named)
    ]


def _if_any(column: Column) -> Column:
    """The column, or NaN if it is zero throughout: what never happened needs no line."""
    return column if (column > 0.0).any() else np.full_like(column, np.nan)


def _sum(columns: Iterable[Column]) -> Column:
    values = np.stack(list(columns))
    known = np.isfinite(values)
    return np.where(known.any(axis=0), np.where(known, values, 0.0).sum(axis=0), np.nan)
