"""Training from a model that exists, next to training from new weights: `train --from` on two kinds of tasks.

    python packages/voxelocity-lab/benchmarks/start_from.py [--quick] [--only parts organs ...] [--within 40]

- `parts`, `phantoms`: hippocampus from a run on its anterior part, and phantoms of three organs from a run on two of
  them: seconds of training until the highest Dice that new weights have on the way of a minute, and until shares of it,
  on the same cases.
- `organs`: hippocampus (MR) from models of phantoms' spleens (CT): a run, nnU-Net's results, a MONAI bundle. Little of
  what they know helps; this shows what that costs or brings: Dice after one minute, on the way, and after five.
- `networks`: the networks of these models with new weights, for a minute: how much of that is the network's.
- `rates`: `parts` with several shares of the learning rate of new weights, and with the way down held.

Each training is a command with a time budget and a core of its own; as many run at once as there are cores. Writes
`benchmarks/results/start_from.json` after each of them. What the same commit has measured with the same sizes is kept,
and what does not fit into `--within` minutes is left to the next call. `--quick` prints only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import nibabel as nib
import numpy as np
import yaml

from harness import VOXELOCITY, head, parser_of, real_data, write_record
from voxelocity_lab.bench.body import LABELS, make_bodies
from voxelocity_lab.bench.comparison import spread
from voxelocity_lab.bench.race.rounds import bootstrap_interval
from voxelocity_observe.core.events import events_path, read_events

# A network that nnU-Net and MONAI have too.
_SHARED = {
    "network.stem_stride": [1, 1, 1], "network.widths": [8, 16, 32, 64], "network.strides": [[2, 2, 2]] * 3,
}  # fmt: skip
_PATCH = {"data.patch.shape_voxel": [32, 32, 32]}
"""Of sources: on a CPU a step then takes a tenth of a second."""
_MONAI_UNET = {"network.name": "unet", "network.norm": "batch", "network.num_res_units": 2, **_SHARED}
_PARTS = {"anterior": {1: "Anterior"}, "hippocampus": {1: "Anterior", 2: "Posterior"}}
_ORGANS = {"spleen": 1, "two organs": 2, "three organs": 3}
"""Data sets of phantoms, with the number of their organs."""
_SOURCES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "run": ("spleen", {}),
    "nnU-Net's results": ("spleen", {"network.name": "dynunet", **_SHARED}),
    "MONAI bundle": ("spleen", _MONAI_UNET),
    "anterior": ("anterior", {}),
    "two organs": ("two organs", {}),
}
"""Models to start from: their data set, and keys of their training."""
_NEW = "new weights"
_CARRIES = {"parts": ("anterior", "hippocampus"), "phantoms": ("two organs", "three organs")}
_NETWORKS = ("nnU-Net's results", "MONAI bundle")
"""Models whose networks are not those of our rule."""
_SHARES = (0.95, 0.99, 1.0)
"""Of the highest Dice of new weights, near which noise decides."""
_RATES = (1.0, 0.5, 0.25, 0.1)
_TASKS = ("parts", "organs", "networks", "phantoms", "rates")
# Start-up, end and everything else that a training takes beyond its budget.
_BESIDE_S = 10.0
_NUM_LINES = 10


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is trained.

    Attributes:
        source_steps: of each model to start from.
        short_s: of a training of a minute.
        long_s: of one of five.
        num_cases: of each data set; 0 takes all.
        seeds: of the trainings.
    """

    source_steps: int
    short_s: float
    long_s: float
    num_cases: int
    seeds: tuple[int, ...]


FULL = Sizes(source_steps=400, short_s=60.0, long_s=300.0, num_cases=0, seeds=(0, 1, 2))
QUICK = Sizes(source_steps=20, short_s=15.0, long_s=20.0, num_cases=20, seeds=(0,))


