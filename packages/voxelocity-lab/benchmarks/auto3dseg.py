"""Our tuning of Auto3DSeg's algorithms and its own GPU customization: same work folder, limit of memory and data.

For each template: what each search chose in how many trials, whether two epochs of the template's own training ran
within the limit with that, and their time. Auto3DSeg's search needs a GPU, so a CPU stands in for one
(auto3dseg_on_cpu.py). Out of memory, its study ends at once; here the error is raised as its code expects it, and
the record says at which trial it would have ended. Ours has half the trials.

python benchmarks/auto3dseg.py                     # all four, some hours on two cores
python benchmarks/auto3dseg.py --only dints
python benchmarks/auto3dseg.py --quick --out DIR   # small networks and few trials: the figures mean nothing
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml

from auto3dseg_on_cpu import seeming_gpu, shrink
from harness import BENCHMARKS, ROOT, alternate, measure_each, real_data
from voxelocity.tuning.auto3dseg.algorithms import algorithms_in
from voxelocity.tuning.auto3dseg.customizing import customize
from voxelocity.tuning.task import TrialScale
from voxelocity.tuning.trial import TrialLimits, TrialOutcome, run_trial

# Taken out before the options are parsed that all such scripts have.
QUICK = "--quick" in sys.argv
ALGORITHMS = ("segresnet", "segresnet2d", "dints", "swinunetr")
# A training of segresnet takes 4.7 GB with its own sizes, as a process of its loaders has a copy of what it had.
LIMIT_BYTES = 8 * 10**9
TRIALS = 4 if QUICK else 16
NUM_CASES = 4 if QUICK else 12
ROUNDS = 1 if QUICK else 3
SPECS = {"range_num_images_per_batch": [1, 8], "range_num_sw_batch_size": [1, 16]}
SCALE = TrialScale(window_s=0.2, num_windows=2, validation_s=2.0) if QUICK else TrialScale(window_s=1.0, num_windows=3)
EPOCHS = 2


def templates() -> Path:
    """MONAI's templates: below $VOXELOCITY_PEERS, or in the checkout's neighbor `shared/peers`."""
    peers = Path(os.environ.get("VOXELOCITY_PEERS", ROOT.parent / "shared" / "peers"))
    return peers / "auto3dseg" / "algorithm_templates"


def make_work(name: str, root: Path, *, is_small: bool = QUICK) -> Path:
    """A work folder of one algorithm on real scans, as MONAI makes it; with `is_small` of small networks."""
    from monai.apps.auto3dseg import BundleGen, DataAnalyzer

    data = real_data() / "hippocampus"
    listed = json.loads((data / "dataset.json").read_text())["training"][:NUM_CASES]
    items = [{**item, "fold": number % 5} for number, item in enumerate(listed)]
    (root / "datalist.json").write_text(json.dumps({"training": items, "testing": []}))
    source = {"modality": "MRI", "datalist": str(root / "datalist.json"), "dataroot": str(data)}
    (root / "input.yaml").write_text(yaml.safe_dump(source))
    stats = str(root / "datastats.yaml")
    DataAnalyzer(source["datalist"], str(data), output_path=stats, device="cpu", worker=0).get_all_case_stats()
    work = root / "work"
    with contextlib.nullcontext() if torch.cuda.is_available() else seeming_gpu(LIMIT_BYTES):
        made = BundleGen(str(work), [name], str(templates()), stats, str(root / "input.yaml"))
        made.generate(str(work), num_fold=1)
    _use_two_cores(work)
    if is_small:
        shrink(work)
    return work


def _use_two_cores(work: Path) -> None:
    """Gives each loader one process, as users of a small machine do in the files of a work folder."""
    for file in work.glob("*_[0-9]/configs/hyper_parameters.yaml"):
        values = yaml.safe_load(file.read_text())
        inner = values.get("training", values)
        inner |= {key: 1 for key in inner if key.startswith("num_workers")}
        if "num_cache_workers" in inner:
            inner["num_cache_workers"] = 0
        file.write_text(yaml.safe_dump(values, sort_keys=False))


def on_cpu(arguments: list[str], answer: Path, log: Path) -> TrialOutcome:
    """What became of a script of a template, on a CPU and within the limit."""
    script = str(BENCHMARKS / "auto3dseg_on_cpu.py")
    # The templates log to a folder, which newer versions of MLflow must be asked to take.
    environ = {"AUTO3DSEG_MEMORY": str(LIMIT_BYTES), "MLFLOW_ALLOW_FILE_STORE": "true"}
    limits = TrialLimits(seconds=3600.0, host_bytes=LIMIT_BYTES)
    return run_trial([sys.executable, script, str(answer), *arguments], answer=answer, log=log, limits=limits,
                     environ=environ)  # fmt: skip


def their_search(work: Path, name: str) -> dict[str, Any]:
    """Auto3DSeg's own customization of the folder, which it writes into."""
    found = algorithms_in(work)[0]
    if not hasattr(found.algo, "customize_param_for_gpu"):
        return {"trials": 0, "failed": 0, "seconds": 0.0, "chosen": {}, "would_have_ended_at": None, "error": None}
    outcomes: list[TrialOutcome] = []

    def run(command: list[str], **options: Any) -> None:
        outcomes.append(on_cpu(command[1:], work / "theirs.json", work / "theirs.log"))
        if not outcomes[-1].is_finished:
            raise RuntimeError(f"out of memory: {outcomes[-1].reason}")

    module = importlib.import_module(type(found.algo).__module__)
    specs = {{"swinunetr": "swunetr"}.get(name, name): {**SPECS, "num_trials": TRIALS}}
    error = None
    with seeming_gpu(LIMIT_BYTES), mock.patch.object(module.subprocess, "run", run):
        try:
            found.algo.customize_param_for_gpu(
                str(found.folder), str(found.algo.data_stats_files), found.algo.fill_records, specs
            )
        except (RuntimeError, ValueError, subprocess.SubprocessError) as failed:
            error = str(failed).partition("\n")[0]
    failures = [number for number, outcome in enumerate(outcomes) if not outcome.is_finished]
    written = found.algo.fill_records["hyper_parameters.yaml"]
    keys = ("num_images_per_batch", "num_sw_batch_size", "sw_input_on_cpu")
    return {
        "trials": len(outcomes),
        "failed": len(failures),
        "seconds": sum(outcome.seconds for outcome in outcomes),
        "chosen": {key: value for key, value in written.items() if key.split("#")[-1] in keys},
        "would_have_ended_at": failures[0] if failures else None,
        "error": error,
    }


