"""The demonstration: the same network trained twice to the same Dice, plainly and with Voxelocity, side by side.

Both sides run in a process of their own, one after the other, and are timed alike: seconds from the start of the
process, imports included, to the first validation at which the held-out cases reach the target.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from voxelocity.core.errors import OutputError, VoxelocityError
from voxelocity.observe import environment, phase
from voxelocity.recipes.demo import plain
from voxelocity.recipes.demo.phantom import make_phantoms
from voxelocity.report import LabelledRun, comparison_to_json, label_run, read_run, render_comparison

_MAX_MINUTES = 6.0
# About 6 million voxels a case: still a quarter of a usual abdominal CT, but made in seconds.
_PHANTOM_SCALE = 1.25
_NUM_PHANTOMS = 22


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demonstration came to: both runs, plain first, and the page that shows them."""

    runs: tuple[LabelledRun, LabelledRun]
    target_dice: float
    page: Path


def run_demo(out: Path, *, seed: int, console: Console, settings: plain.PlainSettings | None = None) -> DemoResult:
    """Makes phantoms, trains both sides and writes `demo.html` and `demo.json` into `out`.

    Args:
        out: folder of the demonstration; the phantoms in it are used again, runs are replaced.
        seed: of the phantoms and of both trainings.
        console: where progress is shown.
        settings: network, loss, batch, patch, split, optimiser and target of both sides.

    Raises:
        OutputError: `out` cannot be written.
        VoxelocityError: one side failed.
    """
    settings = settings or plain.PlainSettings(seed=seed)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"demo: cannot make the folder {out} ({error.strerror}); choose another with -o") from None
    console.rule("1 of 3: phantoms")
    start = time.perf_counter()
    with phase("phantoms", color="tan"):
        dataset = make_phantoms(out / "phantoms", _NUM_PHANTOMS, seed=seed, scale=_PHANTOM_SCALE)
    console.print(f"{dataset} is ready after {time.perf_counter() - start:.0f} s", highlight=False)
    console.rule("2 of 3: the plain PyTorch and MONAI script")
    with phase("plain training", color="silver"):
        plain_run = _run_plain(dataset, out, settings)
    console.rule("3 of 3: the same training planned by Voxelocity")
    fast_run = _run_fast(dataset, out, settings)
    runs = (plain_run, fast_run)
    page = out / "demo.html"
    title = f"Training to a mean Dice of {settings.target_dice:g}, plainly and with Voxelocity"
    render_comparison(
        runs,
        page,
        title,
        target_dice=settings.target_dice,
        summary=(
            "The same network, loss, optimiser, batch size, patch size, split and seed on the same phantoms, one after "
            "the other on this machine. Seconds count from the start of each process, imports included."
        ),
        command=f"voxelocity demo --seed {seed}",
    )
    (out / "demo.json").write_text(
        json.dumps(comparison_to_json(runs, title=title, target_dice=settings.target_dice), indent=1) + "\n"
    )
    return DemoResult(runs=runs, target_dice=settings.target_dice, page=page)


def fast_overrides(settings: plain.PlainSettings, *, num_training: int) -> dict[str, Any]:
    """The keys of the plan that must be equal on both sides; all others are Voxelocity's to choose."""
    low, high = settings.window_hu
    steps_per_epoch = num_training / settings.images_per_batch
    return {
        "data.prepare.spacing_mm": list(settings.spacing_mm),
        "data.prepare.intensity": {"mode": "window", "low": low, "high": high, "mean": low, "std": high - low},
        "data.patch.shape_voxel": list(settings.patch_voxel),
        "data.patch.draws_per_case": settings.patches_per_image,
        "data.patch.foreground_share": 0.5,
        "data.batch_size": settings.images_per_batch * settings.patches_per_image,
        "network.name": "unet",
        "network.widths": list(settings.channels),
        "network.strides": [[stride] * 3 for stride in settings.strides],
        "network.num_res_units": settings.num_res_units,
        "loss.include_background": True,
        "optimizer.name": "adamw",
        "optimizer.learning_rate": settings.learning_rate,
        "optimizer.weight_decay": settings.weight_decay,
        "schedule.warmup_share": 0.0,
        "schedule.decay": "constant",
        "window.overlap": settings.window_overlap,
        "train.target_dice": settings.target_dice,
        "train.validate_every_steps": max(1, round(settings.epochs_per_validation * steps_per_epoch)),
        "train.steps": 20_000,
    }


def _run_plain(dataset: Path, out: Path, settings: plain.PlainSettings) -> LabelledRun:
    record_path = out / "plain.json"
    record_path.unlink(missing_ok=True)
    changes = {key: value for key, value in asdict(settings).items() if key not in ("target_dice", "fold", "seed")}
    spawned_unix_s = time.time()
    _call(
        Path(plain.__file__),
        dataset,
        *("--target-dice", settings.target_dice, "--fold", settings.fold, "--seed", settings.seed),
        *("--max-minutes", _MAX_MINUTES, "--set", json.dumps(changes), "--out", record_path),
    )
    record = json.loads(record_path.read_text())
    start_s = record["began_unix_s"] - spawned_unix_s
    return LabelledRun(
        label="plain PyTorch + MONAI",
        seconds_to_target=start_s + record["seconds_to_target"] if record["reached"] else None,
        seconds_per_epoch=record["seconds_per_epoch"],
        images_per_s=record["patches_per_second"],
        wall_s=start_s + record["seconds"],
        wait_share=_waiting_share(record),
        dice_history=tuple((start_s + seconds, dice) for seconds, _, dice in record["dice_history"]),
        settings={
            "scans": "read and prepared again each epoch",
            "feed": f"{settings.num_workers} worker processes",
            "augmentation": "sample by sample in the workers",
            "precision": record["precision"],
        },
        machine=environment(),
        notes=(f"script: {Path(plain.__file__).name}, which runs alone and imports nothing of Voxelocity",),
    )


def _waiting_share(record: dict[str, Any]) -> float:
    spent_s = record["seconds_by_activity"]
    return float(spent_s["data"] / (spent_s["data"] + spent_s["step"]))


def _run_fast(dataset: Path, out: Path, settings: plain.PlainSettings) -> LabelledRun:
    folder, config, cache = out / "fast", out / "fast.yaml", out / "cache"
    # The first run of a new user pays for filling the cache; so does this one.
    shutil.rmtree(cache, ignore_errors=True)
    training, _, _ = plain.read_cases(dataset, settings)
    overrides = fast_overrides(settings, num_training=len(training)) | {
        "data.cache.folder": str(cache),
        "seed": settings.seed,
    }
    config.write_text(yaml.safe_dump(overrides))
    _call(
        *("-m", "voxelocity", "train", dataset, "-o", folder, "--fold", settings.fold),
        *("--config", config, "--overwrite"),
    )
    run = label_run(read_run(folder), "Voxelocity", target_dice=settings.target_dice)
    plan = read_run(folder).plan
    num_threads = plan["data"]["feed"]["num_threads"]
    return replace(
        run,
        settings={
            "scans": f"prepared once, kept in the {plan['data']['cache']['tier']} cache",
            "feed": "1 thread" if num_threads == 1 else f"{num_threads} threads",
            "augmentation": "in one pass from the cached volume",
            "precision": plan["precision"]["compute"],
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
