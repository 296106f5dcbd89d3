"""Auto3DSeg's templates before and after our search: loss and Dice over the seconds of whole trainings.

Before, a step takes one patch and a validation one window at once, where the guide on GPU optimization begins; after,
what our search chose and wrote. Both see as many patches of each case, in turns. Without a GPU, a CPU stands in for one
(auto3dseg_on_cpu.py), and the networks are small.

python benchmarks/auto3dseg_curves.py                    # segresnet and dints
python benchmarks/auto3dseg_curves.py --only segresnet
python benchmarks/auto3dseg_curves.py --quick --out DIR  # one short round: the figures mean nothing
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from auto3dseg import (
    LIMIT_BYTES,
    NUM_CASES,
    QUICK,
    ROUNDS,
    has_templates,
    make_work,
    moved,
    our_search,
    train_epochs,
)
from harness import alternate, measure_each
from voxelocity.report import LabeledRun, comparison_document, median_run, seconds_to_reach, with_command
from voxelocity_observe.document.blocks import Chart, Document, LegendEntry, Section
from voxelocity_observe.document.charts import Series, time_chart
from voxelocity_observe.document.html import write_page

# After 40 patches of each case, a segresnet has hardly learned; dints learns sooner, and its steps are slower.
PATCHES_OF_A_CASE = {"segresnet": 4 if QUICK else 160, "dints": 4 if QUICK else 64}
NUM_VALIDATIONS = 2 if QUICK else 10
LABELS = {"before": "one by one", "after": "ours"}
_COLORS = {"before": "baseline", "after": "accent"}
# Both sides, as `after` is searched in a copy; the template ends a training whose Dice is low after a quarter of it.
_ONE_BY_ONE: Mapping[str, Mapping[str, Any]] = {
    "segresnet": {
        "auto_scale_allowed": False,
        "batch_size": 1,
        "num_crops_per_image": 1,
        "num_steps_per_image": 1,
        "stop_on_lowacc": False,
    },
    "dints": {"auto_scale_allowed": False, "num_patches_per_iter": 1, "num_crops_per_image": 1, "num_sw_batch_size": 1},
}


def _parameters(work: Path, name: str) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The file of an algorithm's parameters, all of them, and those of the training among them."""
    file = work / f"{name}_0" / "configs" / "hyper_parameters.yaml"
    values = yaml.safe_load(file.read_text())
    return file, values, values.get("training", values)


def train(work: Path, name: str) -> dict[str, Any]:
    """A training that sees `PATCHES_OF_A_CASE` of each case."""
    *_, inner = _parameters(work, name)
    crops, all_patches = inner["num_crops_per_image"], PATCHES_OF_A_CASE[name]
    epochs, of_a_validation = (
        max(1, round(patches / crops)) for patches in (all_patches, all_patches / NUM_VALIDATIONS)
    )
    return train_epochs(work, name, epochs, of_a_validation)


def measure(name: str) -> dict[str, Any]:
    """The search, and the trainings before and after it."""
    with tempfile.TemporaryDirectory(prefix="auto3dseg-") as folder:
        root = Path(folder)
        before = make_work(name, root, is_small=QUICK or not torch.cuda.is_available())
        file, values, inner = _parameters(before, name)
        inner |= _ONE_BY_ONE[name]
        file.write_text(yaml.safe_dump(values, sort_keys=False))
        after = moved(before, root / "after")
        search = our_search(after, name)
        works = {"before": before, "after": after}
        runs = alternate({side: partial(train, work, name) for side, work in works.items()}, ROUNDS)
        failed = [run["reason"] for side in runs.values() for run in side if run["kind"] != "finished"]
        if failed:
            sys.exit(f"auto3dseg_curves: a training of {name} failed: {failed[0]}")
        return {"search": search, "target_dice": target_of(runs), **{side: {"runs": runs[side]} for side in works}}


def target_of(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> float:
    """The highest Dice that all trainings reached, rounded down to a hundredth."""
    bests = [max((dice for *_, dice in run["curves"]["dice"]), default=0.0) for side in runs.values() for run in side]
    return math.floor(100.0 * min(bests) + 1e-6) / 100.0


def page(name: str, found: Mapping[str, Any], record: Mapping[str, Any]) -> Document:
    """Both sides next to each other: figures are medians over the rounds, curves those of the first."""
    curves = {side: found[side]["runs"][0]["curves"]["loss"] for side in LABELS}
    lines = [
        Series(points=[(seconds, loss) for seconds, _, loss in points], color=_COLORS[side])
        for side, points in curves.items()
    ]
    chart = Chart(
        title="Training loss",
        svg=time_chart("loss", lines, y_label="loss"),
        alt="Line chart: training loss over time of both sides.",
        legend=[LegendEntry(name=LABELS[side], color=f"var(--{color})") for side, color in _COLORS.items()],
    )
    target = found["target_dice"] or None
    document = comparison_document(
        [median_run([_labeled(side, run, record, target) for run in found[side]["runs"]]) for side in LABELS],
        f"Auto3DSeg's {name} before and after the search",
        target_dice=target,
        target_reason="" if target is None else "the highest that all trainings reached, rounded down",
        sections=[Section(title="Loss", blocks=[chart])],
        summary=f"{len(found['before']['runs'])} rounds; {PATCHES_OF_A_CASE[name]} patches of each case on both sides.",
    )
    return with_command(document, record["command"])


def _labeled(side: str, run: Mapping[str, Any], record: Mapping[str, Any], target: float | None) -> LabeledRun:
    dice = tuple((seconds, value) for seconds, _, value in run["curves"]["dice"])
    return LabeledRun(
        label=LABELS[side],
        seconds_to_target=None if target is None else seconds_to_reach(dice, target),
        images_per_s=run["patches"] / run["seconds"],
        wall_s=run["seconds"],
        dice_history=dice,
        peak_host_bytes=run["peak_bytes"],
        machine=record["environment"],
    )


def main() -> None:
    if QUICK:
        sys.argv.remove("--quick")
    has_templates()
    facts = {"limit_bytes": LIMIT_BYTES, "cases": NUM_CASES, "patches_of_a_case": PATCHES_OF_A_CASE,
             "networks": "the templates' own" if torch.cuda.is_available() and not QUICK else "small"}  # fmt: skip
    written = measure_each("auto3dseg_curves", __doc__, {name: partial(measure, name) for name in _ONE_BY_ONE}, facts)
    record = json.loads(written.read_text())
    for name, found in record["found"].items():
        print(write_page(page(name, found, record), written.with_name(f"auto3dseg_curves_{name}.html")))


if __name__ == "__main__":
    main()
