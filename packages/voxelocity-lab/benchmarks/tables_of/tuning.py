"""The tables of `voxelocity tune`, by data set and limit, of Auto3DSeg's search, and of estimated memory."""

from __future__ import annotations

from collections.abc import Callable
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

_NUM_CURVE_ROWS = 8
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
    return [*markdown_table(heads, rows), "", source_line(record, record["found"])]


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
    return [*markdown_table((*heads, *figures), rows), "", f"{span}{source_line(record, record['found'])}"]


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
    return [*markdown_table(heads, rows), "", source_line(record, record["found"])]


@of_records("auto3dseg_curves.json")
def auto3dseg_curve_lines(record: dict[str, Any]) -> list[str]:
    """For each template: whole trainings one patch after another and with what our search chose, and their curves."""
    lines: list[str] = []
    for name, found in record["found"].items():
        before, after = (found[side]["runs"] for side in ("before", "after"))
        chosen = _searched(found["search"])[1]
        lines += [f"**{name}**, {record['networks']} networks; chosen: {chosen}", ""]
        lines += markdown_table(_CURVE_HEADS, _figure_rows(before, after, found["target_dice"]))
        lines += ["", *markdown_table(_TIME_HEADS, _curve_rows(before[0]["curves"], after[0]["curves"])), ""]
        lines += [f"n = {len(after)} pairs; the second table shows the first. Load average before: "
                  f"{record['load_average']:.1f}. {source_line(record, {name: found})}", ""]  # fmt: skip
    return lines[:-1]


_CURVE_HEADS = ("", "one by one", "ours", "better by", "least to most")
_TIME_HEADS = ("after", "loss, one by one", "loss, ours", "Dice, one by one", "Dice, ours")


def _figure_rows(before: list[dict[str, Any]], after: list[dict[str, Any]], target: float) -> list[tuple[str, ...]]:
    def to_target(run: dict[str, Any], place: int) -> float:
        return next(float(point[place]) for point in run["curves"]["dice"] if point[2] >= target)

    measures: dict[str, tuple[Callable[[dict[str, Any]], float], Callable[[float | None], str]]] = {
        "whole training": (lambda run: run["seconds"], duration_text),
        f"time to Dice {target:g}": (lambda run: to_target(run, 0), duration_text),
        f"CPU time to Dice {target:g}": (lambda run: to_target(run, 1), duration_text),
        "patches of the training": (lambda run: run["patches"], lambda count: f"{count:.0f}"),
        "peak memory": (lambda run: run["peak_bytes"], bytes_text),
        "best Dice": (lambda run: max(dice for *_, dice in run["curves"]["dice"]), dice_text),
    }
    rows = []
    for name, (figure_of, text) in measures.items():
        pairs = [(figure_of(first), figure_of(second)) for first, second in zip(before, after, strict=True)]
        ratios = sorted(first / second for first, second in pairs)
        has_ratio = name not in ("patches of the training", "best Dice")
        span = (factor_text(median(ratios)), f"{factor_text(ratios[0])} to {factor_text(ratios[-1])}")
        medians = (text(median(side)) for side in zip(*pairs, strict=True))
        rows.append((name, *medians, *(span if has_ratio else ("", ""))))
    return rows


def _curve_rows(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, ...]]:
    """Loss and Dice of both at each eighth of the longer training."""
    end_s = max(curves["dice"][-1][0] for curves in (before, after))
    times_s = [end_s * share / _NUM_CURVE_ROWS for share in range(1, _NUM_CURVE_ROWS + 1)]
    columns = [curves[kind] for kind in ("loss", "dice") for curves in (before, after)]
    return [(duration_text(at_s), *(_value_at(points, at_s) for points in columns)) for at_s in times_s]


def _value_at(points: list[list[float]], at_s: float) -> str:
    """The last value until then."""
    known = [value for seconds, _, value in points if seconds <= at_s]
    return f"{known[-1]:.3f}" if known else ""


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
