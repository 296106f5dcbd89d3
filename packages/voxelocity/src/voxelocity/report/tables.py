"""The tables of a run's page: facts in, text in rows out; and the choices of a plan, grouped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from voxelocity.core.records import CaseScore, Choice
from voxelocity.report.columns import (
    CLASS_COLUMNS,
    Column,
    case_columns,
    classes_of,
    mean_hd95_mm,
    page_table,
    worst_first,
)
from voxelocity.report.records import RankRecord, RunFacts, ValidationRecord
from voxelocity.report.summary import without_surface_text
from voxelocity_observe.core.quantities import (
    count_text,
    dice_text,
    dotted,
    duration_text,
    joined,
    mm_text,
    share_text,
    value_text,
)
from voxelocity_observe.core.time_parts import part_label
from voxelocity_observe.document.blocks import Block, Card, Folded, Table, fact_table
from voxelocity_observe.document.settings import in_words, key_value_table

# More columns than this do not fit on a laptop's screen next to the rest.
_MAX_CLASS_COLUMNS = 4
_MAX_VALIDATIONS = 200
_NUM_WORST_CASES = 10
_VALIDATION_COLUMNS: tuple[Column[ValidationRecord], ...] = (
    Column(head="Step", value=lambda record: record.step, text="{:,}".format),
    Column(head="At", value=lambda record: record.time_s, text=duration_text),
    Column(head="Mean Dice", value=lambda record: record.mean_dice, text=dice_text),
    Column(head="Took", value=lambda record: record.seconds, text=duration_text),
)
_SPREAD = ("low", "median", "high")

HOW_TO_CHANGE = (
    "Change a choice with --set KEY=VALUE, or in a file that --config names; --set KEY=auto restores the rule. For "
    "seed and train.time_budget_s, use --seed and --time-budget."
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
    """Scores by class, with the numbers of cases that the means leave out."""
    return page_table("Scores by class", CLASS_COLUMNS, classes_of(scores))


def case_table(scores: Sequence[CaseScore], caption: str) -> Table:
    """One row per case in the order given; classes have their own columns where they are few."""
    return page_table(caption, case_columns(scores, most_classes=_MAX_CLASS_COLUMNS), scores)


def case_blocks(scores: Sequence[CaseScore], *, hides_caption: bool = False) -> list[Block]:
    """The worst cases as a table, and the others folded."""
    ordered = worst_first(scores)
    worst, rest = ordered[:_NUM_WORST_CASES], ordered[_NUM_WORST_CASES:]
    table = case_table(worst, f"The {len(worst)} worst cases" if rest else "All cases, worst first")
    blocks: list[Block] = [table.without_caption() if hides_caption else table]
    if rest:
        others = case_table(rest, "The other cases, worst first").without_caption()
        blocks.append(Folded(title=f"The other {count_text(len(rest), 'case')}", blocks=[others]))
    return blocks


def surface_card(scores: Sequence[CaseScore]) -> Card:
    """The mean surface distance, with what it leaves out."""
    hd95_mm = mean_hd95_mm(scores)
    return Card(
        name="Surface distance",
        value=mm_text(hd95_mm) + (" mm" if hd95_mm is not None else ""),
        note=joined(("HD95, mean over cases and classes", without_surface_text(scores)), "; "),
    )


def validation_table(run: RunFacts) -> Table:
    """The validations on the way: all, or if there are many, some chosen evenly, with the best and the last."""
    count, best = len(run.validations), run.best_validation
    few = min(count, _MAX_VALIDATIONS)
    chosen = {count - 1, *(i * count // few for i in range(few))}
    shown = [record for i, record in enumerate(run.validations) if i in chosen or record is best]
    part = f", {len(shown):,} of {count:,} (all of them in metrics.csv)" if len(shown) < count else ""
    return page_table(f"Validations during training{part}", _VALIDATION_COLUMNS, shown)


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
        ("Merged classes", regions_text(data.merged)),
        ("Layout", data.layout),
        ("Folder", data.path),
    ]
    return fact_table("Cases and classes", (row for row in rows if row[1]))


def regions_text(regions: Mapping[str, Sequence[int | str]]) -> str:
    """Overlapping classes with the label values of each, or merged ones with the names of each; "" without any."""
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


def _is_spread(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == set(_SPREAD)


class ChoiceGroup(NamedTuple):
    """Choices of which another value would change the same, and what that means; at least one."""

    title: str
    hint: str
    choices: Sequence[Choice]


def choice_groups(choices: Sequence[Choice]) -> list[ChoiceGroup]:
    """Those that change the results first, those that change nothing but speed and memory last; no empty group."""
    groups = [
        ChoiceGroup(
            "Changes the results",
            "other values train or predict differently",
            [choice for choice in choices if choice.changes_results],
        ),
        ChoiceGroup(
            "Changes only rounding",
            "the same sums in another order, like on another machine; chosen for speed",
            [choice for choice in choices if choice.changes_roundings and not choice.changes_results],
        ),
        ChoiceGroup(
            "Changes only speed and memory",
            "results stay the same",
            [choice for choice in choices if not choice.changes_results and not choice.changes_roundings],
        ),
    ]
    return [group for group in groups if group.choices]


def choice_tables(choices: Sequence[Choice]) -> list[Table]:
    """The choices with their reasons, a table for each group."""
    return [
        Table(
            caption=f"{group.title}: {group.hint}",
            heads=("Setting", "Value", "Why"),
            rows=[(choice.key, value_text(choice.value, choice.key), choice.reason) for choice in group.choices],
            text_columns=frozenset({1, 2}),
        )
        for group in choice_groups(choices)
    ]
