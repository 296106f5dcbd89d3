"""Amounts in the doctor's words. Not those of `report`, which needs numpy, and that may be what is broken."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(num_bytes: float) -> str:
    """Memory in binary units: "64 MiB", "23.5 GiB"."""
    value, step = float(num_bytes), 0
    while value >= 1023.5 and step < len(_UNITS) - 1:
        value, step = value / 1024, step + 1
    digits = 0 if value >= 99.95 or value == round(value) else 1
    return f"{value:.{digits}f} {_UNITS[step]}"


def rate_text(bytes_per_s: float) -> str:
    """Bytes a second, as makers of disks count them: "830 MB/s", "3.2 GB/s"."""
    megabytes = bytes_per_s / 1e6
    if megabytes >= 999.5:
        return f"{megabytes / 1000:.1f} GB/s"
    return f"{megabytes:.0f} MB/s" if megabytes >= 9.95 else f"{megabytes:.1f} MB/s"


def time_text(seconds: float) -> str:
    """A duration: "0.15 s", "4.2 s", "42 s", "12 min"."""
    if seconds >= 90:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s" if seconds >= 0.995 else f"{seconds:.2f} s"


def count_text(count: int, noun: str) -> str:
    """A count with its noun: "1 core", "16 cores"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