def our_search(work: Path, name: str) -> dict[str, Any]:
    """Our customization of the folder, with half the trials."""
    specs = {name: {**SPECS, "num_trials": TRIALS // 2}}
    result = next(iter(customize(work, name, specs, memory_limit_bytes=LIMIT_BYTES, scale=SCALE).values()))
    trials = result.study.trials
    return {
        "trials": len(trials),
        "failed": sum(not trial.outcome.is_finished for trial in trials),
        "seconds": result.study.seconds,
        "winner": None if result.study.winner is None else dict(result.study.winner),
        "chosen": dict(result.values),
    }


def train_epochs(work: Path, name: str, epochs: int = EPOCHS, epochs_per_validation: int = 1) -> dict[str, Any]:
    """The template's own training of so long, with what the folder says."""
    folder = work / f"{name}_0"
    copy = Path(shutil.copytree(folder, work / "trained"))
    try:
        parameters = yaml.safe_load((copy / "configs" / "hyper_parameters.yaml").read_text())
        overrides: dict[str, Any] = {"bundle_root": str(copy)}
        if name.startswith("segresnet"):
            # Its training divides the epochs by this.
            crops = min(3, parameters["num_crops_per_image"]) if not parameters["auto_scale_allowed"] else min(
                3, parameters["batch_size"]
            )  # fmt: skip
            overrides |= {"num_epochs": epochs * crops, "num_epochs_per_validation": epochs_per_validation * crops,
                          "num_warmup_epochs": 1, "early_stopping_fraction": 0, "ckpt_save": False}  # fmt: skip
        else:
            at = "training#" if name == "dints" else ""
            keys = {"num_epochs": epochs, "num_epochs_per_validation": epochs_per_validation,
                    "adapt_valid_mode": False, "early_stop_mode": False,
                    "valid_at_orig_resolution_at_last": False}  # fmt: skip
            overrides |= {f"{at}{key}": value for key, value in keys.items()}
            if name == "swinunetr":
                overrides["use_pretrain"] = False
        files = sorted(str(path) for path in (copy / "configs").glob("*.yaml"))
        arguments = [f"--{key}={value}" for key, value in overrides.items()]
        outcome = on_cpu(
            [str(copy / "scripts" / "train.py"), "run", f"--config_file={','.join(files)}", *arguments],
            work / "trained.json",
            work / "trained.log",
        )
    finally:
        shutil.rmtree(copy)
    found: dict[str, Any] = {"kind": outcome.kind, "peak_bytes": outcome.peak_host_bytes, "reason": outcome.reason}
    return {**found, **{key: values[0] for key, values in outcome.measurements.items()}, **outcome.about}


def measure(name: str) -> dict[str, Any]:
    """The record of one template: both searches, and trainings with what each chose and with neither."""
    with tempfile.TemporaryDirectory(prefix="auto3dseg-") as folder:
        root = Path(folder)
        made = {"default": make_work(name, root)}
        for side in ("theirs", "ours"):
            made[side] = moved(made["default"], root / side)
        rows = {"default": {}, "theirs": their_search(made["theirs"], name), "ours": our_search(made["ours"], name)}
        runs = alternate({side: partial(train_epochs, work, name) for side, work in made.items()}, ROUNDS)
        for run in (run for side in runs.values() for run in side):
            run.pop("curves", None)
        return {"limit_bytes": LIMIT_BYTES, **{side: {**row, "runs": runs[side]} for side, row in rows.items()}}


def moved(work: Path, place: Path) -> Path:
    """A copy of a work folder that knows where it is."""
    copy = Path(shutil.copytree(work, place / "work"))
    for file in [*copy.glob("*/algo_object.json"), *copy.glob("*/configs/*.yaml")]:
        file.write_text(file.read_text().replace(str(work), str(copy)))
    return copy


def has_templates() -> None:
    """Returns if MONAI's templates are there; else ends the program with where they are looked for."""
    if not templates().is_dir():
        sys.exit(f"Auto3DSeg's templates are not at {templates()}; name the folder above auto3dseg in VOXELOCITY_PEERS")


def main() -> None:
    if QUICK:
        sys.argv.remove("--quick")
    has_templates()
    facts: Mapping[str, Any] = {"trials_allowed": TRIALS, "cases": NUM_CASES, "epochs": EPOCHS}
    measure_each("auto3dseg", __doc__, {name: partial(measure, name) for name in ALGORITHMS}, facts)


if __name__ == "__main__":
    main()
