"""Tables of the README and of the concept pages."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from tables_of.comparisons import in_short
from tables_of.results import load, markdown_table, refused, times_to_target
from voxelocity_observe.core.quantities import count_text, duration_text

TABLE_OF = {"cache.md": ("cache", "build"), "patches.md": ("patches",), "augmentation.md": ("transforms",),
             "feed.md": ("feed", "training")}  # fmt: skip


_FAST = "MONAI, fast recipe"


def readme_table() -> str:
    """The few figures of the README."""
    rows = [
        (f"hippocampus MR, 208 cases, `--time-budget {budget}`", _folds_words(folds), _machines(folds))
        for budget in ("5m", "20m")
        if (folds := load(f"main_job_hippocampus_{budget}*.json"))
    ]
    lines = markdown_table(("task", "measured", "machine"), rows) if rows else []
    races = load("bench_race_*.json")
    if to_target := [record for record in races if record["target_dice"]]:
        lines += ["", "**Time until a Dice is reached,** median (least to most) of seeds:", ""]
        lines += _to_target(to_target)
    # Others are in docs/measured.md.
    if timed := [race for race in races if not race["target_dice"] and _FAST in race["ours_higher_by"]]:
        lines += [
            "",
            "**Dice after a fixed time:** Voxelocity, MONAI's fast recipe (mean difference, its 95 % interval over "
            "seeds, or over the cases of a single seed):",
            "",
            *_after_times(timed),
        ]
    return "\n".join(lines) or "Not measured at a clean commit yet."


def _to_target(races: Sequence[dict[str, Any]]) -> list[str]:
    """A row for each data set, a column for each side."""
    sides = list(dict.fromkeys(side for record in races for side in record["seconds_to_target"]))
    rows = []
    for record in races:
        times, seeds = times_to_target(record), len(record["seeds"])
        found = [times.get(side, "n/a") for side in sides]
        rows.append((_task_words(record), f"{record['target_dice']:g}", *found, str(seeds), _machines([record])))
    return markdown_table(("data", "Dice", *sides, "seeds", "machine"), rows)


def _after_times(races: Sequence[dict[str, Any]]) -> list[str]:
    """A row for each data set, a column for each time."""
    limits = sorted({record["limit_s"] for record in races})
    rows = []
    for task in dict.fromkeys(map(_task_words, races)):
        of_task = {record["limit_s"]: record for record in races if _task_words(record) == task}
        rows.append((task, *(_after_words(of_task[limit]) if limit in of_task else "n/a" for limit in limits)))
    heads = []
    for limit in limits:
        alike = [record for record in races if record["limit_s"] == limit]
        heads.append(f"{duration_text(limit)}, {' or '.join(sorted({_cores(record) for record in alike}))}")
    return [*markdown_table(("data", *heads), rows), "", f"Machines: {_machines(races)}."]


def _task_words(record: dict[str, Any]) -> str:
    words: str = record["comparisons"][0]["title"].partition(":")[0]
    return words


def _after_words(record: dict[str, Any]) -> str:
    """Dice of ours and of the peer after a fixed time, and the interval of the difference."""
    ours, peer = record["comparisons"][0]["sides"][:2]
    gain = record["ours_higher_by"][peer["name"]]
    interval = "" if gain["low"] is None else f", {gain['low']:+.3f} to {gain['high']:+.3f}"
    paired = f"{gain['n']} {'seeds' if gain['unit'] == 'training' else 'cases'}"
    return f"{ours['median']:.3f}, {peer['median']:.3f} ({gain['mean']:+.3f}{interval}; {paired})"


def _cores(record: dict[str, Any]) -> str:
    return count_text(record["environment"]["num_cpus"], "core")


def _machines(records: Sequence[dict[str, Any]]) -> str:
    found = [(_cores(record), record["environment"]) for record in records]
    return "; ".join(sorted({f"{cores} of {machine['cpu']}, {machine['gpu'] or 'no GPU'}" for cores, machine in found}))


def _folds_words(folds: Sequence[dict[str, Any]]) -> str:
    dice = [record["mean_dice"] for record in folds]
    held_out = (
        "the held-out fold" if len(dice) == 1 else f"{len(dice)} held-out folds ({min(dice):.3f} to {max(dice):.3f})"
    )
    steps, seconds = (median(record[name] for record in folds) for name in ("steps", "wall_s"))
    return (
        f"mean foreground Dice {fmean(dice):.3f} of {held_out}, {steps:,.0f} steps, after {duration_text(seconds)} "
        f"(n = {len(dice)})"
    )


def page_tables(name: str) -> str:
    """The tables of one concept page: its scenarios in short, and what else was measured of its subject."""
    lines: list[str] = []
    if name == "feed.md":
        lines += _waiting_lines()
    for scenario in TABLE_OF[name]:
        for record in load(f"bench_{scenario}.json"):
            lines += in_short(record)
    if not lines:
        return "Not measured at a clean commit yet: " + "; ".join(refused() or ["no result file"])
    return "\n".join(lines[:-1])


def _waiting_lines() -> list[str]:
    """Which part of whole trainings was spent waiting, ours and the demo's plain script."""
    rows = [
        (f"{r['scenario']}, {r['time_budget']}", "Voxelocity", f"{r['wait_share']:.1%}", 1, f"{r['date']}")
        for r in load("main_job_*.json")
    ]
    rows += [
        ("the demo", run["label"], f"{run['wait_share']:.1%}", 1, record["date"])
        for record in load("fresh_clone.json")
        for run in record["demo"]["runs"]
    ]
    table = markdown_table(("training", "by", "waiting for data", "n", "date"), rows)
    return ["**Part of the training time spent waiting for data**", "", *table, "",
            "Commands and machines: [measured.md](measured.md).", ""]  # fmt: skip
