"""Training from a model that exists, next to training from new weights: `train --from` on two kinds of tasks.

    python packages/voxelocity-lab/benchmarks/start_from.py [--quick] [--only organs parts phantoms rates] [--seeds 3]

- `organs`: hippocampus (MR) from models of phantoms' spleens (CT): a run, nnU-Net's results, a MONAI bundle. Little of
  what they know helps; this shows what that costs or brings, after the same numbers of steps, or with `--minutes 1 5`
  after the same times.
- `parts`, `phantoms`: hippocampus from a run on its anterior part, and phantoms of three organs from a run on two of
  them: steps until the Dice that new weights reach at the end.
- `rates`: `parts` with several shares of the learning rate of new weights.

Steps do not depend on what else the machine does; seconds do. Writes `benchmarks/results/start_from.json`, which keeps
what other calls have measured; `--quick` prints only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import nibabel as nib
import numpy as np
import yaml
from rich.console import Console

import voxelocity
from harness import VOXELOCITY, head, parser_of, real_data, write_record
from voxelocity_lab.bench.body import LABELS, make_bodies
from voxelocity_observe.core.events import events_path, read_events

# A network that nnU-Net and MONAI have too.
_SHARED = {
    "network.stem_stride": [1, 1, 1], "network.widths": [8, 16, 32, 64], "network.strides": [[2, 2, 2]] * 3,
}  # fmt: skip
_PATCH = {"data.patch.shape_voxel": [32, 32, 32]}
"""Of runs in steps: on a CPU a step then takes a tenth of a second."""
_MONAI_UNET = {"network.name": "unet", "network.norm": "batch", "network.num_res_units": 2, **_SHARED}
_PARTS = {"anterior": {1: "Anterior"}, "hippocampus": {1: "Anterior", 2: "Posterior"}}
_ORGANS = {"spleen": 1, "two organs": 2, "three organs": 3}
"""Data sets of phantoms, with the number of their organs."""
_RATES = (1.0, 0.5, 0.25, 0.1)
_TASKS = ("organs", "parts", "phantoms", "rates")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is trained.

    Attributes:
        source_steps: of each model to start from.
        steps: of each run that starts from one.
        every: steps between two validations.
        num_cases: of each data set; 0 takes all.
        seeds: of the runs.
    """

    source_steps: int
    steps: int
    every: int
    num_cases: int
    seeds: tuple[int, ...]


FULL = Sizes(source_steps=400, steps=500, every=25, num_cases=0, seeds=(0, 1, 2))
QUICK = Sizes(source_steps=40, steps=40, every=10, num_cases=20, seeds=(0,))


def derive(dataset: Path, out: Path, labels: Mapping[int, str], *, num_cases: int = 0) -> Path:
    """A data set of the same images whose labels keep only these values, numbered from 1, in folds by case number."""
    described = json.loads((dataset / "dataset.json").read_text())
    entries = sorted(described["training"], key=lambda entry: entry["image"])
    entries = entries[: num_cases or len(entries)]
    new_value = np.zeros(256, np.uint8)
    for number, value in enumerate(labels, start=1):
        new_value[value] = number
    kept = []
    for index, entry in enumerate(entries):
        names = {part: entry[part].removeprefix("./") for part in ("image", "label")}
        for name in names.values():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / names["image"]).symlink_to((dataset / names["image"]).resolve())
        label = nib.load(dataset / names["label"])
        values = new_value[np.asarray(label.dataobj).astype(np.uint8)]
        nib.save(nib.Nifti1Image(values, label.affine), out / names["label"])
        kept.append({**names, "fold": index % 5})
    names_of = {"0": "background", **{str(n): name for n, name in enumerate(labels.values(), start=1)}}
    record = {"name": out.name, "modality": described["modality"], "labels": names_of, "training": kept}
    (out / "dataset.json").write_text(json.dumps({**record, "numTraining": len(kept)}))
    return out


