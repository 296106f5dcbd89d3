"""A race as a document."""

from __future__ import annotations

from collections.abc import Sequence

from voxelocity.bench.race.rounds import Outcome
from voxelocity.report import comparison_document
from voxelocity.report.document import Document, Section, Text

_FEW_SEEDS = 3


def race_document(outcome: Outcome, *, title: str, summary: str, command: str) -> Document:
    """All trainings of a race.

    Args:
        outcome: to show.
        title: heading.
        summary: what the sides share.
        command: that repeats it.
    """
    hint = "The other figures on this page are medians over the seeds; curves are those of the first seed."
    return comparison_document(
        outcome.runs,
        title,
        target_dice=outcome.race.target_dice or None,
        parity=outcome.parity(),
        notices=_notices(len(outcome.seeds), command),
        sections=[Section(title="Every seed", blocks=[outcome.table, Text(text=hint, is_hint=True)])],
        summary=summary,
        command=command,
    )


def _notices(num_seeds: int, command: str) -> Sequence[str]:
    if num_seeds >= _FEW_SEEDS:
        return ()
    return [
        f"n = {num_seeds}: when a training first reaches a target depends on its seed by a third and more; "
        f"`{command} --seeds {_FEW_SEEDS}` repeats it."
    ]
