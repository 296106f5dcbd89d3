"""The demonstration: one training on three sides, MONAI's fast recipe, a plain MONAI script and Voxelocity.

Every side runs in a process of its own, one after the other, and is timed alike: seconds from the start of the process,
imports included, to the first validation at which the held-out cases reach the target. Network, loss, optimizer,
augmentation, batch, patch and split are the same on all sides.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml
from rich.console import Console

from voxelocity.core.errors import OutputError, VoxelocityError
from voxelocity.data.augment import AugmentConfig
from voxelocity.observe import environment, phase
from voxelocity.observe.host import cpu_budget
from voxelocity.recipes.demo import monai_script
from voxelocity.recipes.demo.monai_script import ScriptSettings
from voxelocity.recipes.demo.phantom import make_phantoms
from voxelocity.report import (
    LabelledRun,
    comparison_to_json,
    duration_text,
    label_run,
    median_run,
    read_run,
    render_comparison,
)
from voxelocity.report.summary import TimeShare
from voxelocity.report.views import Section, Table

_MAX_MINUTES = 6.0
# About 6 million voxels a case: still a quarter of a usual abdominal CT, but made in seconds.
_PHANTOM_SCALE = 1.25
_NUM_PHANTOMS = 22
_FAST, _PLAIN, _OURS = "MONAI, fast recipe", "MONAI, plain script", "Voxelocity"


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demonstration came to.

    Attributes:
        sides: every run of each side, in the order of the seeds; MONAI's fast recipe first, Voxelocity last.
        target_dice: the Dice that was timed.
        page: that shows all of it.
    """

    sides: tuple[tuple[LabelledRun, ...], ...]
    target_dice: float
    page: Path

    @property
    def runs(self) -> tuple[LabelledRun, ...]:
        """Each side as one run, with the medians over the seeds."""
        return tuple(median_run(side) for side in self.sides)

    @property
    def seed_table(self) -> Table:
        """Seconds to the target of every side and seed, with the median and the range."""
        rows = []
        for side in self.sides:
            reached = [run.seconds_to_target for run in side]
            known = [seconds for seconds in reached if seconds is not None]
            spread = f"{duration_text(min(known))} to {duration_text(max(known))}" if len(known) > 1 else ""
            median = duration_text(median_run(side).seconds_to_target)
            each = ["not reached" if seconds is None else duration_text(seconds) for seconds in reached]
            rows.append([side[0].label, median, spread, f"{len(known)} of {len(side)}", *each])
        heads = ["", "median", "range", "reached", *(f"seed {index}" for index in range(len(self.sides[0])))]
        return Table(caption=f"Time to Dice {self.target_dice:g}", heads=heads, rows=rows)


def run_demo(
    out: Path, *, seed: int, num_seeds: int = 1, console: Console, settings: ScriptSettings | None = None
) -> DemoResult:
    """Makes phantoms, trains every side with each seed and writes `demo.html` and `demo.json` into `out`.

    Args:
        out: folder of the demonstration; the phantoms in it are used again, runs are replaced.
        seed: of the phantoms and of the first training of each side; the next ones follow it.
        num_seeds: trainings a side. The order of the sides rotates from seed to seed.
        console: where progress is shown.
        settings: network, loss, augmentation, batch, patch, split, optimizer and target of all sides.

    Raises:
        OutputError: `out` cannot be written.
        VoxelocityError: one side failed.
    """
    settings = settings or ScriptSettings()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"demo: cannot make the folder {out} ({error.strerror}); choose another with -o") from None
    console.rule("phantoms")
    start = time.perf_counter()
    with phase("phantoms", color="tan"):
        dataset = make_phantoms(out / "phantoms", _NUM_PHANTOMS, seed=seed, scale=_PHANTOM_SCALE)
    console.print(f"{dataset} is ready after {time.perf_counter() - start:.0f} s", highlight=False)
    sides = _train_all(dataset, out, replace(settings, seed=seed), num_seeds, console)
    result = DemoResult(sides=sides, target_dice=settings.target_dice, page=out / "demo.html")
    _write(result, f"voxelocity demo --seed {seed} --seeds {num_seeds}")
    return result


