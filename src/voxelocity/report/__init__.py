"""Facts of a run to pages, pictures and tables. Reads the run's folder; judges by plain functions; measures nothing."""

from voxelocity.core.quantities import bytes_text, count_text, duration_text, ml_text, share_text
from voxelocity.report.accuracy import accuracy_sentence
from voxelocity.report.comparison import comparison_document, comparison_verdict
from voxelocity.report.document import Document
from voxelocity.report.factors import comparison_values, factor_table, render_markdown_table
from voxelocity.report.facts import read_run
from voxelocity.report.folder_kind import FolderKind, folder_kind
from voxelocity.report.html import write_page
from voxelocity.report.labeled import LabeledRun, label_run, median_or_none, median_run, seconds_to_reach
from voxelocity.report.page import render_page
from voxelocity.report.pair import PairedRuns, highest_common_target, pair_runs
from voxelocity.report.parity import MARGIN_DICE, MARGIN_MM, PairedDifference, Parity, paired_parity, paired_trainings
from voxelocity.report.progress import render_progress_png
from voxelocity.report.records import RunFacts, SliceFigure, StageRecord, StepRecord, ValidationRecord
from voxelocity.report.summary import verdict
from voxelocity.report.terminal import (
    TableView,
    dataset_panel,
    document_view,
    plan_table,
    score_table,
    section_view,
    volume_table,
)

__all__ = [
    "Document",
    "FolderKind",
    "LabeledRun",
    "MARGIN_DICE",
    "MARGIN_MM",
    "PairedDifference",
    "PairedRuns",
    "Parity",
    "RunFacts",
    "SliceFigure",
    "StageRecord",
    "StepRecord",
    "TableView",
    "ValidationRecord",
    "accuracy_sentence",
    "bytes_text",
    "comparison_document",
    "comparison_values",
    "comparison_verdict",
    "count_text",
    "dataset_panel",
    "document_view",
    "duration_text",
    "factor_table",
    "folder_kind",
    "highest_common_target",
    "label_run",
    "median_or_none",
    "median_run",
    "ml_text",
    "pair_runs",
    "paired_parity",
    "paired_trainings",
    "plan_table",
    "read_run",
    "render_markdown_table",
    "render_page",
    "render_progress_png",
    "score_table",
    "seconds_to_reach",
    "section_view",
    "share_text",
    "verdict",
    "volume_table",
    "write_page",
]
