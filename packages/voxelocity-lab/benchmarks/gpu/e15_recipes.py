"""The recipes that had not run on a GPU: streamlines with and without torch.compile, and tiles of tissue.

In the first record the streamlines got the last 30 s of a call: less than it takes to compile the network for training
and once more for sampling, which the recipe does on a GPU. Here each way has its time and says how it is spent.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpu.commands import run_voxelocity
from gpu.experiment import Experiment, Row, Setting
from harness import real_data, sets_of
from voxelocity_observe.core.events import events_path, read_events

_TINY_TRACTS: Mapping[str, Any] = {
    "network.width": 16,
    "network.depth": 1,
    "sample.num_steps": 2,
    "sample.num_per_bundle": 1,
}


def fit_row(folder: Path) -> Row:
    """Steps, speed and waiting of a recipe's training, by its events; without the first window, which compiles."""
    events = list(read_events(events_path(folder)))
    windows = [event for event in events if event["event"] == "steps"]
    if not windows:
        return {"steps": 0}
    later = windows[1:] or windows
    seconds = max(1e-9, sum(event["seconds"] for event in later))
    num_steps = sum(event["num_steps"] for event in later)
    return {
        "steps": windows[-1]["step"],
        "loss": windows[-1]["loss"],
        "until_first_window_s": windows[0]["time_s"],
        "items_per_s": sum(event["num_images"] for event in later) / seconds,
        "step_ms": 1e3 * seconds / max(1, num_steps),
        "wait_share": sum(event["wait_s"] for event in later) / seconds,
        "first_step_s": windows[0]["seconds"] / max(1, windows[0]["num_steps"]) if windows[1:] else math.nan,
    }


def run_recipe(
    setting: Setting, recipe: str, way: str, data: Path, budget_s: float, keys: Mapping[str, Any], *actions: str
) -> None:
    """Training, prediction and other actions, a row each."""
    out, end_s = setting.work / f"{recipe} {way}".replace(" ", "_"), time.monotonic() + budget_s + 90.0
    budget = f"{5 if setting.is_tiny else budget_s:g}s"
    with setting.guard("recipes", what=f"{recipe}, {way}"):
        for action, more in (
            ("train", ["--time-budget", budget, *sets_of(keys)]), ("predict", []), *((other, []) for other in actions),
        ):  # fmt: skip
            words = ["recipe", recipe, action, data, "-o", out, *more]
            ended = run_voxelocity(setting, words, end_s - time.monotonic())
            run_folder = out if events_path(out).exists() else next((path for path in out.glob("fold_*")), out)
            row = _READERS[action](run_folder if action == "train" else out)
            what = f"{recipe}, {way}, {action}"
            setting.report("recipes", {"what": what, "seconds": ended.seconds, **row, **ended.device})


def scores_row(out: Path) -> Row:
    """What is said of the predictions, in plain numbers and texts."""
    path = out / "scores.json"
    if not path.exists():
        return {}
    scores = json.loads(path.read_text())
    return {key: value for key, value in scores.items() if isinstance(value, int | float | str)}


def guide_row(out: Path) -> Row:
    """The rows of TractoDiff's guide, ours and the plain loop's."""
    path = out / "bench_tractography.json"
    if not path.exists():
        return {}
    details = json.loads(path.read_text())["details"]
    found = {key: value for key, value in details.items() if isinstance(value, dict) and key != "f1"}
    return {f"{key}, {way}": figure for key, value in found.items() for way, figure in value.items()}


_READERS: Mapping[str, Callable[[Path], Row]] = {"train": fit_row, "predict": scores_row, "benchmark": guide_row}


def run(setting: Setting) -> None:
    """Streamlines in both ways, then tiles; `--set E15.recipes=pathology` for one of them."""
    asked = setting.options.get("recipes", "tractography,pathology").split(",")
    data = real_data()
    tracts = data / "tracts_hcp1065" / "hcp1065_32points.npz"
    if "tractography" in asked and not setting.is_tiny:
        for way in ("none", "default"):
            keys = {"split.held_out": 0.5, "precision.compile": way}
            actions = ["benchmark"] if way == "none" else []
            run_recipe(
                setting, "tractography", f"compile {way}", tracts, 30.0 if way == "none" else 60.0, keys, *actions
            )
    elif "tractography" in asked:
        run_recipe(setting, "tractography", "tiny", tracts, 5.0, {**_TINY_TRACTS, "split.held_out": 0.5})
    if "pathology" in asked and not setting.is_tiny:
        run_recipe(setting, "pathology", "fold 0", data / "camelyon_tiles", 35.0, {"folds": [0]})


EXPERIMENT = Experiment(
    id="E15",
    question="Do the tractography and pathology recipes train and predict on a GPU, how fast, how busy, how large?",
    seconds=290.0,
    run=run,
)
