"""What came out, as a page: the figures next to what needs no training, streamlines over the brain, each bundle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voxelocity.core.learning import UNLEARNED
from voxelocity_lab.recipes.pages import BASELINES, BASELINES_KEY, number_text, training_blocks, unlearned_verdict
from voxelocity_lab.recipes.tractography.baselines import MOVED, NOISY, SAME, TRIVIAL, UNTRAINED
from voxelocity_lab.recipes.tractography.generate import Generated
from voxelocity_lab.recipes.tractography.judge import (
    LENGTHS_MM,
    MEASURES,
    MOST_TURN_DEGREES,
    Judgment,
    Measure,
    interval_of,
    is_better,
    mean_of,
)
from voxelocity_lab.recipes.tractography.shapes import Points
from voxelocity_observe.core.host import peak_device_bytes, peak_host_bytes
from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import count_text, duration_text, share_text
from voxelocity_observe.document.blocks import Block, Card, Chart, Document, LegendEntry, Section, Slices, Table, Text
from voxelocity_observe.document.curves import Shadow, projections, turned

GENERATED, REAL = "trained", "real, unseen"
LEAST_REAL = 50
NUM_DRAWN, _MOST_LINES = 6, 25
_LEAST_BETTER = 4
_LEARNED = {
    True: "Something was learned",
    False: f"Little was learned (fewer than {_LEAST_BETTER} measures are better)",
}
COLUMNS = {
    UNTRAINED: "untrained", NOISY: "training with noise", GENERATED: "trained", SAME: "unchanged training (ceiling)"
}  # fmt: skip
F1 = Measure(key="f1", name="F1", better="larger")
NEAREST = Measure(key="nearest_mm", name="nearest training streamline, mm", better="larger", digits=1)
COPIED = Measure(key="copied", name="copies (nearer than 1 mm), %", better="smaller", digits=1, factor=100.0)
_ABOUT = Text(
    text=(
        "Means over bundles, ± half of their 95 % interval (bootstrap over bundles, 2,000 times), for sets of as "
        "many streamlines as were generated, compared with the same unseen real ones. Distances are Wasserstein "
        "distances. Invalid streamlines turn by more than "
        f"{MOST_TURN_DEGREES:.0f}° at a point, are shorter than {LENGTHS_MM[0]:.0f} or longer than {LENGTHS_MM[1]:.0f} "
        "mm, or leave the brain by more than 2 mm. Noise moves each point by 2 mm. Streamlines much closer to the "
        "training than unseen real ones were memorized."
    ),
    is_hint=True,
)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What is pictured.

    Attributes:
        columns: by column, streamlines of some bundles by name.
        behind: the brain, by view; empty where no image is in their space.
    """

    columns: Mapping[str, Mapping[str, Points]]
    behind: Mapping[str, Shadow] = field(default_factory=dict)


def least_real(judgments: Mapping[str, Judgment]) -> int:
    """Unseen streamlines of a bundle that counts in the means: 50, or as many as the largest has."""
    return min(LEAST_REAL, max((judgment.num_real for judgment in judgments.values()), default=0))


def tract_document(
    columns: Mapping[str, Mapping[str, Judgment]],
    drawn: Drawn,
    events: Sequence[Mapping[str, Any]],
    *,
    settings: Mapping[str, str],
    made: Generated,
    unlearned: str = "",
    notices: Sequence[str] = (),
) -> Document:
    """The page of a training and of what its model makes.

    Args:
        columns: judgments by bundle, of the generated streamlines (`GENERATED`) and of each baseline.
        drawn: what is pictured.
        events: of the training.
        settings: what was trained, in words.
        made: all that was generated.
        unlearned: why the training is too short to be scored; "" where it is not.
        notices: what to know before believing the figures.
    """
    judgments = columns[GENERATED]
    least = least_real(judgments)
    counted = {
        column: [judgment for judgment in found.values() if judgment.num_real >= least]
        for column, found in columns.items()
    }
    mean = mean_of(judgments, least_real=least)
    is_scored = not unlearned and bool(counted[GENERATED])
    baselines = {name: mean_of(found, least_real=least) for name, found in columns.items() if name != GENERATED}
    wins = {name: _better_than(counted, name) for name in (UNTRAINED, *TRIVIAL)} if is_scored else {}
    values = {
        UNLEARNED: unlearned,
        "data": settings.get("data", ""),
        "mean": dict.fromkeys(mean, math.nan) if unlearned else mean,
        "baselines": baselines if counted[GENERATED] else {},
        "intervals": _intervals(counted) if is_scored else {},
        "better_than": wins,
        "costs": _costs(events, made),
        "bundles": dict(judgments),
    }
    return Document(
        kind="tractography report",
        title="Streamlines by diffusion",
        verdict=unlearned_verdict(unlearned) if unlearned else _verdict(judgments, mean, baselines, wins),
        notices=notices,
        cards=_cards(mean if is_scored else {}, baselines, wins, made),
        sections=[
            Section(title=BASELINES, blocks=_column_blocks(counted) if is_scored else [], key=BASELINES_KEY),
            Section(title="Streamlines", blocks=_pictures(drawn), key="streamlines", is_detail=True),
            Section(title="Training", blocks=training_blocks(events, settings), key="training", is_detail=True),
            Section(title="Bundles", blocks=[_bundle_table(judgments)], key="bundles"),
        ],
        values=plain_data(values, where="the scores"),
    )