class TooLateError(Exception):
    """A training would not end in time."""


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


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training to measure.

    Attributes:
        task: that it belongs to.
        side: of it.
        seed: of the training.
        dataset: the name of its data set.
        budget_s: its time.
        source: the model that it starts from; "" for new weights.
        keys: of its plan.
        validation_share: of its time.
    """

    task: str
    side: str
    seed: int
    dataset: str
    budget_s: float
    source: str = ""
    keys: Callable[[Trial], Mapping[str, Any]] = lambda trial: {}
    validation_share: float = 0.1


@dataclass(kw_only=True)
class Trial:
    """The folder in which everything is trained.

    Attributes:
        work: the folder.
        sizes: how much is trained.
        ends_s: when the last training must have ended, by `time.monotonic`.
        cores: that are free.
        models: the folders of the models to start from, as they become ready.
    """

    work: Path
    sizes: Sizes
    ends_s: float
    cores: SimpleQueue[int] = field(default_factory=SimpleQueue)
    models: dict[str, Future[Path]] = field(default_factory=dict)

    def make_data(self, names: Sequence[str]) -> None:
        """Makes those of these data sets that are not there."""
        count = self.sizes.num_cases
        organs = {int(value): organ for value, organ in LABELS.items() if value != "0"}
        for name in (name for name in dict.fromkeys(names) if not (self.work / name).exists()):
            if name in _PARTS:
                derive(real_data() / "hippocampus", self.work / name, _PARTS[name], num_cases=count)
                continue
            bodies = make_bodies(self.work / "bodies", num_cases=min(count or 22, 22), scale=0.25 if count else 0.5)
            labels = {value: organs[value] for value in range(1, _ORGANS[name] + 1)}
            derive(bodies, self.work / name, labels)

    def train(self, name: str, dataset: str, keys: Mapping[str, Any], *options: object) -> Path:
        """The folder of a training, on a core of its own."""
        out, config = self.work / "runs" / name, self.work / "keys" / f"{name}.yaml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(json.dumps({"planner.measure": "never", "data.cache.tier": "memory", **keys}))
        command = ["train", self.work / dataset, "-o", out, "--device", "cpu", "--config", config, *options]
        self.run(command)
        return out

    def run(self, command: Sequence[object]) -> str:
        """What a command of ours prints, on a free core.

        Raises:
            RuntimeError: it failed; its last lines are in the text.
        """
        core = self.cores.get()
        try:
            words = ["taskset", "-c", str(core), *VOXELOCITY, *map(str, command)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        finally:
            self.cores.put(core)
        if done.returncode:
            raise RuntimeError("\n".join((done.stdout + done.stderr).splitlines()[-_NUM_LINES:]))
        return done.stdout

    def make_model(self, name: str) -> Path:
        """A model to start from: a run, or one exported from it."""
        dataset, keys = _SOURCES[name]
        length = {**_PATCH, "train.steps": self.sizes.source_steps, "train.validation_share": 0.0}
        run = self.train(f"source {name}", dataset, {**length, **keys})
        if name == "MONAI bundle":
            return make_bundle(run, self.work / "bundle")
        if name != "nnU-Net's results":
            return run
        self.run(["export", run, "-o", self.work / "nnunet", "--to", "nnunet"])
        return self.work / "nnunet"

    def measure(self, job: Job) -> dict[str, Any]:
        """What a training found.

        Raises:
            TooLateError: it would not end in time.
        """
        source = self.models[job.source].result() if job.source else None
        keys = {"train.validation_share": job.validation_share, **job.keys(self)}
        if time.monotonic() + job.budget_s + _BESIDE_S > self.ends_s:
            raise TooLateError
        options = ["--seed", job.seed, "--time-budget", f"{job.budget_s:g}s"]
        name = f"{job.task}, {job.side}, {job.seed}"
        return read_training(
            self.train(name, job.dataset, keys, *options, *([] if source is None else ["--from", source]))
        )

    def keys_of_model(self, name: str) -> dict[str, Any]:
        """The keys of the plan that a run takes from a model, to train them from new weights."""
        command = ["plan", self.work / "hippocampus", "--from", self.models[name].result(), "--device", "cpu", "--json"]
        plan = json.loads(self.run([*command, "--set", "planner.measure=never"]))["plan"]
        prepare, patch = plan["data"]["prepare"], plan["data"]["patch"]["shape_voxel"]
        return {
            **{f"network.{key}": value for key, value in plan["network"].items()},
            **{f"data.prepare.{key}": prepare[key] for key in ("orientation", "spacing_mm", "intensity")},
            "data.patch.shape_voxel": patch, "window.shape_voxel": patch,
        }  # fmt: skip

    def usual_rate(self) -> float:
        """The learning rate of new weights."""
        record = yaml.safe_load((self.models["anterior"].result() / "run.yaml").read_text())
        return float(record["plan"]["optimizer"]["learning_rate"])


def read_training(out: Path) -> dict[str, Any]:
    """What the folder of a run says: its final Dice, and on the way the step, seconds of steps, of all, and Dice."""
    curve: list[tuple[int, float, float, float]] = []
    trained_s = 0.0
    for event in read_events(events_path(out)):
        if event["event"] == "steps":
            trained_s += event["seconds"]
        elif event["event"] == "validation" and math.isfinite(event["mean_dice"] or math.nan):
            curve.append((event["step"], round(trained_s, 3), round(event["time_s"], 3), event["mean_dice"]))
        elif event["event"] == "run_finished":
            finished = event
    record = yaml.safe_load((out / "run.yaml").read_text())
    return {
        "steps": finished["step"],
        "dice": finished["mean_dice"],
        "seconds": round(finished["seconds"], 3),
        "curve": curve,
        "learning_rate": record["plan"]["optimizer"]["learning_rate"],
        "start": next((choice["reason"] for choice in record["choices"] if choice["key"] == "start"), ""),
    }


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


def jobs_of(task: str, sizes: Sizes) -> Iterator[Job]:
    """The trainings of a task, those of a seed next to each other."""
    models = [name for name, (dataset, _) in _SOURCES.items() if dataset == "spleen"]
    for seed in sizes.seeds:
        if task in _CARRIES:
            before, now = _CARRIES[task]
            for side, source in ((_NEW, ""), ("from the part", before)):
                yield Job(
                    task=task, side=side, seed=seed, dataset=now, budget_s=sizes.short_s, source=source,
                    validation_share=0.3,
                )  # fmt: skip
        for name in (_NEW, *models) if task == "organs" else ():
            source = "" if name == _NEW else name
            yield Job(task=task, side=name, seed=seed, dataset="hippocampus", budget_s=sizes.long_s, source=source)
        for name in _NETWORKS if task == "networks" else ():
            yield Job(
                task=task, side=f"new weights, as {name}", seed=seed, dataset="hippocampus", budget_s=sizes.short_s,
                keys=_network_of(name),
            )  # fmt: skip
        for side, keys in _rates().items() if task == "rates" else ():
            yield Job(
                task=task, side=side, seed=seed, dataset="hippocampus", budget_s=sizes.short_s, source="anterior",
                keys=keys,
            )  # fmt: skip


def _network_of(name: str) -> Callable[[Trial], Mapping[str, Any]]:
    return lambda trial: trial.keys_of_model(name)


def _rates() -> dict[str, Callable[[Trial], Mapping[str, Any]]]:
    """The keys of each side of `rates`."""

    def share_of_rate(share: float) -> Callable[[Trial], Mapping[str, Any]]:
        return lambda trial: {"optimizer.learning_rate": share * trial.usual_rate()}

    sides = {f"{share:g} of the rate": share_of_rate(share) for share in _RATES}
    return {**sides, "way down held for a quarter": lambda trial: {"schedule.frozen_share": 0.25}}


def needed_models(task: str, jobs: Sequence[Job]) -> list[str]:
    """The models that trainings start from, or whose networks they have."""
    sources = [job.source for job in jobs if job.source]
    return list(dict.fromkeys([*sources, *(_NETWORKS if task == "networks" else ())]))


def sooner(new: Mapping[str, Any], started: Mapping[str, Any], share: float) -> dict[str, Any] | None:
    """A share of the highest Dice that new weights have on the way, and seconds of steps until both sides have it."""
    if not new["curve"]:
        return None
    target = share * max(dice for *_, dice in new["curve"])
    seconds = [
        next((trained_s for _, trained_s, _, dice in side["curve"] if dice >= target), None) for side in (new, started)
    ]
    factor = seconds[0] / seconds[1] if seconds[0] and seconds[1] else None
    return {"dice": target, "new_s": seconds[0], "started_s": seconds[1], "factor": factor}


def summaries(found: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Of each task what its trainings amount to: Dice after times, or how many times sooner the same Dice."""
    made: dict[str, Any] = {}
    for task, sides in found.items():
        done = {side: {seed: run for seed, run in runs.items() if "dice" in run} for side, runs in sides.items()}
        made[task] = {
            side: {
                "after": spread([run["dice"] for run in runs.values() if run["dice"] is not None]),
                "after a minute": spread([dice for run in runs.values() if (dice := _dice_by(run, sizes.short_s))]),
                "n": len(runs),
            }
            for side, runs in done.items()
        }
        if task in _CARRIES and len(done) == 2:
            new, started = done[_NEW], done["from the part"]
            for share in _SHARES:
                pairs = [sooner(new[seed], started[seed], share) for seed in new if seed in started]
                factors = [pair["factor"] for pair in pairs if pair and pair["factor"]]
                made[task][f"times sooner at {share:g} of the Dice"] = {
                    **spread(factors), "interval": bootstrap_interval(factors), "n": len(factors), "pairs": pairs,
                }  # fmt: skip
    return made