def _train_all(
    dataset: Path, out: Path, settings: ScriptSettings, num_seeds: int, console: Console
) -> tuple[tuple[LabelledRun, ...], ...]:
    train: dict[str, Callable[[ScriptSettings], LabelledRun]] = {
        _FAST: lambda changed: _run_script(dataset, out, changed, "fast"),
        _PLAIN: lambda changed: _run_script(dataset, out, changed, "plain"),
        _OURS: lambda changed: _run_ours(dataset, out, changed),
    }
    found: dict[str, list[LabelledRun]] = {name: [] for name in train}
    names = list(train)
    for turn in range(num_seeds):
        for name in names[turn % 3 :] + names[: turn % 3]:
            console.rule(f"{name}, seed {settings.seed + turn}")
            found[name].append(train[name](replace(settings, seed=settings.seed + turn)))
    return tuple(tuple(runs) for runs in found.values())


def _write(result: DemoResult, command: str) -> None:
    num_seeds = len(result.sides[0])
    title = f"Training to a mean Dice of {result.target_dice:g}: MONAI and Voxelocity"
    notices = []
    if num_seeds < 3:
        notices = [
            f"n = {num_seeds}: when a training first reaches a target depends on its seed by a third and more. "
            "`voxelocity demo --seeds 3` repeats it."
        ]
    render_comparison(
        result.runs,
        result.page,
        title,
        target_dice=result.target_dice,
        notices=notices,
        sections=[
            Section(
                title="Every seed",
                tables=[result.seed_table],
                hint="The other figures on this page are medians over the seeds; curves are those of the first seed.",
            )
        ],
        summary=(
            "The same network, loss, optimizer, gradient clipping, augmentation, batch, patch, split and seeds on the "
            "same phantoms, one after the other on this machine. Seconds count from the start of each process, imports "
            "and caching included."
        ),
        command=command,
    )
    plain = comparison_to_json(result.runs, title=title, target_dice=result.target_dice, notices=notices)
    plain["seconds_to_target"] = {side[0].label: [run.seconds_to_target for run in side] for side in result.sides}
    result.page.with_suffix(".json").write_text(json.dumps(plain, indent=1) + "\n")


def plan_overrides(settings: ScriptSettings, *, num_training: int) -> dict[str, Any]:
    """The keys of the plan that are equal on all sides; the others are Voxelocity's to choose."""
    low, high = settings.window_hu
    steps_per_epoch = num_training / settings.images_per_batch
    augment = AugmentConfig.only(
        affine_probability=settings.affine_probability,
        rotation_share=1.0,
        rotation_degrees=(settings.rotate_degrees,) * 3,
        scale_share=1.0,
        scale_range=(1 - settings.zoom, 1 + settings.zoom),
        noise_probability=settings.noise_probability,
        noise_std_range=(0.0, settings.noise_std),
        intensity_scale_probability=settings.factor_probability,
        intensity_scale_range=(1 - settings.factor, 1 + settings.factor),
        intensity_shift_probability=settings.offset_probability,
        intensity_shift_range=(-settings.offset, settings.offset),
        gamma_probability=settings.gamma_probability,
        gamma_range=settings.gamma,
        gamma_keeps="range",
    )
    return {
        "data.prepare.spacing_mm": list(settings.spacing_mm),
        "data.prepare.intensity": {"mode": "window", "low": low, "high": high, "mean": low, "std": high - low},
        "data.patch.shape_voxel": list(settings.patch_voxel),
        "data.patch.draws_per_case": settings.patches_per_image,
        "data.patch.foreground_share": 0.5,
        "data.augment": augment.model_dump(mode="json"),
        "data.batch_size": settings.images_per_batch * settings.patches_per_image,
        "network.name": "unet",
        "network.widths": list(settings.channels),
        "network.strides": [[stride] * 3 for stride in settings.strides],
        "network.num_res_units": settings.num_res_units,
        "loss.include_background": True,
        "optimizer.name": "adamw",
        "optimizer.learning_rate": settings.learning_rate,
        "optimizer.weight_decay": settings.weight_decay,
        "optimizer.second_momentum": settings.second_momentum,
        "optimizer.clip_norm": settings.clip_norm,
        "schedule.warmup_share": 0.0,
        "schedule.decay": "constant",
        "window.overlap": settings.window_overlap,
        "train.target_dice": settings.target_dice,
        "train.validate_every_steps": max(1, round(settings.epochs_per_validation * steps_per_epoch)),
        "train.steps": 20_000,
    }


