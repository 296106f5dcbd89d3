"""Facts of a run to pages, pictures and tables. Reads the run's folder; judges by plain functions; measures nothing.

- `facts`, `records`, `summary`: the folder of a run as records, and what follows from them.
- `page`, `tables`, `slices`, `pictures`, `terminal`: a run as a `Document`, its tables, slices, curves and short form.
- `comparison` with `labeled`, `differences` and `parity`: trainings side by side, what was set differently, and whether
  the accuracy is the same. `found`: what was understood of an undescribed folder.
- `own_run`: a run's records as facts, so that the diagnosis judges it like any other program.
"""

from voxelocity.report.comparison import comparison_document, dice_chart, with_command
from voxelocity.report.differences import comparison_values, factor_table, machines_table
from voxelocity.report.facts import FolderKind, folder_kind, read_run
from voxelocity.report.found import found_document
from voxelocity.report.labeled import (
    LabeledRun,
    highest_common_target,
    label_run,
    median_run,
    pair_runs,
    scores_to_compare,
    seconds_to_reach,
    unlearned_notices,
)
from voxelocity.report.page import render_page
from voxelocity.report.parity import Parity, accuracy_sentence, paired_trainings
from voxelocity.report.pictures import render_progress_png
from voxelocity.report.records import RunFacts, StepRecord, ValidationRecord
from voxelocity.report.slices import cut_slices, preview_png, slices_block
from voxelocity.report.terminal import dataset_panel, plan_summary, plan_table, score_table, volume_table

__all__ = [
    "FolderKind",
    "LabeledRun",
    "Parity",
    "RunFacts",
    "StepRecord",
    "ValidationRecord",
    "accuracy_sentence",
    "comparison_document",
    "comparison_values",
    "cut_slices",
    "dataset_panel",
    "dice_chart",
    "factor_table",
    "folder_kind",
    "found_document",
    "highest_common_target",
    "label_run",
    "machines_table",
    "median_run",
    "pair_runs",
    "paired_trainings",
    "plan_summary",
    "plan_table",
    "preview_png",
    "read_run",
    "render_page",
    "render_progress_png",
    "score_table",
    "scores_to_compare",
    "seconds_to_reach",
    "slices_block",
    "unlearned_notices",
    "volume_table",
    "with_command",
]