def _dice_by(run: Mapping[str, Any], seconds: float) -> float | None:
    """The Dice of the last validation within these seconds from the command on."""
    return next((dice for *_, time_s, dice in reversed(run["curve"]) if time_s <= seconds), None)


def _read_options() -> tuple[argparse.Namespace, Sizes, str]:
    """The options, how much is trained, and the part of the command that repeats it."""
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--quick", action="store_true", help="short trainings, few cases, one seed; writes no record")
    parser.add_argument("--only", nargs="+", choices=_TASKS, default=list(_TASKS))
    parser.add_argument("--within", type=float, default=40.0, help="minutes; trainings that would end later are left")
    for name, kind in (("source_steps", int), ("short_s", float), ("long_s", float), ("num_cases", int)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help="in place of the usual number")
    parser.add_argument("--seeds", type=int, help="how many")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    given = {name: value for name, value in vars(options).items() if name in vars(sizes) and value is not None}
    seeds = tuple(range(given.get("seeds", len(sizes.seeds))))
    said = [f"--{name.replace('_', '-')} {value}" for name, value in given.items()]
    said = [*(["--quick"] if options.quick else []), f"--only {' '.join(options.only)}", *said]
    return options, replace(sizes, **{**given, "seeds": seeds}), " ".join(said)