def _better_than(counted: Mapping[str, Sequence[Judgment]], name: str) -> list[str]:
    """The measures in which generated streamlines are better than a baseline, by more than the interval."""
    return [measure.key for measure in MEASURES if is_better(measure, counted[GENERATED], counted[name])]


def _intervals(counted: Mapping[str, Sequence[Judgment]]) -> dict[str, dict[str, tuple[float, float]]]:
    return {
        column: {measure.key: interval_of(_values(found, measure)) for measure in (*MEASURES, F1, NEAREST)}
        for column, found in counted.items()
    }


def _values(judgments: Sequence[Judgment], measure: Measure) -> Any:
    return np.array([getattr(judgment, measure.key) for judgment in judgments])


def _costs(events: Sequence[Mapping[str, Any]], made: Generated) -> dict[str, Any]:
    """Seconds and memory of the training, of which its last event has them, and of sampling."""
    ends = [event for event in events if event["event"] == "run_finished"]
    steps = [event for event in events if event["event"] == "steps"]
    end = ends[-1] if ends else {}
    seconds = sum(float(event["seconds"]) for event in steps)
    return {
        "training": {
            "seconds": end.get("seconds", math.nan),
            "seconds_of_steps": end.get("trained_s", math.nan),
            "steps": end.get("step", 0),
            "streamlines_per_s": sum(event["num_images"] for event in steps) / seconds if seconds else math.nan,
            **{key: end.get(key, math.nan) for key in ("peak_host_bytes", "peak_device_bytes")},
        },
        "sampling": {
            "seconds": made.seconds,
            "seconds_per_1000": 1000.0 * made.seconds / max(1, len(made.bundle)),
            "peak_host_bytes": peak_host_bytes(),
            "peak_device_bytes": peak_device_bytes(),
        },
    }


def _verdict(
    judgments: Mapping[str, Judgment],
    mean: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float]],
    wins: Mapping[str, Sequence[str]],
) -> str:
    num = int(mean.get("num_bundles", 0.0))
    if not num:
        return "The model was trained on all streamlines, so there are none to compare the generated ones with."
    part = f"{num} of " if num < len(judgments) else ""
    noise, moved, untrained = (f"{len(wins[name])} of {len(MEASURES)}" for name in (NOISY, MOVED, UNTRAINED))
    f1, at_start, ceiling = (number_text(figures["f1"]) for figures in (mean, baselines[UNTRAINED], baselines[SAME]))
    bad, bad_start, bad_real = (
        share_text(figures["invalid"]) for figures in (mean, baselines[UNTRAINED], baselines[SAME])
    )
    return (
        f"{_LEARNED[_has_learned(wins)]}: over {part}{count_text(len(judgments), 'bundle')} with at least "
        f"{least_real(judgments)} real streamlines that the model has not seen, generated ones are better than the "
        f"training with noise by {noise} measures, than the training moved as a whole by {moved}, and than an "
        f"untrained network by {untrained}. F1 is {f1} (untrained: {at_start}; real streamlines of the training, "
        f"the ceiling: {ceiling}), and {bad} are invalid (untrained: {bad_start}; real: {bad_real})."
    )


def _has_learned(wins: Mapping[str, Sequence[str]]) -> bool:
    return all(len(wins[name]) >= _LEAST_BETTER for name in (NOISY, UNTRAINED))


def _cards(
    mean: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float]],
    wins: Mapping[str, Sequence[str]],
    made: Generated,
) -> list[Card]:
    """The headline; none of a training that is too short for one."""
    cards = []
    if mean:
        cards = [
            Card(
                name="Better than noise by",
                value=f"{len(wins[NOISY])} of {len(MEASURES)}",
                note=f"measures; than a move: {len(wins[MOVED])}, than untrained: {len(wins[UNTRAINED])}",
                is_worse=not _has_learned(wins),
            ),
            *(
                Card(
                    name=measure.name.capitalize() if measure.key != "f1" else "F1 at 2 mm",
                    value=_shown(mean[measure.key], measure),
                    note=f"untrained: {_shown(baselines[UNTRAINED][measure.key], measure)}; "
                    f"ceiling: {_shown(baselines[SAME][measure.key], measure)}",
                )
                for measure in (F1, MEASURES[2], MEASURES[5])
            ),
            Card(
                name="Copies",
                value=share_text(mean["copied"]),
                note=f"unseen real ones: {share_text(mean['copied_real'])}",
            ),
        ]
    num = len(made.bundle)
    per_thousand = duration_text(1000.0 * made.seconds / max(1, num))
    return [*cards, Card(name="1,000 streamlines", value=per_thousand, note=f"{num:,} were made")]


