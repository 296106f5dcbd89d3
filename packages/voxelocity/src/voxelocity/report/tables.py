"""The tables of a run's page: facts in, text in rows out; and the choices of a plan, grouped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxelocity.core.records import CaseScore, Choice
from voxelocity.report.records import RankRecord, RunFacts
from voxelocity.report.summary import mean_hd95_mm, summarize_classes
from voxelocity_observe.core.quantities import dice_text, dotted, duration_text, mm_text, share_text, value_text
from voxelocity_observe.core.time_parts import part_label
from voxelocity_observe.document.blocks import Table, fact_table
from voxelocity_observe.document.settings import in_words, key_value_table

# More columns than this do not fit on a laptop's screen next to the rest.
_MAX_CLASS_COLUMNS = 4
_MAX_VALIDATIONS = 200
_SPREAD = ("low", "median", "high")

HOW_TO_CHANGE = (
    "Change a choice with --set KEY=VALUE, or in a file that --config names; --set KEY=auto gives it back to its rule. "
    "For seed and train.time_budget_s there are also --seed and --time-budget."
)


def rank_table(ranks: Sequence[RankRecord]) -> Table:
    """Seconds of the training steps by rank, and their shares by activity."""
    parts = list(dict.fromkeys(part for record in ranks for part in record.parts))
    rows = [
        (
            f"rank {record.rank}",
            duration_text(record.seconds),
            *(share_text(record.parts.get(part, 0.0) / max(record.seconds, 1e-9)) for part in parts),
        )
        for record in ranks
    ]
    return Table(caption="Training steps by rank", heads=("Rank", "Steps", *map(part_label, parts)), rows=rows)


def class_table(scores: Sequence[CaseScore]) -> Table:
    """Mean, median and worst Dice and mean HD95 per class, with the numbers of cases that these leave out."""
    rows = [
        (
            summary.name,
            dice_text(summary.mean_dice),
            dice_text(summary.median_dice),
            dice_text(summary.worst_dice),
            summary.worst_case_id,
            mm_text(summary.mean_hd95_mm),
            str(summary.num_without_surface),
            str(summary.num_absent),
        )
        for summary in summarize_classes(scores)
    ]
    heads = ("Class", "Mean Dice", "Median", "Worst", "Worst case", "Mean HD95 (mm)", "Without HD95", "Absent")
    return Table(caption="Scores by class", heads=heads, rows=rows, text_columns=frozenset({4}))


def case_table(scores: Sequence[CaseScore], caption: str) -> Table:
    """One row per case in the order given; classes have their own columns where they are few."""
    names = list(dict.fromkeys(name for score in scores for name in score.dice))
    if 1 < len(names) <= _MAX_CLASS_COLUMNS:
        heads = ["Case", "Mean Dice", *names, "Mean HD95 (mm)"]
        rows = [[*_case(score), *(dice_text(score.dice.get(n)) for n in names), _hd95(score)] for score in scores]
        return Table(caption=caption, heads=heads, rows=rows)
    if len(names) <= 1:
        rows = [[*_case(score), _hd95(score)] for score in scores]
        return Table(caption=caption, heads=["Case", "Dice", "HD95 (mm)"], rows=rows)
    rows = [[*_case(score), *_worst_class(score), _hd95(score)] for score in scores]
    heads = ["Case", "Mean Dice", "Worst class", "Its Dice", "Mean HD95 (mm)"]
    return Table(caption=caption, heads=heads, rows=rows, text_columns=frozenset({2}))


def validation_table(run: RunFacts) -> Table:
    """The validations on the way: all, or if there are many, some chosen evenly, with the best and the last."""
    count, best = len(run.validations), run.best_validation
    few = min(count, _MAX_VALIDATIONS)
    chosen = {count - 1, *(i * count // few for i in range(few))}
    rows = [
        (f"{r.step:,}", duration_text(r.time_s), dice_text(r.mean_dice), duration_text(r.seconds))
        for i, r in enumerate(run.validations)
        if i in chosen or r is best
    ]
    part = f", {len(rows):,} of {count:,} (all of them in metrics.csv)" if len(rows) < count else ""
    return Table(caption=f"Validations on the way{part}", heads=("Step", "At", "Mean Dice", "Took"), rows=rows)


def dataset_table(run: RunFacts) -> Table:
    """What the data set is and how it was divided."""
    data = run.dataset
    fold = "all cases train and validate" if data.fold == "all" else f"fold {data.fold} held out"
    rows = [
        ("Cases", f"{data.num_cases:,}"),
        ("Training / validation", f"{data.num_training:,} / {data.num_validation:,} ({fold})"),
        ("Channels", ", ".join(data.channels)),
        ("Classes", ", ".join(data.classes)),
        ("Regions", regions_text(data.regions)),
        ("Layout", data.layout),
        ("Folder", data.path),
    ]
    return fact_table("Cases and classes", (row for row in rows if row[1]))


def regions_text(regions: Mapping[str, Sequence[int]]) -> str:
    """Overlapping classes with the label values of each; "" without any."""
    return ", ".join(f"{name} ({'+'.join(map(str, values))})" for name, values in regions.items())


def spread_table(fingerprint: Mapping[str, Any]) -> Table:
    """The statistics that have a smallest, a median and a largest value."""
    rows = [
        (in_words(key), *(value_text(value[part], key) for part in _SPREAD))
        for key, value in fingerprint.items()
        if _is_spread(value)
    ]
    return Table(caption="Sizes over all cases", heads=("Measure", "Smallest", "Median", "Largest"), rows=rows)


def statistics_table(fingerprint: Mapping[str, Any]) -> Table:
    """All statistics that `spread_table` leaves out."""
    rest = {key: value for key, value in fingerprint.items() if not _is_spread(value)}
    rows = ((in_words(key), value) for key, value in key_value_table("Statistics", rest).rows)
    return fact_table("Statistics", rows, heads=("Measure", "Value"))


def settings_table(run: RunFacts) -> Table:
    """Every setting of the plan, with the seed."""
    seed = {} if run.seed is None or "seed" in dotted(run.plan) else {"seed": run.seed}
    return key_value_table("Every setting", {**run.plan, **seed})


def _case(score: CaseScore) -> tuple[str, str]:
    return score.case_id, dice_text(score.mean_dice)


def _hd95(score: CaseScore) -> str:
    return mm_text(mean_hd95_mm([score]))


def _worst_class(score: CaseScore) -> tuple[str, str]:
    present = {name: dice for name, dice in score.dice.items() if dice is not None}
    name = min(present, key=lambda name: present[name], default="")
    return name, dice_text(present.get(name))


def _is_spread(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == set(_SPREAD)


@dataclass(frozen=True, kw_only=True)
class ChoiceGroup:
    """Choices whose change means the same.

    Attributes:
        title: what another value would change.
        hint: what that means.
        choices: in the order of the plan, at least one.
    """

    title: str
    hint: str
    choices: tuple[Choice, ...]


def choice_groups(choices: Sequence[Choice]) -> list[ChoiceGroup]:
    """Those that change the results first, those that change nothing but speed and memory last; no empty group."""
    results = tuple(choice for choice in choices if choice.changes_results)
    roundings = tuple(choice for choice in choices if choice.changes_roundings and not choice.changes_results)
    safe = tuple(choice for choice in choices if not choice.changes_results and not choice.changes_roundings)
    groups = [
        ChoiceGroup(title="Changes the results", hint="another value trains or predicts differently", choices=results),
        ChoiceGroup(
            title="Changes only rounding",
            hint="the same sums in another order, as on another machine; chosen for speed",
            choices=roundings,
        ),
        ChoiceGroup(title="Changes only speed and memory", hint="results stay the same", choices=safe),
    ]
    return [group for group in groups if group.choices]
