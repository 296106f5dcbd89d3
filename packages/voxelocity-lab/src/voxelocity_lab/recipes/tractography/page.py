"""What came out, as a page: the figures of each bundle, and streamlines next to real ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from voxelocity.core.learning import UNLEARNED
from voxelocity_lab.recipes.pages import BASELINES, BASELINES_KEY, number_text, training_blocks, unlearned_verdict
from voxelocity_lab.recipes.tractography.baselines import MOVED, UNTRAINED, Baseline
from voxelocity_lab.recipes.tractography.generate import Generated
from voxelocity_lab.recipes.tractography.judge import Judgment, mean_of
from voxelocity_lab.recipes.tractography.shapes import Points
from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import count_text, duration_text, share_text
from voxelocity_observe.document.blocks import Card, Chart, Document, LegendEntry, Section, Table, Text
from voxelocity_observe.document.curves import Shadow, projections

LEAST_REAL = 50
_MOST_DRAWN, _MOST_LINES = 4, 40
_ABOUT_BASELINES = Text(
    text=(
        "Means over bundles, of as many streamlines as were generated, on the same real ones, which the model has not "
        "seen; length and curvature are medians. Generated streamlines begin at streamlines of the training, and so "
        "does the untrained network. Moved ones are shifted as a whole by the distance between neighbors."
    ),
    is_hint=True,
)
_UNSEEN_COLOR = "baseline"


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What is pictured.

    Attributes:
        bundles: generated and real streamlines of some bundles, by name.
        behind: the brain, by view; empty where no image is in their space.
    """

    bundles: Mapping[str, tuple[Points, Points]]
    behind: Mapping[str, Shadow] = field(default_factory=dict)


def least_real(judgments: Mapping[str, Judgment]) -> int:
    """Unseen streamlines of a bundle that counts in the means: 50, or as many as the largest has."""
    return min(LEAST_REAL, max((judgment.num_real for judgment in judgments.values()), default=0))


def tract_document(
    judgments: Mapping[str, Judgment],
    drawn: Drawn,
    events: Sequence[Mapping[str, Any]],
    *,
    settings: Mapping[str, str],
    made: Generated,
    baselines: Mapping[str, Baseline],
    unlearned: str = "",
    notices: Sequence[str] = (),
) -> Document:
    """The page of a training and of what its model makes.

    Args:
        judgments: by bundle.
        drawn: what is pictured.
        events: of the training.
        settings: what was trained, in words.
        made: all that was generated.
        baselines: what needs no training, over the bundles that count.
        unlearned: why the training is too short to be scored; "" where it is not.
        notices: what to know before believing the figures.
    """
    mean = mean_of(judgments, least_real=least_real(judgments))
    values = {
        UNLEARNED: unlearned,
        "data": settings.get("data", ""),
        "mean": dict.fromkeys(mean, math.nan) if unlearned else mean,
        "baselines": dict(baselines),
        "bundles": dict(judgments),
    }
    return Document(
        kind="tractography report",
        title="Streamlines by diffusion",
        verdict=unlearned_verdict(unlearned) if unlearned else _verdict(judgments, mean, baselines),
        notices=notices,
        cards=_cards({} if unlearned else mean, baselines, made),
        sections=[
            Section(
                title=BASELINES,
                blocks=[] if unlearned or not baselines else [_baseline_table(mean, baselines), _ABOUT_BASELINES],
                key=BASELINES_KEY,
            ),
            Section(title="Bundles", blocks=[*_pictures(drawn), _bundle_table(judgments)], key="bundles"),
            Section(title="Training", blocks=training_blocks(events, settings), key="training", is_detail=True),
        ],
        values=plain_data(values, where="the scores"),
    )


def _verdict(judgments: Mapping[str, Judgment], mean: Mapping[str, float], baselines: Mapping[str, Baseline]) -> str:
    num = int(mean.get("num_bundles", 0.0))
    if not num:
        return "The model has seen all streamlines, so there is nothing to compare the generated ones with."
    part = f"{num} of " if num < len(judgments) else ""
    length, real_length = (number_text(mean[key], 0) for key in ("length_mm", "real_length_mm"))
    curvature, real_curvature = (number_text(mean[key], 3) for key in ("curvature_per_mm", "real_curvature_per_mm"))
    verdict = (
        f"Over {part}{count_text(len(judgments), 'bundle')}, each with at least {least_real(judgments)} real "
        f"streamlines that the model has not seen, generated streamlines fill the voxels of these with a mean F1 of "
        f"{number_text(mean['f1'])}. They are {length} mm long (real: {real_length}) and curved by {curvature} "
        f"rad/mm (real: {real_curvature})."
    )
    if not math.isnan(mean["ceiling_f1"]):
        verdict += (
            " The same number of streamlines from the training data reach an F1 of "
            f"{number_text(mean['ceiling_f1'])}, which is the ceiling."
        )
    if not baselines:
        return verdict
    untrained, moved = baselines[UNTRAINED].f1, baselines[MOVED].f1
    worth = " By F1, the training has gained nothing over that." if mean["f1"] <= max(untrained, moved) else ""
    return (
        f"{verdict} Without any training, an untrained network reaches {number_text(untrained)}, and training "
        f"streamlines that are each moved at random {number_text(moved)}.{worth}"
    )


