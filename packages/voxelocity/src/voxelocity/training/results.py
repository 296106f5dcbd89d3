"""What a run keeps for the user: slices of a few scored cases for the report, and its curves as a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.core.learning import read_mark, unlearned
from voxelocity.core.records import CaseScore
from voxelocity.core.volume import Array, ClassIndices, Volume
from voxelocity.report import RunFacts, cut_slices
from voxelocity.training.resume import SavedRun
from voxelocity.training.session import Session
from voxelocity_observe.core.quantities import dice_text
from voxelocity_observe.core.whole_file import put_in_place, whole_file

_MOST_KEPT = 4


@dataclass(frozen=True, kw_only=True)
class _Kept:
    mean_dice: float
    title: str
    arrays: Mapping[str, Array]


class SlicePictures:
    """Keeps slices of a few scored cases: worst, middle and best, for the report."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []

    def add(self, score: CaseScore, scan: Volume, prediction: ClassIndices, *, ignored: int | None = None) -> None:
        """Keeps slices of a case through its foreground, in three directions.

        Where the label has the index `ignored`, truth and prediction show background, as they are scored.
        """
        truth = scan.label
        assert truth is not None
        if ignored is not None:
            is_known = truth != ignored
            truth, prediction = np.where(is_known, truth, 0), np.where(is_known, prediction, 0)
        arrays: dict[str, Array] = {}
        for stack in cut_slices(scan, prediction, truth=truth):
            assert stack.truth is not None
            arrays |= {
                f"{stack.plane}_image": stack.image,
                f"{stack.plane}_truth": stack.truth,
                f"{stack.plane}_prediction": stack.prediction,
                f"{stack.plane}_pixel_mm": np.array(stack.pixel_mm),
            }
        mean_dice = 1.0 if score.mean_dice is None else score.mean_dice
        title = f"{score.case_id}, Dice {dice_text(score.mean_dice)}"
        self._keep([_Kept(mean_dice=mean_dice, title=title, arrays=arrays)])

    def extend(self, others: SlicePictures) -> None:
        """Takes over what others kept."""
        self._keep(others._kept)

    def _keep(self, more: Sequence[_Kept]) -> None:
        self._kept.extend(more)
        if len(self._kept) > 2 * _MOST_KEPT:
            self._kept = self._spread()

    def save(self, path: Path) -> None:
        """Writes `slices.npz`: for each case i and plane the arrays `<i>_<plane>_image`, `_truth`, `_prediction`
        (n, h, w) uint8 and `_pixel_mm` (height, width), and `<i>_title`.
        """
        arrays: dict[str, Any] = {}
        for i, kept in enumerate(self._spread()):
            arrays |= {f"{i}_{name}": array for name, array in kept.arrays.items()}
            arrays[f"{i}_title"] = np.array(kept.title)
        with whole_file(path) as file:
            np.savez_compressed(file, **arrays)

    def _spread(self) -> list[_Kept]:
        ordered = sorted(self._kept, key=lambda kept: (kept.mean_dice, kept.title))
        if len(ordered) <= _MOST_KEPT:
            return ordered
        picks = np.linspace(0, len(ordered) - 1, _MOST_KEPT).round().astype(int)
        return [ordered[i] for i in picks]


def unlearned_text(session: Session, step: int) -> str:
    """Why a training of this many steps is too short to be scored; "" where it is not.

    A training that began with trained weights needs a single step, if theirs was not too short itself.
    """
    plan, planned = session.plan, session.planned
    steps_of_a_pass = (
        len(planned.cases.split(planned.fold).training) * plan.data.patch.draws_per_case / plan.data.batch_size
    )
    source = SavedRun.read(session.folder.record).source.get("folder")
    is_trained = isinstance(source, str) and bool(source) and not read_mark(Path(source) / session.folder.scores.name)
    return unlearned(step, steps_of_a_pass=steps_of_a_pass, started_from=str(source) if is_trained else "")


def write_metrics(facts: RunFacts, path: Path) -> None:
    """Writes `metrics.csv`: one row per logged stretch of steps and one per validation, in order of time.

    A class that is in none of the validated cases has an empty cell and counts as absent.
    """
    classes = sorted({name for validation in facts.validations for name in validation.dice})
    header = [
        "time_s", "step", "epoch", "loss", "learning_rate", "images_per_s", "wait_share", "mean_dice",
        "num_absent_classes",
    ]  # fmt: skip
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