@dataclass(kw_only=True)
class Trial:
    """The folder in which everything is trained.

    Attributes:
        work: the folder.
        sizes: how much is trained.
    """

    work: Path
    sizes: Sizes

    def data(self, name: str) -> Path:
        """The data set of this name, made once."""
        out, count = self.work / name, self.sizes.num_cases
        if out.exists():
            return out
        if name in _PARTS:
            return derive(real_data() / "hippocampus", out, _PARTS[name], num_cases=count)
        bodies = make_bodies(self.work / "bodies", num_cases=min(count or 22, 22), scale=0.25 if count else 0.5)
        organs = {int(value): organ for value, organ in LABELS.items() if value != "0"}
        return derive(bodies, out, {value: organs[value] for value in range(1, _ORGANS[name] + 1)})

    def train(self, name: str, dataset: Path, *, keys: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """What a training found: Dice by step, its end, and the seconds of its steps."""
        out = self.work / "runs" / name
        keys = {"planner.measure": "never", "data.cache.tier": "memory", **keys}
        voxelocity.train(
            voxelocity.open(dataset), out, device="cpu", overrides=keys, console=Console(quiet=True), **options
        )
        events = list(read_events(events_path(out)))
        finished = next(event for event in events if event["event"] == "run_finished")
        record = yaml.safe_load((out / "run.yaml").read_text())
        return {
            "folder": str(out),
            "steps": finished["step"],
            "dice": finished["mean_dice"],
            "train_s": sum(event["seconds"] for event in events if event["event"] == "steps"),
            "curve": [(event["step"], event["mean_dice"]) for event in events if event["event"] == "validation"],
            "learning_rate": record["plan"]["optimizer"]["learning_rate"],
            "start": next((choice["reason"] for choice in record["choices"] if choice["key"] == "start"), ""),
        }

    def in_steps(
        self, name: str, dataset: Path, seed: int, *, keys: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """A training of the usual number of steps."""
        length = {**_PATCH, "train.steps": self.sizes.steps, "train.validate_every_steps": self.sizes.every}
        return self.train(f"{name} {seed}", dataset, seed=seed, keys={**length, **(keys or {})}, **options)

    def source(self, name: str, dataset: Path, keys: Mapping[str, Any] | None = None) -> Path:
        """A run to start from; trained once."""
        out = self.work / "runs" / f"source {name}"
        if not out.exists():
            length = {**_PATCH, "train.steps": self.sizes.source_steps, "train.validation_share": 0.0}
            self.train(f"source {name}", dataset, keys={**length, **(keys or {})})
        return out

    def new_weights(self, like: Path) -> dict[str, Any]:
        """The keys of the plan that a run took from its model, to train them from new weights."""
        plan = yaml.safe_load((like / "run.yaml").read_text())["plan"]
        prepare = {
            f"data.prepare.{key}": plan["data"]["prepare"][key] for key in ("orientation", "spacing_mm", "intensity")
        }
        patch = plan["data"]["patch"]["shape_voxel"]
        return {
            **{f"network.{key}": value for key, value in plan["network"].items()}, **prepare,
            "data.patch.shape_voxel": patch, "window.shape_voxel": patch,
        }  # fmt: skip


def make_bundle(run: Path, out: Path) -> Path:
    """The model of a run of MONAI's UNet as a bundle."""
    import torch

    from voxelocity.infer import load_model

    network, spec = load_model(run)
    intensity = spec.prepare.intensity
    low, high = intensity.low, intensity.high
    ends = [(value - float(intensity.mean)) / float(intensity.std) for value in (low, high)]
    unet = {"_target_": "UNet", "spatial_dims": 3, "in_channels": 1, "out_channels": spec.num_outputs,
            "channels": list(spec.network.widths), "strides": [list(stride) for stride in spec.network.strides],
            "num_res_units": spec.network.num_res_units, "norm": spec.network.norm}  # fmt: skip
    steps = [
        {"_target_": "LoadImaged", "keys": "image"}, {"_target_": "EnsureChannelFirstd", "keys": "image"},
        {"_target_": "Orientationd", "keys": "image", "axcodes": "RAS"},
        {"_target_": "Spacingd", "keys": "image", "pixdim": list(spec.prepare.spacing_mm), "mode": "bilinear"},
        {"_target_": "ScaleIntensityRanged", "keys": "image", "a_min": low, "a_max": high, "b_min": ends[0],
         "b_max": ends[1], "clip": True},
    ]  # fmt: skip
    inverse = {"_target_": "Invertd", "keys": "pred", "transform": "@preprocessing", "orig_keys": "image",
               "nearest_interp": False}  # fmt: skip
    described = {
        "network_def": unet,
        "preprocessing": {"_target_": "Compose", "transforms": steps},
        "inferer": {"_target_": "SlidingWindowInferer", "roi_size": list(spec.window.shape_voxel)},
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [inverse, {"_target_": "AsDiscreted", "keys": "pred", "argmax": True}],
        },
    }
    channels = {str(index): name for index, name in enumerate(spec.class_names)}
    formats = {
        "inputs": {"image": {"num_channels": 1, "channel_def": {"0": spec.channels[0]}}},
        "outputs": {"pred": {"num_channels": spec.num_outputs, "channel_def": channels}},
    }
    for folder in ("configs", "models"):
        (out / folder).mkdir(parents=True)
    (out / "configs" / "inference.json").write_text(json.dumps(described))
    (out / "configs" / "metadata.json").write_text(json.dumps({"network_data_format": formats}))
    torch.save(network.state_dict(), out / "models" / "model.pt")
    return out


def measure_organs(trial: Trial, minutes: Sequence[int]) -> dict[str, Any]:
    """Hippocampus from three kinds of models of spleens, next to new weights, with their network and with our own."""
    sources = {"run": trial.source("spleen", trial.data("spleen"))}
    for_nnunet = trial.source("spleen as nnU-Net", trial.data("spleen"), {"network.name": "dynunet", **_SHARED})
    results = trial.work / "nnunet"
    subprocess.run([*VOXELOCITY, "export", str(for_nnunet), "-o", str(results), "--to", "nnunet"], check=True)
    sources["nnU-Net's results"] = results
    sources["MONAI bundle"] = make_bundle(
        trial.source("spleen as bundle", trial.data("spleen"), _MONAI_UNET), trial.work / "b"
    )
    found: dict[str, Any] = {}
    for seed in trial.sizes.seeds:
        for name, source in {"new weights": None, **sources}.items():
            found.setdefault(name, []).append(
                trial.in_steps(f"organs {name}", trial.data("hippocampus"), seed, start_from=source)
            )
            if source is not None:
                keys, side = trial.new_weights(Path(found[name][-1]["folder"])), f"new weights, as {name}"
                found.setdefault(side, []).append(
                    trial.in_steps(f"organs {side}", trial.data("hippocampus"), seed, keys=keys)
                )
            for budget in minutes:
                timed = trial.train(
                    f"organs {name} {budget} min {seed}", trial.data("hippocampus"), seed=seed, keys={},
                    time_budget=f"{budget}m", start_from=source,
                )  # fmt: skip
                found.setdefault(f"{name}, {budget} min", []).append(timed)
    return found


def measure_carries(trial: Trial, before: str, now: str) -> dict[str, Any]:
    """A task of which the model knows a part, next to new weights: steps to the Dice that these reach at the end."""
    found: dict[str, Any] = {"new weights": [], "from the part": []}
    source = trial.source(before, trial.data(before))
    for seed in trial.sizes.seeds:
        for name, start_from in zip(found, (None, source), strict=True):
            found[name].append(trial.in_steps(f"{now} {name}", trial.data(now), seed, start_from=start_from))
    pairs = zip(*found.values(), strict=True)
    return {**found, "steps_to_same_dice": [sooner(dict(zip(found, pair, strict=True))) for pair in pairs]}


def measure_rates(trial: Trial) -> dict[str, Any]:
    """Hippocampus from its anterior part, with shares of the learning rate of new weights, and the way down held."""
    source = trial.source("anterior", trial.data("anterior"))
    plan = yaml.safe_load((source / "run.yaml").read_text())["plan"]
    usual = plan["optimizer"]["learning_rate"]
    sides: dict[str, dict[str, Any]] = {
        f"{share:g} of the rate": {"optimizer.learning_rate": share * usual} for share in _RATES
    }
    sides["way down held for a quarter"] = {"schedule.frozen_share": 0.25}
    return {
        name: [
            trial.in_steps(f"rate {name}", trial.data("hippocampus"), seed, start_from=source, keys=keys)
            for seed in trial.sizes.seeds
        ]
        for name, keys in sides.items()
    }


def sooner(pair: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The Dice that new weights reach at the end, and the step of the first validation at which each side has it."""
    target = pair["new weights"]["dice"]
    steps = {}
    for name, side in pair.items():
        curve = [*side["curve"], (side["steps"], side["dice"])]
        steps[name] = next((step for step, dice in curve if dice >= target), None)
    return {"dice": target, **steps}


def summary(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The final Dice of some runs."""
    dice = [value["dice"] for value in values]
    return {"n": len(dice), "mean": round(fmean(dice), 4), "sd": round(stdev(dice), 4) if len(dice) > 1 else None}


def _read_options() -> tuple[argparse.Namespace, Sizes, str]:
    """The options, how much is trained, and the part of the command that repeats it."""
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--quick", action="store_true", help="few steps and cases, one seed; writes no record")
    parser.add_argument("--only", nargs="+", choices=_TASKS, default=list(_TASKS))
    parser.add_argument("--minutes", nargs="*", type=int, default=[], help="also train for these times")
    for name in ("seeds", "steps", "source_steps", "every", "num_cases"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="in place of the usual number")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    given = {name: value for name, value in vars(options).items() if name in vars(sizes) and value is not None}
    sizes = replace(sizes, **{**given, "seeds": tuple(range(options.seeds or len(sizes.seeds)))})
    said = [f"--{name.replace('_', '-')} {value}" for name, value in given.items()]
    return options, sizes, " ".join([*(["--quick"] if options.quick else []), "--only", *options.only, *said])


def main() -> None:
    options, sizes, said = _read_options()
    path = options.out / "start_from.json"
    record = head("start_from", said)
    found = json.loads(path.read_text())["found"] if path.exists() and not options.quick else {}
    with tempfile.TemporaryDirectory(prefix="start_from_") as work:
        trial = Trial(work=Path(work), sizes=sizes)
        measurements = {
            "organs": partial(measure_organs, trial, options.minutes),
            "parts": partial(measure_carries, trial, "anterior", "hippocampus"),
            "phantoms": partial(measure_carries, trial, "two organs", "three organs"),
            "rates": partial(measure_rates, trial),
        }
        for name in options.only:
            runs = measurements[name]()
            found[name] = {"sizes": vars(sizes), "commit": record["environment"]["commit"], **runs}
            shown = {side: summary(values) for side, values in runs.items() if side != "steps_to_same_dice"}
            print(name, json.dumps({**shown, "sooner": runs.get("steps_to_same_dice", [])}, indent=1), flush=True)
    if not options.quick:
        text = json.dumps({**record, "found": found}).replace(work, "$WORK")
        print(write_record(json.loads(text), "start_from", out=options.out))


if __name__ == "__main__":
    main()
