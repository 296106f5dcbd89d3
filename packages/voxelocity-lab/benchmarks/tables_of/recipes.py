"""Tables of the recipes' pages."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tables_of.comparisons import short_tables
from tables_of.results import load, markdown_table, of_records, source_line, times_to_target
from voxelocity_lab.bench.race.rounds import target_factor_text
from voxelocity_lab.bench.race.sides import LABELS
from voxelocity_lab.recipes.factors import factors_table, split_factors
from voxelocity_lab.recipes.tractography.judge import MEASURES, Measure, interval_of
from voxelocity_lab.recipes.tractography.page import COLUMNS, COPIED, F1, GENERATED, LEAST_REAL, NEAREST
from voxelocity_observe.core.quantities import bytes_text, duration_text, share_text

_OURS = "Voxelocity"


@of_records("recipe_brain.json")
def brain_lines(record: dict[str, Any]) -> list[str]:
    """Dice of each class by both rules, on one rank and on two, and how far the two trainings differ."""
    alone, two = (record["classes"][size] for size in ("1", "2"))
    rows = [
        (
            name,
            *(_dice(side[name]["dice"]) for side in (alone, two)),
            *(_dice(side[name]["dice_of_challenge"]) for side in (alone, two)),
            alone[name]["num_without"],
        )
        for name in alone
    ]
    heads = (
        "class", "Dice, one rank", "two ranks", "Dice by BraTS' rule, one rank", "two ranks", "cases with neither"
    )  # fmt: skip
    gaps = record["largest_difference"]
    dice_gap = gaps["of a case's Dice"]
    steps, last = record["keys"]["train.steps"], list(record["losses"]["1"].values())[-1]
    return [
        *markdown_table(heads, rows),
        "",
        f"{record['num_cases']} held-out phantoms after {steps} steps; the same seed. Largest differences between one "
        f"rank and two: {gaps['of a loss']:.1e} of the mean loss up to a step (it ends at {last:.3f}), "
        f"{gaps['of a weight']:.1e} of a weight (the largest is {record['largest_weight']:.2f}), "
        f"{dice_gap:.1e} of the Dice of a case.",
        "",
        source_line(record),
    ]


@of_records("recipe_brain_race.json")
def brain_race_lines(record: dict[str, Any]) -> list[str]:
    """The race on phantoms of brain tumors."""
    return _race(record)


@of_records("recipe_brain_memory.json")
def brain_memory_lines(record: dict[str, Any]) -> list[str]:
    """Peak memory on cases of BraTS' size."""
    rows = [
        (f"training, {label}", bytes_text(found["peak_host_bytes"])) for label, found in record["trainings"].items()
    ]
    rows.append(("prediction of a case, Voxelocity", bytes_text(max(record["predicted_peak_bytes"]))))
    size, num = " x ".join(map(str, record["shape"])), record["num_cases"]
    return [
        *markdown_table(("", "peak memory"), rows),
        "",
        f"{num['training']} cases of {size} voxels in four contrasts, and validation on {num['held out']}; one "
        "training of each side.",
        "",
        source_line(record),
    ]


@of_records("recipe_spleen.json")
def spleen_lines(record: dict[str, Any]) -> list[str]:
    """The race on spleens, one change at a time."""
    if LABELS["float32"] not in record.get("trainings", ()):
        # Records of earlier versions.
        return _race(record)
    changes = split_factors(record)
    table = factors_table(changes, target_dice=record["target_dice"])
    rows = []
    for change in changes:
        known = [value for value in change.target_s if value is not None]
        spans = (_span(values) for values in (change.epoch_s, known))
        dice = f"{min(change.best_dice):.2f} to {max(change.best_dice):.2f}"
        rows.append((change.added, f"{statistics.median(change.epochs):.0f}", *spans, dice))
    limit = duration_text(record["limit_s"])
    return [
        *markdown_table(table.heads, table.rows),
        "",
        f"n = {len(changes[0].epoch_s)} rounds, alternating: medians; factors are medians of the ratios within rounds. "
        f"A training that had not reached the Dice after {limit} ended then. Least and most of the rounds:",
        "",
        *markdown_table(("", "epochs trained", "an epoch", "to the Dice", "best Dice during training"), rows),
        "",
        source_line(record),
    ]


