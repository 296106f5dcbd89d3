"""The main job measured from outside, as a user runs it: train, predict, compare the predictions with the labels.

    python benchmarks/main_job.py hippocampus --time-budget 5m

Writes `benchmarks/results/main_job_<scenario>_<budget>.json` with the command, the machine and every figure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.data.decode import read_case
from voxelocity.data.source import open_cases
from voxelocity.infer import load_model
from voxelocity.metrics import case_score
from voxelocity.observe import environment

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A data set to train on. `dataset` is relative to the folder of real data."""

    name: str
    dataset: str
    fold: str
    extra: tuple[str, ...] = ()


SCENARIOS = {
    # MSD Task04: 208 small MR crops, 2 structures; nnU-Net publishes a Dice of 0.893 (1000 epochs on a GPU).
    "hippocampus": Scenario(name="hippocampus", dataset="hippocampus", fold="0"),
    # 20 CT of 128^3 with 7 organs at risk.
    "openkbp": Scenario(name="openkbp", dataset="openkbp_headneck_ct", fold="0"),
}


def measure(scenario: Scenario, budget: str, work: Path, seed: int) -> dict[str, Any]:
    """Trains and predicts in fresh processes; returns the record."""
    data = Path(os.environ.get("VOXELOCITY_DATA", ROOT.parent / "shared" / "data"))
    run, out = work / "run", work / "predictions"
    train = ["train", str(data / scenario.dataset), "--fold", scenario.fold, "--time-budget", budget, "-o", str(run)]
    train += ["--seed", str(seed), *scenario.extra]
    seconds = _call(train)
    cases = open_cases(data / scenario.dataset)
    refs = [ref for ref in cases if str(ref.fold) == scenario.fold or scenario.fold == "all"]
    predict_s = _call(["predict", str(run), *(str(image) for ref in refs for image in ref.images), "-o", str(out)])
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    finished = next(event for event in events if event["event"] == "run_finished")
    return {
        "scenario": scenario.name,
        "command": "voxelocity " + " ".join(train).replace(str(data), "$VOXELOCITY_DATA").replace(str(work), "$WORK"),
        "date": time.strftime("%Y-%m-%d"),
        "environment": environment(),
        "time_budget": budget,
        "seed": seed,
        "wall_s": seconds,
        "predict_s": predict_s,
        "steps": finished["step"],
        "images_per_s": finished["images_per_s"],
        "wait_share": finished["wait_share"],
        "mean_dice": finished["mean_dice"],
        **_against_labels(run, out, refs),
    }


def _against_labels(run: Path, out: Path, refs: list[Any]) -> dict[str, Any]:
    """Dice of the written predictions, and how far it lies from the run's own table at the most."""
    _, spec = load_model(run)
    table = {case["case_id"]: case for case in json.loads((run / "scores.json").read_text())["cases"]}
    dice, largest_gap = [], 0.0
    for ref in refs:
        scan = read_case(ref, label_values=spec.label_values)
        written = read_case(
            type(ref)(case_id=ref.case_id, images=(out / ref.images[0].name,), label=out / ref.images[0].name),
            label_values=spec.label_values,
        )
        assert written.grid.is_close(scan.grid), ref.case_id
        assert written.label is not None
        assert scan.label is not None
        score = case_score(
            ref.case_id,
            written.label,
            scan.label,
            class_names=spec.class_names,
            spacing_mm=scan.grid.spacing_mm,
            surface=False,
        )
        dice.append(score.mean_dice)
        gaps = [abs(value - table[ref.case_id]["dice"][name]) for name, value in score.dice.items()]
        largest_gap = max(largest_gap, *gaps)
    return {"predicted_dice": float(np.mean(dice)), "largest_gap_to_table": largest_gap, "num_cases": len(refs)}


def _call(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "voxelocity", *arguments], check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("scenario", choices=sorted(SCENARIOS))
    parser.add_argument("--time-budget", default="5m")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        record = measure(SCENARIOS[options.scenario], options.time_budget, Path(work), options.seed)
    RESULTS.mkdir(exist_ok=True)
    suffix = "" if options.seed == 0 else f"_seed{options.seed}"
    path = RESULTS / f"main_job_{options.scenario}_{options.time_budget}{suffix}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({key: record[key] for key in ("wall_s", "mean_dice", "predicted_dice", "largest_gap_to_table")}))


if __name__ == "__main__":
    main()
