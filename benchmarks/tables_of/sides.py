"""Left and right: what networks learned about the side of a structure, by what flips do to labels."""

from __future__ import annotations

import statistics

from tables_of.results import load, markdown_table, source_line

_SIDES = ("RightParotid", "LeftParotid", "either side")


def side_lines() -> list[str]:
    """Dice of each side, of both as one, and how much of a side was given the other's name."""
    lines: list[str] = []
    for record in load("laterality.json"):
        rows = []
        for setting in record["settings"]["settings"]:
            runs = [run for run in record["runs"] if run["setting"] == setting]
            shares = [
                sum(run["called_the_other_side"].values()) / sum(run["voxels"].values()) for run in runs
            ]  # fmt: skip
            dice = [_of_seeds([run["dice"][side] for run in runs], "{:.3f}") for side in _SIDES]
            rows.append((setting, *dice, _of_seeds(shares, "{:.0%}"), len(runs)))
        header = ("", "Dice of the right", "of the left", "of both as one class", "called the other side", "seeds")
        lines += [*markdown_table(header, rows), "", source_line(record, record["command"])]
    return lines


def _of_seeds(values: list[float], form: str) -> str:
    """The mean over seeds, with the least and the most."""
    texts = [form.format(value) for value in (statistics.fmean(values), min(values), max(values))]
    return f"{texts[0]} ({texts[1]} to {texts[2]})"
