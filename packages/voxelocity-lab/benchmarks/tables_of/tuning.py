"""The tables of `voxelocity tune`, by data set and limit, of Auto3DSeg's search, and of estimated memory."""

from __future__ import annotations

from statistics import median
from typing import Any

from tables_of.results import markdown_table, of_records, source_line
from voxelocity_observe.core.quantities import (
    bytes_text,
    dice_text,
    duration_text,
    factor_text,
    rate_text,
    signed_text,
    value_text,
)

_JUDGMENTS = {"same": "the same", "different": "different", "undecided": "undecided"}


@of_records("tune.json")
def tune_lines(record: dict[str, Any]) -> list[str]:
    """For each data set and limit: the choice, trials and time, speed before and after, against MONAI, and the Dice."""
    heads = (
        "data set, limit",
        "chosen",
        "trials",
        "images/s before",
        "after",
        "validation before",
        "after",
        "peak",
        "images/s against MONAI's plain script",
        "its fast recipe",
        "Dice after less before (95 % interval)",
    )
    rows = [_row(name, row) for name, row in record["found"].items()]
    return [*markdown_table(heads, rows), "", source_line(record)]


@of_records("memory_estimate.json")
def memory_lines(record: dict[str, Any]) -> list[str]:
    """The estimated and the measured peak of each setting, and their ratio."""
    heads = ("setting", "patch", "batch", "classes", "network", "optimizer", "cache", "windows")
    figures = ("training: estimated", "measured", "ratio", "with validation: estimated", "measured", "ratio")
    rows = [
        (
            name,
            " x ".join(map(str, row["patch"])),
            row["batch_size"],
            row["outputs"],
            f"{row['network']}, {row['compute']}",
            row["optimizer"],
            row["tier"],
            row["windows"],
            *(cell for part in ("training", "run") for cell in _peaks(row["estimated"][part], row["measured"][part])),
        )
        for name, row in record["found"].items()
    ]
    ratios = [
        row["estimated"][part] / row["measured"][part]
        for row in record["found"].values()
        for part in ("training", "run")
    ]
    span = f"Estimated over measured: {min(ratios):.2f} to {max(ratios):.2f}. "
    return [*markdown_table((*heads, *figures), rows), "", f"{span}{source_line(record)}"]


def _peaks(estimated: int, measured: int) -> tuple[str, str, str]:
    return bytes_text(estimated), bytes_text(measured), f"{estimated / measured:.2f}"


@of_records("auto3dseg.json")
def auto3dseg_lines(record: dict[str, Any]) -> list[str]:
    """For each template and side: what it chose in how many trials, and what became of two epochs with that."""
    heads = ("template", "search", "trials", "written", "two epochs fit", "time", "patches", "s a patch", "memory")
    names = {"default": "none", "theirs": "Auto3DSeg's", "ours": "ours"}
    rows = [
        (name, text, *_searched(row[side]), *_epochs(row[side]["runs"]))
        for name, row in record["found"].items()
        for side, text in names.items()
    ]
    return [*markdown_table(heads, rows), "", source_line(record)]


def _searched(side: dict[str, Any]) -> tuple[str, str]:
    if "trials" not in side:
        return "none", "nothing"
    ended = side.get("would_have_ended_at")
    stop = "" if ended is None else f", would have ended at trial {ended}"
    chosen = {key: value for key, value in side["chosen"].items() if not isinstance(value, (dict, list))}
    failed = f", {side['failed']} failed" if side["failed"] else ""
    text = ", ".join(f"`{key.split('#')[-1]}` {value_text(value, key)}" for key, value in chosen.items())
    return f"{side['trials']} in {duration_text(side['seconds'])}{failed}{stop}", text or "nothing"


def _epochs(runs: list[dict[str, Any]]) -> tuple[str, ...]:
    ran = [run for run in runs if run["kind"] == "finished"]
    kinds = ", ".join(sorted({run["kind"].replace("_", " ") for run in runs}))
    taken = bytes_text(max(run["peak_bytes"] for run in runs))
    if len(ran) < len(runs) or not ran:
        return kinds, "n/a", "n/a", "n/a", taken
    seconds = [run["seconds"] for run in ran]
    each = [run["seconds"] / run["patches"] for run in ran]
    spread = f"{duration_text(min(seconds))} to {duration_text(max(seconds))}, n = {len(seconds)}"
    patches = f"{median(run['patches'] for run in ran):.0f}"
    return "yes", f"{duration_text(median(seconds))} ({spread})", patches, f"{median(each):.3g}", taken


def _row(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    chosen = ", ".join(f"`{key}` {value_text(value, key)}" for key, value in row["chosen"].items()) or "as planned"
    failed = f", {row['failed']} failed" if row["failed"] else ""
    before, after = row["before"], row["after"]
    return (
        name.replace("-", ", ", 1) if name.count("-") == 1 else ", ".join(name.rsplit("-", 1)),
        chosen,
        f"{row['trials']} in {duration_text(row['seconds'])}{failed}",
        _rate(before),
        _rate(after),
        _seconds(before),
        _seconds(after),
        bytes_text(row["peak_bytes"]) + ("" if row["is_within_limit"] else ", above the limit"),
        *(_against(after, row["monai"][side]) for side in ("plain", "fast")),
        _dice(row["dice"]),
    )


def _against(side: dict[str, Any] | None, peer: float | None) -> str:
    return factor_text(side["images_per_s"]["median"] / peer) if side and peer else "n/a"


def _rate(side: dict[str, Any] | None) -> str:
    return "did not fit" if side is None else rate_text(side["images_per_s"]["median"])


def _seconds(side: dict[str, Any] | None) -> str:
    return "did not fit" if side is None else duration_text(side["validation_s"]["median"])


def _dice(dice: dict[str, Any] | None) -> str:
    if dice is None:
        return "nothing changed"
    if dice["low"] is None:
        return f"{signed_text(dice['difference'])}, no interval"
    interval = f"{signed_text(dice['low'])} to {signed_text(dice['high'])}, n = {dice['pairs']}"
    return (
        f"{signed_text(dice['difference'])} ({interval}): {_JUDGMENTS[dice['judgment']]}, at {dice_text(dice['after'])}"
    )