def _cards(mean: Mapping[str, float], baselines: Mapping[str, Baseline], made: Generated) -> list[Card]:
    """The headline; none of a training that is too short for one."""
    cards = []
    if mean:
        without = f"; untrained: {number_text(baselines[UNTRAINED].f1)}" if baselines else ""
        cards = [
            Card(
                name="F1 at 2 mm",
                value=number_text(mean["f1"]),
                note=f"real streamlines: {number_text(mean['ceiling_f1'])}{without}",
            ),
            Card(
                name="Length",
                value=f"{number_text(mean.get('length_mm', math.nan), 0)} mm",
                note=f"real streamlines: {number_text(mean.get('real_length_mm', math.nan), 0)} mm",
            ),
            Card(
                name="Curvature",
                value=f"{number_text(mean.get('curvature_per_mm', math.nan), 3)} rad/mm",
                note=f"real streamlines: {number_text(mean.get('real_curvature_per_mm', math.nan), 3)} rad/mm",
            ),
            Card(
                name="Copies",
                value=share_text(mean["copied"]),
                note=f"real streamlines: {share_text(mean['copied_real'])}",
            ),
        ]
    num = len(made.bundle)
    per_thousand = duration_text(1000.0 * made.seconds / max(1, num))
    cards.append(Card(name="1,000 streamlines", value=per_thousand, note=f"{num:,} were made"))
    if not math.isnan(mean.get("outside", math.nan)):
        cards.append(Card(name="Outside the mask", value=share_text(mean["outside"]), note="of all points"))
    return cards


def _baseline_table(mean: Mapping[str, float], baselines: Mapping[str, Baseline]) -> Table:
    real = Baseline(
        f1=math.nan, overlap=math.nan, overreach=math.nan, length_mm=mean["real_length_mm"],
        curvature_per_mm=mean["real_curvature_per_mm"],
    )  # fmt: skip
    names = [figure.name for figure in fields(Baseline)]
    generated = Baseline(**{name: mean[name] for name in names})
    rows = [
        (name, *(number_text(getattr(baseline, key), 0 if key == "length_mm" else 3) for key in names))
        for name, baseline in {"generated": generated, **baselines, "real, unseen": real}.items()
    ]
    heads = ("Streamlines", "F1", "Overlap", "Overreach", "mm", "rad/mm")
    return Table(caption=BASELINES, heads=heads, rows=rows, hides_caption=True)


def _bundle_table(judgments: Mapping[str, Judgment]) -> Table:
    rows = [
        (
            name, str(judgment.num_real), number_text(judgment.f1), number_text(judgment.ceiling_f1),
            number_text(judgment.overlap), number_text(judgment.overreach), _middle(judgment.length_mm, 0),
            _middle(judgment.curvature_per_mm, 3), share_text(judgment.copied),
        )
        for name, judgment in judgments.items()
    ]  # fmt: skip
    heads = (
        "Bundle", "Unseen", "F1", "F1 of real", "Overlap", "Overreach", "Median mm (real)",
        "Median rad/mm (real)", "Copies",
    )  # fmt: skip
    return Table(caption="Generated streamlines against real ones that the model has not seen", heads=heads, rows=rows)


def _middle(spread: tuple[Sequence[float], Sequence[float]], digits: int) -> str:
    mine, theirs = (f"{values[len(values) // 2]:.{digits}f}" if values else "n/a" for values in spread)
    return f"{mine} ({theirs})"


def _pictures(drawn: Drawn) -> list[Any]:
    bundles, behind = drawn.bundles, drawn.behind
    if not bundles:
        return [Text(text="The model has seen all streamlines, so there is nothing to compare with.", is_hint=True)]
    names = list(bundles)[:_MOST_DRAWN]
    colors = {name: f"class-{number}" for number, name in enumerate(names, start=1)}
    over = " and the brain" if behind else ""
    columns = {name: _curves(*bundles[name], colors[name]) for name in names}
    return [
        Chart(
            title="Generated streamlines and real ones that the model has not seen, from the right and from above",
            svg=projections("streamlines", columns, behind=behind),
            alt=f"Projections of {', '.join(names)}: generated streamlines over unseen ones{over}.",
            legend=[
                *(LegendEntry(name=f"{name}, generated", color=f"var(--{color})") for name, color in colors.items()),
                LegendEntry(name="real ones, unseen", color=f"var(--{_UNSEEN_COLOR})"),
            ],
        )
    ]


def _curves(generated: Points, real: Points, color: str) -> list[tuple[list[Any], str]]:
    """What is drawn of a bundle; the generated ones lie on top."""
    parts = {_UNSEEN_COLOR: real, color: generated}
    return [(list(part[:_MOST_LINES, ::2]), name) for name, part in parts.items()]
