"""`predictions.html`: what was predicted, how long it took, and slices of the scans least like the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from voxelocity.infer.writing import PredictedScan
from voxelocity.report.records import SliceFigure
from voxelocity.report.slices import slices_block
from voxelocity_observe.core.quantities import bytes_text, count_text, duration_text, ml_text
from voxelocity_observe.core.time_parts import TimeShare
from voxelocity_observe.document.blocks import Block, Card, Document, Lines, Section, Table, Text, TimeBars, time_split

# More classes would make rows wider than a page; `predictions.csv` has all.
_MOST_CLASSES = 8
_WHICH = (
    "The scans whose volumes are most unusual: a class that most scans have is missing, or its volume is far from "
    "the median. `--previews` writes a picture of every scan."
)


def predictions_document(
    scans: Sequence[PredictedScan],
    figures: Sequence[SliceFigure],
    *,
    class_names: Sequence[str],
    failures: Mapping[str, str],
    warnings: Sequence[str],
    seconds: float,
) -> Document:
    """The predictions of one command.

    Args:
        scans: that were predicted, in order.
        figures: slices of some of them, as `Pictured` chooses.
        class_names: by class index, the background first.
        failures: why the others could not be predicted, by case id.
        warnings: shown to the user meanwhile.
        seconds: wall time for all scans.
    """
    # The first scan also waits for what the process does once.
    typical_s = median([scan.seconds for scan in scans]) if scans else 0.0
    verdict = f"{count_text(len(scans), 'scan')} predicted in {duration_text(seconds)}"
    if failures:
        verdict += f"; {count_text(len(failures), 'scan')} could not be predicted"
    cards = [
        Card(name="Scans", value=str(len(scans)), note=f"on {scans[0].device}" if scans else ""),
        Card(name="Typical scan", value=duration_text(typical_s), note="median of the time from one file to the next"),
    ]
    if scans:
        peak_bytes = max(scan.peak_bytes for scan in scans)
        cards.append(Card(name="Peak memory", value=bytes_text(peak_bytes), note="of this process"))
    blocks = list[Block]()
    if figures:
        shown = slices_block(figures, dict(enumerate(class_names)))
        blocks = [*([Text(text=_WHICH, is_hint=True)] if len(figures) < len(scans) else []), shown]
    return Document(
        kind="predictions",
        title="Predictions",
        verdict=f"{verdict}.",
        notices=list(warnings),
        cards=cards,
        sections=[
            Section(title="Slices", blocks=blocks),
            Section(title="Time by stage", blocks=[_stages(scans)] if scans else []),
            Section(title="Scans", blocks=[_scans(scans, class_names[1:])] if scans else []),
            Section(
                title="Not predicted",
                blocks=[Lines(lines=[f"{case_id}: {why}" for case_id, why in failures.items()])] if failures else [],
            ),
        ],
        footer="The table of all scans is in `predictions.csv`.",
        values={"num_scans": len(scans), "num_failures": len(failures), "seconds": seconds},
    )


def _stages(scans: Sequence[PredictedScan]) -> TimeBars:
    totals_s: dict[str, float] = {}
    for scan in scans:
        for stage, spent_s in scan.stage_seconds.items():
            totals_s[stage] = totals_s.get(stage, 0.0) + spent_s
    total_s = sum(totals_s.values()) or 1.0
    shares = [TimeShare(name=name, seconds=spent_s, share=spent_s / total_s) for name, spent_s in totals_s.items()]
    return time_split("Work on all scans; stages of different scans overlap", shares)


def _scans(scans: Sequence[PredictedScan], foreground: Sequence[str]) -> Table:
    shown = foreground[:_MOST_CLASSES]
    return Table(
        caption="Seconds, and milliliters of each class"
        + (" (the first ones)" if len(shown) < len(foreground) else ""),
        heads=("Scan", "Time", *(f"{name}, ml" for name in shown)),
        rows=[
            (
                scan.case_id,
                duration_text(scan.seconds),
                *(ml_text(scan.num_voxels[name] * scan.voxel_ml) for name in shown),
            )
            for scan in scans
        ],
    )