def _kept(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier call has found, if it was on the same commit and as large."""
    before = json.loads(path.read_text()) if path.exists() else {}
    if before.get("sizes") != record["sizes"] or before["environment"]["commit"] != record["environment"]["commit"]:
        return {}
    found: dict[str, Any] = before["found"]
    return found


def _is_found(found: Mapping[str, Any], job: Job) -> bool:
    return "dice" in found.get(job.task, {}).get(job.side, {}).get(str(job.seed), {})


def main() -> None:
    began_s = time.monotonic()
    options, sizes, said = _read_options()
    path = options.out / "start_from.json"
    record = {**head("start_from", said), "sizes": json.loads(json.dumps(vars(sizes)))}
    found = {} if options.quick else _kept(path, record)
    cores = sorted(os.sched_getaffinity(0))
    jobs = {task: [job for job in jobs_of(task, sizes) if not _is_found(found, job)] for task in options.only}
    models = {task: needed_models(task, of_task) for task, of_task in jobs.items() if of_task}
    with tempfile.TemporaryDirectory(prefix="start_from_") as work, ThreadPoolExecutor(len(cores)) as pool:
        trial = Trial(work=Path(work), sizes=sizes, ends_s=began_s + 60.0 * options.within)
        for core in cores:
            trial.cores.put(core)
        trial.make_data([job.dataset for of_task in jobs.values() for job in of_task])
        trial.make_data([_SOURCES[name][0] for names in models.values() for name in names])
        measured: dict[Future[dict[str, Any]], Job] = {}
        # In this order, so that no training waits for a model that waits for a core.
        for task, of_task in jobs.items():
            for name in models.get(task, ()):
                if name not in trial.models:
                    trial.models[name] = pool.submit(trial.make_model, name)
            measured |= {pool.submit(trial.measure, job): job for job in of_task}
        left: list[str] = []
        for future in as_completed(measured):
            job = measured[future]
            name = f"{job.task}, {job.side}, {job.seed}"
            try:
                result = future.result()
            except TooLateError:
                left.append(name)
                continue
            except RuntimeError as error:
                result = {"failed": str(error)}
            found.setdefault(job.task, {}).setdefault(job.side, {})[str(job.seed)] = result
            print(f"{name}: {result.get('failed') or result['dice']}", flush=True)
            text = json.dumps({**record, "found": found, "summaries": summaries(found, sizes)})
            if not options.quick:
                write_record(json.loads(text.replace(work, "$WORK")), "start_from", out=options.out)
    print(json.dumps(summaries(found, sizes), indent=1))
    if left:
        print(f"left to the next call: {'; '.join(left)}")


if __name__ == "__main__":
    main()
