"""What came out, as a page: the figures of each bundle, and streamlines next to real ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from voxelocity.core.plain import plain_data
from voxelocity.core.quantities import duration_text, share_text
from voxelocity.recipes.pages import number_text, training_blocks
from voxelocity.recipes.tractography.judge import Judgment, mean_of
from voxelocity.recipes.tractography.shapes import Points
from voxelocity.report.charts import projections
from voxelocity.report.document import Card, Chart, Document, LegendEntry, Section, Table, Text

LEAST_REAL = 50
_MOST_DRAWN, _MOST_LINES = 4, 40
_COLORS = {"generated": "accent", "held out": "baseline"}


def tract_document(
    judgments: Mapping[str, Judgment],
    drawn: Mapping[str, tuple[Points, Points]],
    events: Sequence[Mapping[str, Any]],
    *,
    settings: Mapping[str, str],
    seconds: float,
    num_generated: int,
    notices: Sequence[str] = (),
) -> Document:
    """The page of a training and of what its model makes.

    Args:
        judgments: by bundle.
        drawn: generated and real streamlines of some bundles.
        events: of the training.
        settings: what was trained, in words.
        seconds: that making the streamlines took.
        num_generated: how many there are.
        notices: what to know before believing the figures.
    """
    least = min(LEAST_REAL, max((one.num_real for one in judgments.values()), default=0))
    mean = mean_of(judgments, least_real=least)
    per_thousand_s = 1000.0 * seconds / max(1, num_generated)
    cards = [
        Card(
            name="F1 at 2 mm",
            value=number_text(mean["f1"]),
            note=f"real streamlines: {number_text(mean['ceiling_f1'])}",
        ),
        Card(
            name="Copies",
            value=share_text(mean["copied"]),
            note=f"real streamlines: {share_text(mean['copied_real'])}",
        ),
        Card(name="1,000 streamlines", value=duration_text(per_thousand_s), note=f"{num_generated:,} were made"),
    ]
    if not math.isnan(mean["outside"]):
        cards.append(Card(name="Outside the mask", value=share_text(mean["outside"]), note="of all points"))
    num = int(mean.get("num_bundles", 0.0))
    return Document(
        kind="tractography report",
        title="Streamlines by diffusion",
        verdict=(
            f"Over {num} bundles with at least {least} held-out streamlines, generated streamlines fill the voxels of "
            f"the held-out ones with a mean F1 of {number_text(mean['f1'])}. The same number of streamlines from the "
            f"training data reach {number_text(mean['ceiling_f1'])}, which is the ceiling."
        ),
        notices=notices,
        cards=cards,
        sections=[
            Section(title="Bundles", blocks=[*_pictures(drawn), _bundle_table(judgments)], key="bundles"),
            Section(title="Training", blocks=training_blocks(events, settings), key="training", is_detail=True),
        ],
        values=plain_data({"mean": mean, "bundles": dict(judgments)}, where="the scores"),
    )


def _bundle_table(judgments: Mapping[str, Judgment]) -> Table:
    rows = [
        (
            name, str(one.num_real), number_text(one.f1), number_text(one.ceiling_f1), number_text(one.overlap),
            number_text(one.overreach), _middle(one.length_mm, 0), _middle(one.curvature_per_mm, 3),
            share_text(one.copied),
        )
        for name, one in judgments.items()
    ]  # fmt: skip
    heads = (
        "Bundle", "Held out", "F1", "F1 of real", "Overlap", "Overreach", "Median mm (real)",
        "Median rad/mm (real)", "Copies",
    )  # fmt: skip
    return Table(caption="Generated streamlines against those held out", heads=heads, rows=rows)


def _middle(spread: tuple[Sequence[float], Sequence[float]], digits: int) -> str:
    mine, theirs = (f"{values[len(values) // 2]:.{digits}f}" if values else "n/a" for values in spread)
    return f"{mine} ({theirs})"


def _pictures(drawn: Mapping[str, tuple[Points, Points]]) -> list[Any]:
    if not drawn:
        return [Text(text="No streamlines were held out, so there is nothing to compare with.", is_hint=True)]
    names = list(drawn)[:_MOST_DRAWN]
    columns = {name: _curves(*drawn[name]) for name in names}
    return [
        Chart(
            title="Generated and held-out streamlines",
            svg=projections("streamlines", columns),
            alt=f"Projections of {', '.join(names)}, generated streamlines over held-out ones.",
            legend=[LegendEntry(name=name, color=f"var(--{color})") for name, color in _COLORS.items()],
        )
    ]


def _curves(generated: Points, real: Points) -> list[tuple[list[Any], str]]:
    """What is drawn of a bundle; the generated ones lie on top."""
    parts = {"held out": real, "generated": generated}
    return [(list(part[:_MOST_LINES, ::2]), _COLORS[kind]) for kind, part in parts.items()]
