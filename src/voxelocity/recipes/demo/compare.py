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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from voxelocity.core.errors import OutputError, VoxelocityError
from voxelocity.observe import environment
from voxelocity.recipes.demo import plain
from voxelocity.recipes.demo.phantom import make_phantoms
from voxelocity.report import LabelledRun, RunFacts, comparison_to_json, read_run, render_comparison

_MAX_MINUTES = 6.0


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demonstration came to: both runs, plain first, and the page that shows them."""

    runs: tuple[LabelledRun, LabelledRun]
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
    dataset = make_phantoms(out / "phantoms", seed=seed)
    console.print(f"{dataset} is ready after {time.perf_counter() - start:.0f} s", highlight=False)
    console.rule("2 of 3: the plain PyTorch and MONAI script")
    plain_run = _run_plain(dataset, out, settings)
    console.rule("3 of 3: the same training planned by Voxelocity")
    fast_run = _run_fast(dataset, out, settings)
    runs = (plain_run, fast_run)
    page = out / "demo.html"
    title = f"Training to a mean Dice of {settings.target_dice:g}, plainly and with Voxelocity"
    render_comparison(runs, page, title=title, target_dice=settings.target_dice, environment=environment())
    (out / "demo.json").write_text(json.dumps(comparison_to_json(runs), indent=1) + "\n")
    return DemoResult(runs=runs, page=page)


def fast_overrides(settings: plain.PlainSettings) -> dict[str, Any]:
    """The keys of the plan that must be equal on both sides; all others are Voxelocity's to choose."""
    low, high = settings.window_hu
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
        "train.steps": 100_000,
    }


def _run_plain(dataset: Path, out: Path, settings: plain.PlainSettings) -> LabelledRun:
    record_path = out / "plain.json"
    record_path.unlink(missing_ok=True)
    changes = {key: value for key, value in asdict(settings).items() if key not in ("target_dice", "fold", "seed")}
    _call(
        [str(Path(plain.__file__)), str(dataset), "--target-dice", str(settings.target_dice)]
        + ["--fold", str(settings.fold), "--seed", str(settings.seed), "--max-minutes", str(_MAX_MINUTES)]
        + ["--set", json.dumps(changes), "--out", str(record_path)]
    )
    record = json.loads(record_path.read_text())
    start_s = record["start_s"]
    return LabelledRun(
        label="plain PyTorch + MONAI",
        seconds_to_target=start_s + record["seconds_to_target"] if record["reached"] else None,
        seconds_per_epoch=record["seconds_per_epoch"],
        images_per_s=record["patches_per_second"],
        dice_history=tuple((start_s + seconds, dice) for seconds, _, dice in record["dice_history"]),
        wall_s=start_s + record["seconds"],
        wait_share=record["seconds_by_activity"]["data"] / record["seconds"],
        settings={"script": "src/voxelocity/recipes/demo/plain.py", **record["settings"]},
    )


def _run_fast(dataset: Path, out: Path, settings: plain.PlainSettings) -> LabelledRun:
    folder, config, cache = out / "fast", out / "fast.yaml", out / "cache"
    # The first run of a new user pays for filling the cache; so does this one.
    shutil.rmtree(cache, ignore_errors=True)
    overrides = fast_overrides(settings) | {"data.cache.folder": str(cache), "seed": settings.seed}
    config.write_text(yaml.safe_dump(overrides))
    _call(
        ["-m", "voxelocity", "train", str(dataset), "-o", str(folder), "--fold", str(settings.fold)]
        + ["--config", str(config), "--overwrite"]
    )
    facts = read_run(folder)
    reached_s = next((v.time_s for v in facts.validations if v.mean_dice >= settings.target_dice), None)
    steps_s = sum(window.seconds for window in facts.steps)
    num_images = sum(window.num_images for window in facts.steps)
    per_epoch = facts.dataset.num_training * settings.patches_per_image
    return LabelledRun(
        label="Voxelocity",
        seconds_to_target=reached_s,
        seconds_per_epoch=steps_s / num_images * per_epoch,
        images_per_s=num_images / steps_s,
        dice_history=tuple((v.time_s, v.mean_dice) for v in facts.validations),
        wall_s=_wall_s(facts),
        wait_share=sum(window.wait_s for window in facts.steps) / steps_s,
        settings={"plan": str(folder / "run.yaml")},
    )


def _wall_s(facts: RunFacts) -> float:
    assert facts.finish is not None, "the training process ended with status 0"
    return facts.finish.seconds


def _call(arguments: Sequence[str]) -> None:
    status = subprocess.run([sys.executable, *arguments], check=False).returncode
    if status != 0:
        raise VoxelocityError(
            f"demo: '{' '.join(['python', *arguments[:4]])} ...' ended with status {status}; its message stands above"
        )
