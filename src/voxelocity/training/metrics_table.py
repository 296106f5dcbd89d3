"""`metrics.csv`: the curves of a run as one table for spreadsheets and plotting scripts."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

from voxelocity.core.whole_file import put_in_place
from voxelocity.report import RunFacts


def write_metrics(facts: RunFacts, path: Path) -> None:
    """Writes one row per logged stretch of steps and one per validation, in order of time.

    A class that is in none of the validated cases has an empty cell and counts as absent.
    """
    classes = sorted({name for validation in facts.validations for name in validation.dice})
    header = [
        "time_s",
        "step",
        "epoch",
        "loss",
        "learning_rate",
        "images_per_s",
        "wait_share",
        "mean_dice",
        "num_absent_classes",
    ]
    rows: list[tuple[float, list[object]]] = []
    for s in facts.steps:
        rate, share = s.num_images / max(s.seconds, 1e-9), s.wait_s / max(s.seconds, 1e-9)
        row = [s.time_s, s.step, s.epoch, s.loss, s.learning_rate, round(rate, 3), round(share, 5), "", ""]
        rows.append((s.time_s, row + [""] * len(classes)))
    for v in facts.validations:
        dice = [v.dice.get(name, math.nan) for name in classes]
        row = [v.time_s, v.step, "", "", "", "", "", _cell(v.mean_dice), sum(math.isnan(value) for value in dice)]
        rows.append((v.time_s, row + [_cell(value) for value in dice]))
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(header + [f"dice_{name}" for name in classes])
    table.writerows(row for _, row in sorted(rows, key=lambda pair: pair[0]))
    put_in_place(path, text.getvalue().encode())


def _cell(value: float) -> object:
    return value if math.isfinite(value) else ""
