"""The main job measured from outside, as a user runs it: train, predict, compare the predictions with the labels.

    python benchmarks/main_job.py hippocampus --time-budget 5m [--fold 1]

Writes `benchmarks/results/main_job_<scenario>_<budget>[_fold<n>].json` with the command, the machine and every figure.
"""

from __future__ import annotations

import csv
import json
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from harness import VOXELOCITY, head, parser_of, real_data, write_record
from voxelocity.data.source import open_cases
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.events import events_path, read_events


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A data set to train on: a folder of the real data, or pairs of image and label there that a CSV will list."""

    name: str
    dataset: str
    fold: str
    pairs: tuple[tuple[str, str], ...] = ()

    def open_in(self, data: Path, work: Path) -> Path:
        """What `voxelocity train` takes; a CSV is written into `work`."""
        if not self.pairs:
            return data / self.dataset
        rows = [f"{image.split('/')[0]},{data / self.dataset / image},{data / self.dataset / label}"
                for image, label in self.pairs]  # fmt: skip
        table = work / f"{self.name}.csv"
        table.write_text("\n".join(["case,image,label", *rows]) + "\n")
        return table


SCENARIOS = {
    # MSD Task04: 208 small MR crops, 2 structures; nnU-Net publishes a Dice of 0.893 (1000 epochs on a GPU).
    "hippocampus": Scenario(name="hippocampus", dataset="hippocampus", fold="0"),
    # 20 CT of 128^3 with 7 organs at risk.
    "openkbp": Scenario(name="openkbp", dataset="openkbp_headneck_ct", fold="0"),
    # Two spleen CTs with slices of 5 and 7.5 mm, one of them 512 x 512 and LAS: the second is held out.
    "spleen": Scenario(
        name="spleen",
        dataset="small_ct_mr_samples",
        fold="0",
        pairs=tuple(
            (f"{case}/image.nii.gz", f"{case}/label.nii.gz") for case in ("msd_spleen_2_crop", "msd_spleen_8_coarse")
        ),
    ),
    # One case each, so trained and judged on the same: odd axes (PIR, LPS) and up to 41 classes with values to 207.
    **{
        name: Scenario(
            name=name,
            dataset="small_ct_mr_samples",
            fold="all",
            pairs=((f"{name}/image.nii.gz", f"{name}/{label}.nii.gz"),),
        )
        for name, label in {
            "spine_ct": "label_subreg",
            "spine_mri": "label_vert",
            "totalseg_ct": "label_auto",
            "totalseg_mr": "label_auto",
        }.items()
    },
}


def measure(scenario: Scenario, budget: str, work: Path, seed: int) -> dict[str, Any]:
    """Trains and predicts in fresh processes; returns the record."""
    data, record = real_data(), head("main_job")
    run, out = work / "run", work / "predictions"
    dataset = scenario.open_in(data, work)
    train = ["train", str(dataset), "--fold", scenario.fold, "--time-budget", budget, "-o", str(run)]
    train += ["--seed", str(seed)]
    seconds = _call(train)
    refs = [ref for ref in open_cases(dataset) if str(ref.fold) == scenario.fold or scenario.fold == "all"]
    # By the names of their cases: scans of several folders may have one name.
    listed = work / "held_out.csv"
    with listed.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["case", *(f"image_{number}" for number in range(len(refs[0].images)))])
        rows.writerows([ref.case_id, *ref.images] for ref in refs)
    predict_s = _call(["predict", str(run), str(listed), "-o", str(out)])
    _call(["evaluate", str(out), str(dataset), "-o", str(work / "scores"), "--labels", str(run)])
    finished = next(event for event in read_events(events_path(run)) if event["event"] == "run_finished")
    return record | {
        "scenario": scenario.name,
        "command": "voxelocity " + " ".join(train).replace(str(data), "$VOXELOCITY_DATA").replace(str(work), "$WORK"),
        "time_budget": budget,
        "seed": seed,
        "wall_s": seconds,
        "predict_s": predict_s,
        "steps": finished["step"],
        "images_per_s": finished["images_per_s"],
        "wait_share": finished["wait_share"],
        "mean_dice": finished["mean_dice"],
        **_against_labels(run, work / "scores"),
    }


def _against_labels(run: Path, scores: Path) -> dict[str, Any]:
    """Dice of the written predictions, and the largest distance from the run's own table."""
    table = {case["case_id"]: case["dice"] for case in json.loads((run / "scores.json").read_text())["cases"]}
    found = json.loads((scores / "evaluation.json").read_text())["cases"]
    gaps = [
        abs(figures["dice"] - table[case["case_id"]][name])
        for case in found
        if case["case_id"] in table
        for name, figures in case["classes"].items()
        if figures["dice"] is not None
    ]
    return {
        "predicted_dice": fmean(case["mean_dice"] for case in found),
        "largest_gap_to_table": max(gaps, default=0.0),
        "num_cases": len(found),
        # Fewer where the budget ran out during the final validation.
        "num_scored": len(table),
    }


def _call(arguments: list[str]) -> float:
    watch = Stopwatch()
    subprocess.run([*VOXELOCITY, *arguments], check=True)
    return watch.elapsed_s


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("scenario", choices=sorted(SCENARIOS))
    parser.add_argument("--time-budget", default="5m")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fold", default="", help="to hold out; the scenario's own if not given")
    options = parser.parse_args()
    scenario = SCENARIOS[options.scenario]
    scenario = replace(scenario, fold=options.fold or scenario.fold)
    with tempfile.TemporaryDirectory() as work:
        record = measure(scenario, options.time_budget, Path(work), options.seed)
    suffix = f"_fold{scenario.fold}" if scenario.fold not in ("0", "all") else ""
    suffix += "" if options.seed == 0 else f"_seed{options.seed}"
    write_record(record, f"main_job_{options.scenario}_{options.time_budget}{suffix}")
    print(json.dumps({key: record[key] for key in ("wall_s", "mean_dice", "predicted_dice", "largest_gap_to_table")}))


if __name__ == "__main__":
    main()
