"""The page of the story: what happened, in order, and what it does not show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voxelocity.report import LabeledRun, comparison_values, dice_chart, machines_table, slices_block
from voxelocity.report.labeled import seconds_to_reach
from voxelocity_lab.recipes.demo.records import CHANGED, IMPORT_AFTER, IMPORT_BEFORE, Story
from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import count_text, dice_text, duration_text, joined
from voxelocity_observe.diagnose.render.page import finding_card, split_bar
from voxelocity_observe.document.blocks import (
    Block,
    Card,
    Code,
    Document,
    Folded,
    Pair,
    Section,
    Table,
    Text,
    below_heading,
)

_FEWEST_VALIDATIONS = 2
_BUSY_SHARE = 0.5
_ABOUT_SIDES = (
    "All sides train the same network on the same cases with the same loss, patches, batch and augmentation, and all "
    "pay for the same validations: every second epoch, on all held-out cases. Seconds count from the start of each "
    "process: imports, caching and compiling included. MONAI's scripts train with AdamW; voxelocity train has its "
    "own optimizer (Muon), augmentation that ramps up over the first epochs, and a running average of its weights. It "
    "has twice the time of a script, which also covers its final validation on the scans' own grids and its report; "
    "the scripts have neither. So compare when each side passed a Dice, not the last ones."
)
_YOUR_DATA = """\
voxelocity train YOUR_DATA -o runs/first --time-budget 5m
voxelocity predict runs/first scan.nii.gz -o predictions"""
_YOUR_SCRIPT = "voxelocity diagnose -- python your_script.py"


def story_document(story: Story) -> Document:
    """The page."""
    plain, changed, fast, ours = story.sides
    return Document(
        kind="demo",
        title="A plain MONAI script made faster, in two minutes",
        verdict=story_verdict(story),
        summary="Everything on this page was measured just now, on this machine, on phantoms made for it.",
        notices=_notices(story),
        cards=[_card(side, plain) for side in (plain, changed, fast, ours)],
        sections=[
            Section(title="In one picture", blocks=_curves(story)),
            Section(title="A typical MONAI script", blocks=_plain(story)),
            Section(title="Its bottleneck", blocks=_diagnosis(story)),
            Section(title="One import line changed", blocks=_changed(story)),
            Section(title="The same network with one command", blocks=_ours(story)),
            Section(title="Predictions as they improved", blocks=_film(story)),
            Section(
                title="Your own data",
                blocks=[Code(text=_YOUR_DATA), Text(text="Or diagnose your own script:"), Code(text=_YOUR_SCRIPT)],
            ),
            Section(title="How long each part took", blocks=_spent(story), is_detail=True),
            Section(title="Machine", blocks=below_heading(machines_table(story.sides)), is_detail=True),
        ],
        footer=f"All figures are in `demo.json`; the output of each part is in `{story.out}/*.log`.",
        values=_values(story),
    )


def story_verdict(story: Story) -> str:
    """What came out, in two sentences at most."""
    plain, changed, _, ours = story.sides
    sentences = []
    if plain.seconds_per_epoch and changed.seconds_per_epoch:
        sentences.append(
            f"With one import line changed, an epoch of the script takes {duration_text(changed.seconds_per_epoch)} "
            f"instead of {duration_text(plain.seconds_per_epoch)}."
        )
    sentences.append(_reached_text(plain, ours))
    return joined(sentences, " ") or "This machine was too slow or too busy to compare the sides in this time."


def _reached_text(plain: LabeledRun, ours: LabeledRun) -> str:
    """How long ours needed for the Dice that the plain script ended with."""
    if not plain.dice_history or not ours.dice_history:
        return ""
    plain_s, plain_dice = plain.dice_history[-1]
    ours_s, ours_dice = ours.dice_history[-1]
    reached = f"reached {dice_text(ours_dice)} in {duration_text(ours_s)}"
    begun = f"After {duration_text(plain_s)} the plain script was at Dice {dice_text(plain_dice)}"
    passed_s = seconds_to_reach(ours.dice_history, plain_dice)
    if passed_s is None:
        return f"{begun}; {ours.label} {reached}."
    return f"{begun}; {ours.label} passed that after {duration_text(passed_s)} and {reached}."


def _notices(story: Story) -> list[str]:
    settings = story.settings
    notices = [
        "n = 1: one training of each side, on one machine, on phantoms. The time to a Dice varies by a third and "
        "more between seeds. For a benchmark with intervals: make demo SEEDS=5."
    ]
    few = [side.label for side in story.sides if len(side.dice_history) < _FEWEST_VALIDATIONS]
    if few:
        notices.append(
            f"Too slow for this page: in {duration_text(settings.side_s)} there was at most one validation of "
            f"{joined(few)}. On a slow machine give each side longer: voxelocity demo --seconds "
            f"{4 * settings.side_s:g}."
        )
    if story.load is not None and story.load > _BUSY_SHARE * story.num_cpus:
        notices.append(
            f"The machine was busy before the demo began (load average {story.load:.1f} on "
            f"{count_text(story.num_cpus, 'core')}), so all times are too long, and not by the same factor."
        )
    return notices


def _card(side: LabeledRun, plain: LabeledRun) -> Card:
    if not side.dice_history:
        return Card(name=side.label, value="no Dice yet", note=f"in {duration_text(side.wall_s)}")
    seconds, dice = side.dice_history[-1]
    epoch = f"{duration_text(side.seconds_per_epoch)} an epoch" if side.seconds_per_epoch else ""
    return Card(
        name=side.label, value=f"{dice_text(dice)}", note=joined([f"Dice after {duration_text(seconds)}", epoch], "; ")
    )


def _curves(story: Story) -> list[Block]:
    chart = dice_chart(story.sides, story.settings.target_dice)
    return [Pair(blocks=[*chart, _side_table(story)]), Text(text=_ABOUT_SIDES, is_hint=True)]


def _plain(story: Story) -> list[Block]:
    text = Path(story.out / "plain.py").read_text()
    return [
        Text(
            text="A training script as in MONAI's tutorials: a `Dataset`, a `DataLoader` with two worker processes, a "
            "`UNet`, `DiceCELoss`. It does not import Voxelocity."
        ),
        Code(text=story.commands[0]),
        Text(text=_progress(story.sides[0])),
        Folded(title=f"The whole script, {len(text.splitlines())} lines", blocks=[Code(text=text)]),
    ]


def _progress(side: LabeledRun) -> str:
    if not side.dice_history:
        return f"In {duration_text(side.wall_s)} it did not reach a validation."
    steps = joined((f"{dice_text(dice)} after {duration_text(seconds)}" for seconds, dice in _some(side.dice_history)))
    epoch = f" An epoch takes {duration_text(side.seconds_per_epoch)}." if side.seconds_per_epoch else ""
    return f"Dice {steps}.{epoch}"


def _some(history: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    return history if len(history) <= 4 else [history[0], history[len(history) // 2], history[-1]]


def _diagnosis(story: Story) -> list[Block]:
    diagnosis = story.diagnosis
    cards = [finding_card(cause, number, diagnosis.facts) for number, cause in enumerate(diagnosis.causes[:1], start=1)]
    return [
        Text(text=diagnosis.verdict),
        *([split_bar(diagnosis.split)] if diagnosis.split else []),
        *cards,
        Text(text="All findings are in `diagnosis/diagnosis.html`.", is_hint=True),
    ]


def _changed(story: Story) -> list[Block]:
    plain, changed = story.sides[:2]
    blocks: list[Block] = [
        Code(text=f"- {IMPORT_BEFORE}\n+ {IMPORT_AFTER}"),
        Text(
            text="Scans are prepared once and kept, random transforms are applied together in few passes over the "
            "voxels, with MONAI's own random numbers. Nothing else in the script changes, and its arguments keep their "
            "meaning."
        ),
        Text(text=_progress(changed)),
    ]
    if plain.seconds_per_epoch and changed.seconds_per_epoch:
        times = plain.seconds_per_epoch / changed.seconds_per_epoch
        pace = f"{times:.1f} times faster" if times >= 1.0 else f"{1.0 / times:.1f} times slower"
        blocks.append(Text(text=f"An epoch is {pace}; before the first one, all scans are prepared."))
    return blocks


def _ours(story: Story) -> list[Block]:
    return [
        Code(text=story.commands[-1]),
        Text(text=_progress(story.sides[-1])),
        Text(text="The report of this training, with every choice and its reason, is `training.html`.", is_hint=True),
    ]


def _side_table(story: Story) -> Table:
    target = story.settings.target_dice
    history = story.sides[0].dice_history
    plain_dice = history[-1][1] if history else None
    heads = ["Side", "Last Dice", "at", *([f"Dice {plain_dice:.3f} in"] if plain_dice else []), f"Dice {target:g} in"]
    rows = []
    for side in story.sides:
        seconds, dice = side.dice_history[-1] if side.dice_history else (None, None)
        passed = [_reached(side, plain_dice)] if plain_dice else []
        rows.append([side.label, dice_text(dice), duration_text(seconds), *passed, _reached(side, target)])
    return Table(caption="Dice and time of each side", heads=heads, rows=rows)


def _reached(side: LabeledRun, dice: float) -> str:
    seconds = seconds_to_reach(side.dice_history, dice)
    return (
        f"not in {duration_text(side.dice_history[-1][0] if side.dice_history else side.wall_s)}"
        if seconds is None
        else duration_text(seconds)
    )


def _film(story: Story) -> list[Block]:
    film = story.film
    if not film.frames:
        return []
    return [
        Text(text=f"The held-out case {film.case_id}, predicted with the weights at that time."),
        slices_block(film.frames, dict(enumerate(film.class_names))),
    ]


def _spent(story: Story) -> list[Block]:
    rows = [(part.name, duration_text(part.wall_s), duration_text(part.cpu_s)) for part in story.spent]
    total = [sum(part.wall_s for part in story.spent), sum(part.cpu_s for part in story.spent)]
    table = Table(
        caption="Seconds of each part",
        heads=("Part", "Wall time", "CPU time"),
        rows=[*rows, ("sum", *map(duration_text, total))],
        has_total=True,
        hides_caption=True,
    )
    hint = (
        f"Parts run one after another, each on up to {count_text(story.num_cpus, 'core')}: CPU time counts all of "
        "them, in all processes. Each script ends after a fixed time or at the target, so a slower machine shows lower "
        "Dice, not a longer demo; only phantoms and pictures take longer there."
    )
    return [table, Text(text=hint, is_hint=True)]


def _values(story: Story) -> dict[str, Any]:
    spent = {part.name: {"wall_s": part.wall_s, "cpu_s": part.cpu_s} for part in story.spent}
    return {
        **comparison_values(story.sides, target_dice=story.settings.target_dice),
        "spent": spent,
        "film_dice": list(story.film.dice),
        "causes": [cause.code for cause in story.diagnosis.causes],
        "load": story.load,
        "commands": plain_data(
            dict(zip((side.label for side in story.sides), story.commands, strict=True)), where="demo"
        ),
        "one_line": {CHANGED: [IMPORT_BEFORE, IMPORT_AFTER]},
    }