def _shown(value: float, measure: Measure) -> str:
    return number_text(measure.factor * value, measure.digits)


def _column_blocks(counted: Mapping[str, Sequence[Judgment]]) -> list[Block]:
    """The four columns side by side, and in what generated streamlines are better than trivial ones."""
    rows = []
    for measure in (*MEASURES, F1, NEAREST, COPIED):
        cells = []
        for column in COLUMNS:
            values = _values(counted[column], measure)
            low, high = interval_of(values)
            half = number_text(measure.factor * (high - low) / 2.0, measure.digits)
            cells.append(f"{_shown(float(values.mean()), measure)} ± {half}")
        rows.append((measure.name, *cells))
    others = (UNTRAINED, *TRIVIAL)
    better = {name: _better_than(counted, name) for name in others}
    compared = [
        (
            measure.name,
            _shown(float(_values(counted[MOVED], measure).mean()), measure),
            *("yes" if measure.key in better[name] else "no" for name in others),
        )
        for measure in MEASURES
    ]
    unseen = number_text(float(np.mean([judgment.nearest_real_mm for judgment in counted[GENERATED]])), 1)
    return [
        Table(
            caption=BASELINES,
            heads=("Measure", *COLUMNS.values()),
            rows=rows,
            marked_columns=frozenset({3}),
            hides_caption=True,
        ),
        _ABOUT,
        Text(text=f"Unseen real streamlines lie {unseen} mm from the nearest of the training."),
        Table(
            caption="Are trained ones better, by more than the interval of the difference?",
            heads=("Measure", MOVED, "better than untrained", "than with noise", "than moved"),
            rows=compared,
            text_columns=frozenset({2, 3, 4}),
        ),
    ]


def _bundle_table(judgments: Mapping[str, Judgment]) -> Table:
    rows = [
        (
            name, str(judgment.num_real), number_text(judgment.f1), number_text(judgment.ceiling_f1),
            number_text(judgment.overlap), number_text(judgment.overreach), _middle(judgment.length_mm, 0),
            _middle(judgment.curvature_per_mm, 3), share_text(judgment.invalid), share_text(judgment.copied),
        )
        for name, judgment in judgments.items()
    ]  # fmt: skip
    heads = (
        "Bundle", "Unseen", "F1", "F1 of real", "Overlap", "Overreach", "Median mm (real)",
        "Median rad/mm (real)", "Invalid", "Copies",
    )  # fmt: skip
    return Table(caption="Generated streamlines against real ones that the model has not seen", heads=heads, rows=rows)


def _middle(spread: tuple[Sequence[float], Sequence[float]], digits: int) -> str:
    mine, theirs = (f"{values[len(values) // 2]:.{digits}f}" if values else "n/a" for values in spread)
    return f"{mine} ({theirs})"


def _pictures(drawn: Drawn) -> list[Block]:
    names = list(drawn.columns[GENERATED])[:NUM_DRAWN]
    if not names:
        return [Text(text="The model was trained on all streamlines, so there are none to compare with.", is_hint=True)]
    colors = {name: f"class-{number}" for number, name in enumerate(names, start=1)}
    over = " over the brain" if drawn.behind else ""
    columns = {
        title: [(list(drawn.columns[column][name][:_MOST_LINES, ::2]), color) for name, color in colors.items()]
        for column, title in (
            (UNTRAINED, "untrained"), (NOISY, "training with noise"), (GENERATED, "trained"), (REAL, "real, unseen")
        )
    }  # fmt: skip
    legend = [LegendEntry(name=name, color=f"var(--{color})") for name, color in colors.items()]
    return [
        Chart(
            title=f"The largest bundles{over}, from the right, from behind and from above",
            svg=projections("streamlines", columns, behind=drawn.behind),
            alt=f"Projections of {', '.join(names)}: {', '.join(columns)}{over}.",
            legend=legend,
        ),
        Text(text="Scroll sideways in a picture to rotate the view.", is_hint=True),
        Slices(
            figures=turned({title: columns[title] for title in (GENERATED, REAL)}),
            legend=legend,
            what="views of streamlines",
        ),
    ]
