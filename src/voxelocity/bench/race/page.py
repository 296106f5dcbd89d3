"""A race as one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from voxelocity.bench.race.rounds import Outcome
from voxelocity.report import render_comparison
from voxelocity.report.views import Section

_FEW_SEEDS = 3


def write_page(outcome: Outcome, path: Path, *, title: str, summary: str, command: str) -> Path:
    """The page, written.

    Args:
        outcome: to show.
        path: of the page, ending in .html.
        title: heading.
        summary: what the sides share.
        command: that repeats it.
    """
    target = outcome.race.target_dice or None
    notices = _notices(len(outcome.seeds), command)
    render_comparison(
        outcome.runs,
        path,
        title,
        target_dice=target,
        parity=outcome.parity(),
        notices=notices,
        sections=[
            Section(
                title="Every seed",
                tables=[outcome.table],
                hint="The other figures on this page are medians over the seeds; curves are those of the first seed.",
            )
        ],
        summary=summary,
        command=command,
    )
    return path


def _notices(num_seeds: int, command: str) -> Sequence[str]:
    if num_seeds >= _FEW_SEEDS:
        return ()
    return [
        f"n = {num_seeds}: when a training first reaches a target depends on its seed by a third and more; "
        f"`{command} --seeds {_FEW_SEEDS}` repeats it."
    ]
