"""Tables of what caches and growing data sets cost."""

from __future__ import annotations

from typing import Any

from tables_of.results import command_of, figure_text, markdown_table, spread_text
from voxelocity.report import bytes_text, duration_text


def cache_lines(record: dict[str, Any]) -> list[str]:
    """Reading a patch from each kind of disk tier, with its heading."""
    num_reads = next(iter(record["variants"].values()))["warm"]["n"]
    lines = ["## A patch from a disk tier", ""]
    lines += [f"96³ voxels of a {shape_of(record)} int16 CT with uint8 label, from an entry not opened before. Median "
              f"and quartiles of {num_reads}; warm: in the page cache. Load average of the machine before: "
              f"{record['load_average']:.1f}.", ""]  # fmt: skip
    return [*lines, *cache_table(record), "", f"`{command_of(record)}`", ""]


def cache_table(record: dict[str, Any]) -> list[str]:
    """A row for each kind of disk tier."""
    return markdown_table(
        ("kept as", "warm", "cold", "bytes a voxel", "written in"),
        (
            (name, spread_text(found["warm"]), spread_text(found.get("cold")), f"{found['bytes_per_voxel']:.2f}",
             duration_text(found["put_s"]))
            for name, found in record["variants"].items()
        ),
    )  # fmt: skip


def shape_of(record: dict[str, Any]) -> str:
    """The shape of the CT of a record."""
    return " x ".join(str(n) for n in record["shape"])


def entries_lines(record: dict[str, Any]) -> list[str]:
    """Many small entries in each kind of tier."""
    lines = [f"## {record['num_entries']:,} small entries", ""]
    lines += ["24³ voxels each, int16 and uint8 label, flushed one by one. Medians of 3, on a machine that others used "
              f"meanwhile (load average before: {record['load_average']:.1f}): only large differences mean something.",
              ""]  # fmt: skip
    lines += markdown_table(
        ("kept as", "files", "made in", "all opened in", "a patch of each in", "deleted in"),
        (
            (name, f"{found['num_files']:.0f}", duration_text(found["build_s"]), duration_text(found["open_all_s"]),
             duration_text(found["patch_of_each_s"]), duration_text(found["delete_s"]))
            for name, found in record["variants"].items()
        ),
    )  # fmt: skip
    return [*lines, "", f"`{command_of(record)}`", ""]


def growth_table(record: dict[str, Any]) -> list[str]:
    """A row for each number of cases."""
    return markdown_table(
        ("cases", "building", "reopening", "resident memory", "patches/s", "open files"),
        (
            (f"{size['num_cases']:,}", f"{size['build_s']:.3g} s", f"{size['reopen_s']:.3g} s",
             bytes_text(size["resident_bytes"]), figure_text(size["patches_per_s"]), size["num_open_files"])
            for size in record["sizes"]
        ),
    )  # fmt: skip