def _span(seconds: Sequence[float]) -> str:
    return f"{duration_text(min(seconds))} to {duration_text(max(seconds))}" if seconds else "not reached"


@of_records("recipe_tractography.json")
def tract_lines(record: dict[str, Any]) -> list[str]:
    """What generated streamlines score next to what needs no training, and the comparison with plain scripts."""
    scores = record["scores"]
    if "intervals" not in scores:
        # Records of earlier versions.
        return _example(record)
    means = {**scores["baselines"], GENERATED: scores["mean"]}

    def cell(column: str, measure: Measure) -> str:
        low, high = (measure.factor * value for value in scores["intervals"][column][measure.key])
        mean, digits = measure.factor * means[column][measure.key], measure.digits
        return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"

    rows = [(measure.name, *(cell(column, measure) for column in COLUMNS)) for measure in (*MEASURES, F1, NEAREST)]
    rows.append((COPIED.name, *(f"{100.0 * means[column]['copied']:.1f}" for column in COLUMNS)))
    mean, costs = scores["mean"], scores["costs"]
    lines = [
        *markdown_table(("", *COLUMNS.values()), rows),
        "",
        f"Means over {mean['num_bundles']:.0f} bundles with their 95 % intervals. Unseen real streamlines lie "
        f"{mean['nearest_real_mm']:.1f} mm from the nearest of the training, and {100.0 * mean['copied_real']:.1f} % "
        "of them within 1 mm. Trained streamlines are better by more than the interval of the difference than those "
        + "; than ".join(
            f"of *{name}* in {len(keys)} of {len(MEASURES)} measures ({_measures_text(keys)})"
            for name, keys in scores["better_than"].items()
        )
        + ".",
        "",
        f"{costs['training']['steps']:,} steps; peak memory "
        f"{bytes_text(costs['training']['peak_host_bytes'])} in training and "
        f"{bytes_text(costs['sampling']['peak_host_bytes'])} in prediction, judging included.",
    ]
    return [*lines, "", *_example(record), *_guide_rows(record)]


# The rows of TractoDiff's guide; what it leaves open there ("varies") is measured.
_GUIDE_ROWS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "epoch_s": ("time of an epoch", duration_text),
    "device_use": ("use of the device", share_text),
    "streamline_ms": ("time of a generated streamline, ms", lambda value: f"{value:.2g}"),
    "largest_batch": ("largest batch", lambda value: f"{value:,.0f}"),
}


def _guide_rows(record: dict[str, Any]) -> list[str]:
    # Records of earlier versions have none.
    details: dict[str, Any] = next((found for found in record["found"] if _GUIDE_ROWS.keys() <= found.keys()), {})
    if not details:
        return []
    ways = list(details["epoch_s"])
    rows = [
        (name, *("n/a" if details[key][way] is None else text(details[key][way]) for way in ways))
        for key, (name, text) in _GUIDE_ROWS.items()
    ]
    note = "The loop samples in 250 steps. On a CPU, the device is all cores, and the largest batch is not sought."
    return ["", *markdown_table(("", *ways), rows), "", note]


def _measures_text(keys: list[str]) -> str:
    names = {measure.key: measure.name.partition(",")[0] for measure in MEASURES}
    return ", ".join(names[key] for key in keys) or "none"


@of_records("recipe_tractography_image.json")
def tract_image_lines(record: dict[str, Any]) -> list[str]:
    """What changes where the network sees an image, bundle by bundle, from the record of the network without."""
    rows = []
    before_it = load("recipe_tractography.json")
    if not before_it:
        return []
    for measure in MEASURES:
        before, after = (
            [bundle[measure.key] for bundle in found["scores"]["bundles"].values() if bundle["num_real"] >= LEAST_REAL]
            for found in (before_it[0], record)
        )
        change = np.subtract(after, before)
        low, high = (measure.factor * value for value in interval_of(change))
        values = (np.mean(before), np.mean(after), change.mean())
        texts = (f"{measure.factor * float(value):.{measure.digits}f}" for value in values)
        rows.append((measure.name, *texts, f"{low:.{measure.digits}f} to {high:.{measure.digits}f}"))
    heads = ("", "without an image", "with", "change", "95 % interval")
    return [*markdown_table(heads, rows), "", source_line(record)]


