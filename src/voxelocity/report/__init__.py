"""Facts of a run to pages, pictures and tables. Reads the run's folder; judges by plain functions; measures nothing."""

from voxelocity.report.comparison import comparison_verdict, render_comparison
from voxelocity.report.factors import comparison_to_json, render_markdown_table
from voxelocity.report.facts import read_run
from voxelocity.report.labelled import LabelledRun, label_run, seconds_to_reach
from voxelocity.report.page import render_page
from voxelocity.report.progress import render_progress_png
from voxelocity.report.quantities import bytes_text, duration_text, share_text
from voxelocity.report.records import RunFacts, SliceFigure, StageRecord, StepRecord, ValidationRecord
from voxelocity.report.summary import verdict
from voxelocity.report.terminal import dataset_panel, factor_table, plan_table, score_table

__all__ = [
    "LabelledRun",
    "RunFacts",
    "SliceFigure",
    "StageRecord",
    "StepRecord",
    "ValidationRecord",
    "bytes_text",
    "comparison_to_json",
    "comparison_verdict",
    "dataset_panel",
    "duration_text",
    "factor_table",
    "label_run",
    "plan_table",
    "read_run",
    "render_comparison",
    "render_markdown_table",
    "render_page",
    "render_progress_png",
    "score_table",
    "seconds_to_reach",
    "share_text",
    "verdict",
]
