"""The careful race: one training on four sides, a plain MONAI script, MONAI's fast recipe by each import, Voxelocity.

Each side runs in its own process, one after another, and is timed the same way: seconds from the start of the process,
imports included, to the first validation at which the held-out cases reach the target. Network, loss, augmentation,
batch, patch and split are the same on all sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from voxelocity_lab.bench.body import make_bodies
from voxelocity_lab.bench.phantom import writable_folder
from voxelocity_lab.bench.race.rounds import Outcome, run_rounds
from voxelocity_lab.bench.race.scenario import PHANTOM_KEYS, PHANTOM_PEER_KEYS
from voxelocity_lab.bench.race.sides import SideName, plan_race
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.spans import phase

_LIMIT_S = 360.0
# About 6 million voxels a case: still a quarter of a usual abdominal CT, but made in seconds.
_PHANTOM_SCALE = 1.25
_NUM_PHANTOMS = 22
_TARGET_DICE = 0.88
SIDES: tuple[SideName, ...] = ("plain", "fast", "switched", "ours")


def run_demo(
    out: Path,
    *,
    seed: int,
    num_seeds: int = 1,
    console: Console,
    target_dice: float = _TARGET_DICE,
    keys: Mapping[str, Any] | None = None,
    epochs_per_validation: int = 2,
) -> Outcome:
    """Makes phantoms, trains every side with each seed and writes `demo.html` and `demo.json` into `out`.

    Phantoms in `out` are reused, runs are replaced. The first training of each side has the seed of the phantoms,
    further ones the next seeds. `keys` are those of the plan, equal on all sides; `PHANTOM_KEYS` if not given.

    Raises:
        OutputError: `out` cannot be written.
        VoxelocityError: one side failed.
    """
    writable_folder(out, option="-o", where="demo")
    console.rule("phantoms")
    watch = Stopwatch()
    with phase("phantoms", color="tan"):
        dataset = make_bodies(out / "phantoms", _NUM_PHANTOMS, seed=seed, scale=_PHANTOM_SCALE)
    console.print(f"{dataset} is ready after {watch.elapsed_s:.0f} s", highlight=False)
    keys = PHANTOM_KEYS if keys is None else keys
    race = plan_race(
        dataset,
        out,
        overrides={**PHANTOM_PEER_KEYS, **keys},
        keys=keys,
        target_dice=target_dice,
        limit_s=_LIMIT_S,
        epochs_per_validation=epochs_per_validation,
    )
    outcome = run_rounds(
        race, SIDES, range(seed, seed + num_seeds), on_start=lambda side, at: console.rule(f"{side}, seed {at}")
    )
    outcome.write(
        "demo",
        title=f"Training to a mean Dice of {target_dice:g}: MONAI and Voxelocity",
        summary=(
            "The same network, loss, gradient clipping, augmentation, batch, patch, split and seeds on the same "
            "phantoms, one after another on this machine. MONAI's scripts train with AdamW; Voxelocity with Muon, "
            "augmentation that ramps up over the first epochs, and a running average of its weights. Seconds count "
            "from the start of each process, imports and caching included."
        ),
        command=f"voxelocity demo --seed {seed} --seeds {num_seeds}",
    )
    return outcome
