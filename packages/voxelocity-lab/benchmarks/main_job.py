"""The main job measured from outside, as a user runs it: train, predict, compare the predictions with the labels.

    python benchmarks/main_job.py hippocampus --time-budget 5m [--fold 1]

Writes `benchmarks/results/main_job_<scenario>_<budget>[_fold<n>].json` with the command, the machine and every figure.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import VOXELOCITY, head, parser_of, real_data, write_record
from voxelocity.data.decode import read_case
from voxelocity.data.source import open_cases
from voxelocity.infer import load_model
from voxelocity.metrics import case_score
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
    cases = open_cases(dataset)
    refs = [ref for ref in cases if str(ref.fold) == scenario.fold or scenario.fold == "all"]
    predict_s = sum(
        _call(["predict", str(run), *map(str, images), "-o", str(out / folder)])
        for folder, images in _without_name_clashes(refs).items()
    )
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
        **_against_labels(run, out, refs),
    }


def _without_name_clashes(refs: list[Any]) -> dict[str, list[Path]]:
    """Images by the folder their predictions go to: one for all, or one for each where they share a name."""
    images = [image for ref in refs for image in ref.images]
    if len({image.name for image in images}) == len(images):
        return {".": images}
    return {ref.case_id: list(ref.images) for ref in refs}


def _against_labels(run: Path, out: Path, refs: list[Any]) -> dict[str, Any]:
    """Dice of the written predictions, and the largest distance from the run's own table."""
    _, spec = load_model(run)
    table = {case["case_id"]: case for case in json.loads((run / "scores.json").read_text())["cases"]}
    dice, largest_gap = [], 0.0
    for ref in refs:
        scan = read_case(ref, label_values=spec.label_values)
        (file,) = [path for path in out.rglob(ref.images[0].name) if path.parent.name in (out.name, ref.case_id)]
        written = read_case(type(ref)(case_id=ref.case_id, images=(file,), label=file), label_values=spec.label_values)
        assert written.grid.is_close(scan.grid), ref.case_id
        assert written.label is not None
        assert scan.label is not None
        score = case_score(
            ref.case_id,
            written.label,
            scan.label,
            class_names=spec.class_names,
            spacing_mm=scan.grid.spacing_mm,
            tolerance_mm=None,
        )
        assert score.mean_dice is not None, f"{ref.case_id} holds no foreground"
        dice.append(score.mean_dice)
        if ref.case_id in table:
            known = [
                (value, table[ref.case_id]["dice"][name]) for name, value in score.dice.items() if value is not None
            ]
            largest_gap = max(largest_gap, *(abs(value - in_table) for value, in_table in known))
    return {
        "predicted_dice": float(np.mean(dice)),
        "largest_gap_to_table": largest_gap,
        "num_cases": len(refs),
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