def _run_script(dataset: Path, out: Path, settings: ScriptSettings, recipe: Literal["plain", "fast"]) -> LabelledRun:
    record_path = out / f"{recipe}.json"
    record_path.unlink(missing_ok=True)
    # Without worker processes every core computes; `num_threads` says why it is one beside workers.
    threads = {"num_threads": cpu_budget()} if recipe == "fast" else {}
    spawned_unix_s = time.time()
    with phase(f"MONAI, {recipe}", color="silver"):
        _call(
            *(Path(monai_script.__file__), dataset, "--max-minutes", _MAX_MINUTES, "--out", record_path),
            *("--recipe", recipe, "--target-dice", settings.target_dice, "--fold", settings.fold),
            *("--seed", settings.seed, "--set", json.dumps(asdict(settings) | {"recipe": recipe} | threads)),
        )
    return _labelled(json.loads(record_path.read_text()), spawned_unix_s)


def _labelled(record: dict[str, Any], spawned_unix_s: float) -> LabelledRun:
    """A record of the script as a run whose clock began when its process was spawned."""
    import_s = record["began_unix_s"] - spawned_unix_s
    spent_s, wall_s = record["seconds_by_activity"], import_s + record["seconds"]
    is_fast = record["settings"]["recipe"] == "fast"
    stages = {
        "start-up": import_s + spent_s["start"],
        "training steps": spent_s["data"] + spent_s["step"],
        "validation on the way": spent_s["validation"],
    }
    return LabelledRun(
        label=_FAST if is_fast else _PLAIN,
        seconds_to_target=import_s + record["seconds_to_target"] if record["reached"] else None,
        seconds_per_epoch=record["seconds_per_epoch"],
        images_per_s=record["patches_per_second"],
        wall_s=wall_s,
        wait_share=spent_s["data"] / (spent_s["data"] + spent_s["step"]),
        dice_history=tuple((import_s + seconds, dice) for seconds, _, dice in record["dice_history"]),
        peak_host_bytes=record["peak_host_bytes"],
        stages=tuple(TimeShare(name=name, seconds=s, share=s / wall_s) for name, s in stages.items()),
        settings={
            "scans": "prepared once, kept by CacheDataset" if is_fast else "read and prepared again each epoch",
            "feed": "ThreadDataLoader" if is_fast else f"{record['settings']['num_workers']} worker processes",
            "augmentation": f"sample by sample in {'its thread' if is_fast else 'the workers'}",
            "precision": record["precision"],
        },
        machine=environment(),
        notes=(
            f"script: {Path(monai_script.__file__).name}, which runs alone and imports nothing of Voxelocity",
            *(() if is_fast else ("memory of the worker processes is not counted",)),
        ),
    )


def _run_ours(dataset: Path, out: Path, settings: ScriptSettings) -> LabelledRun:
    folder, config, cache = out / "voxelocity", out / "voxelocity.yaml", out / "cache"
    # The first run of a new user pays for filling the cache; so does this one.
    shutil.rmtree(cache, ignore_errors=True)
    training, _, _ = monai_script.read_cases(dataset, settings)
    overrides = plan_overrides(settings, num_training=len(training)) | {
        "data.cache.folder": str(cache),
        "seed": settings.seed,
    }
    config.write_text(yaml.safe_dump(overrides))
    _call(
        *("-m", "voxelocity", "train", dataset, "-o", folder, "--fold", settings.fold),
        *("--config", config, "--overwrite"),
    )
    facts = read_run(folder)
    num_threads = facts.plan["data"]["feed"]["num_threads"]
    return replace(
        label_run(facts, _OURS, target_dice=settings.target_dice),
        settings={
            "scans": f"prepared once, kept in the {facts.plan['data']['cache']['tier']} cache",
            "feed": "1 thread" if num_threads == 1 else f"{num_threads} threads",
            "augmentation": "in one pass from the cached volume",
            "precision": facts.plan["precision"]["compute"],
        },
        machine=environment(),
    )


def _call(*arguments: object) -> None:
    words = [str(argument) for argument in arguments]
    status = subprocess.run([sys.executable, *words], check=False).returncode
    if status != 0:
        raise VoxelocityError(
            f"demo: 'python {' '.join(words[:4])} ...' ended with status {status}; its message stands above"
        )