@of_records("recipe_pathology.json")
def pathology_lines(record: dict[str, Any]) -> list[str]:
    """AUC by cross-validation."""
    return [*_aucs(record["scores"]), *_example(record)]


@of_records("recipe_slide.json")
def slide_lines(record: dict[str, Any]) -> list[str]:
    """AUC of a whole slide, each tile by a network that has not seen it, and the comparison with MONAI."""
    aucs = record["found"][0]["square_auc"]
    words = ", ".join(f"{name} {auc:.3f}" for name, auc in aucs.items())
    return [*_aucs(record["scores"]), *_example(record), "", f"AUC of the squares of the whole slide: {words}."]


def _aucs(scores: dict[str, Any]) -> list[str]:
    rows, intervals = [], scores.get("intervals", {})
    for name, key in (("patches", "patch_auc"), ("squares of heat maps", "square_auc")):
        each = [piece[key] for piece in scores["pieces"].values() if piece[key] is not None]
        interval = _interval(intervals.get("trained"), key)
        rows.append((name, f"{scores[key]:.3f}{interval}", f"{statistics.median(each):.3f}", f"{min(each):.3f}"))
        rows += [
            (f"{name}, by the {baseline}", f"{aucs[key]:.3f}{_interval(intervals.get(baseline), key)}", "", "")
            for baseline, aucs in scores.get("baselines", {}).items()
            if baseline != "chance"
        ]
    num = sum(piece["patch_auc"] is not None for piece in scores["pieces"].values())
    again = f"; in brackets: bootstrap 95 % intervals over the {scores['drawn_again']}" if intervals else ""
    lines = [*markdown_table(("AUC of", "all together", "median tile", "least"), rows), ""]
    lines += [f"Median and least of the {num} tiles with both classes{again}.", *_gains(scores), ""]
    return lines


def _interval(ends: dict[str, list[float]] | None, key: str) -> str:
    return f" ({ends[key][0]:.3f} to {ends[key][1]:.3f})" if ends and ends[key][0] is not None else ""


def _gains(scores: dict[str, Any]) -> list[str]:
    baselines = scores.get("baselines", {})
    found = [
        f"{scores['patch_auc'] - baselines[name]['patch_auc']:.3f}{_interval(ends, 'patch_auc')} over the {name}"
        for name, ends in scores.get("gains", {}).items()
    ]
    return [f"The gain of the networks for patches, from the same draws: {'; '.join(found)}."] if found else []


def _example(record: dict[str, Any]) -> list[str]:
    """How long it took, and what the recipe's benchmark found."""
    seconds = record["seconds"]
    lines = [
        f"Trained for {duration_text(seconds['train'])} with `--time-budget {record['budget']}`; predicted in "
        f"{duration_text(seconds['predict'])}. {source_line(record)}"
    ]
    for found in record["found"]:
        lines += ["", *short_tables(found["comparisons"]), "Factors are medians of the ratios within each round."]
    return lines


def _race(record: dict[str, Any]) -> list[str]:
    """When each side reached the target; a training that did not counts with its limit."""
    seconds = record["seconds_to_target"]
    rows = [
        (
            label,
            words,
            "" if label == _OURS else target_factor_text(seconds[_OURS], seconds[label], record["limit_s"]),
        )
        for label, words in times_to_target(record).items()
    ]
    heads = ("", f"to Dice {record['target_dice']:g}", "times ours")
    num = len(record["seeds"])
    return [
        *markdown_table(heads, rows),
        "",
        f"n = {num} rounds, alternating: medians with least and most; factors are medians of the ratios within rounds.",
        "",
        source_line(record),
    ]


def _dice(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4f}"
