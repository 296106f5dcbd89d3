"""Tuning on this machine: hippocampus, head-and-neck CT and a full-size MR, with at most 4 and 8 GB of memory.

For each: what was chosen, trials and minutes, images a second and seconds of a validation before and after, the images
a second of MONAI's own recipe on the same network, and the Dice of paired trainings before and after with its interval.

python benchmarks/tune.py                  # all, about an hour and a quarter on two cores
python benchmarks/tune.py --only hippocampus-4GB
python benchmarks/tune.py --tiny --out DIR # in a few minutes, to see that it runs; the figures mean nothing
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import voxelocity as vx
from harness import measure_each, real_data
from voxelocity.core.cases import Fold
from voxelocity.planning import Planned
from voxelocity.tuning.dice import Length, compare_by_dice
from voxelocity.tuning.page import MeasuredSettings, before_and_after
from voxelocity.tuning.result import TuneResult
from voxelocity.tuning.task import TrialScale
from voxelocity.tuning.trial import TrialLimits
from voxelocity.tuning.tune import tune
from voxelocity_lab.bench.comparison import spread
from voxelocity_lab.bench.race.job import LIMITS, PEER_KEYS
from voxelocity_lab.bench.race.sides import Race, train_side
from voxelocity_observe.core.errors import VoxelocityError

GB = 10**9
# `--tiny` is taken out before the options are parsed that all such scripts have.
TINY = "--tiny" in sys.argv


@dataclass(frozen=True, kw_only=True)
class Set:
    """A data set and how much is measured on it.

    Attributes:
        folder: below the real data.
        fold: that is held out; "all" for a single case.
        keys: of the plan, without which MONAI's script has no counterpart.
    """

    folder: str
    fold: Fold = 0
    keys: Mapping[str, Any] = field(default_factory=dict)
    trials: int = 2 if TINY else 12
    num_pairs: int = 2 if TINY else 3
    # Of each training of a pair, and of MONAI's.
    training_s: float = 20.0 if TINY else 45.0
    scale: TrialScale = TrialScale(window_s=0.2, num_windows=2, num_cases=2, validation_s=2.0) if TINY else TrialScale()


SETS = {
    # The main job on real input: 208 crops of 35 x 50 x 36.
    "hippocampus": Set(folder="hippocampus"),
    # Several organs of different size: 20 CT of 128^3.
    "openkbp": Set(
        # Classes are pairs of left and right, which MONAI's flips do not swap.
        folder="openkbp_headneck_ct",
        keys={"data.augment.flip_probability": [0.0, 0.5, 0.5]},
    ),
    # One scan as hospitals have them: 512 x 512 x 120, the tumor in 0.04 % of it.
    "mr-512x512x120": Set(folder="vs_seg_001", fold="all"),
}
LIMITS_GB = (4, 8)


def measure(data_set: Set, limit_gb: int) -> dict[str, Any]:
    """The row of the table for one data set and limit."""
    dataset = real_data() / data_set.folder
    with tempfile.TemporaryDirectory(prefix="tune-") as name:
        work = Path(name)
        result = tune(
            vx.open(dataset), work / "tune", trials=data_set.trials, memory_limit_bytes=limit_gb * GB,
            # nnU-Net's network and AdamW: what the peers' script can follow is what is tuned.
            overrides={**LIMITS, **PEER_KEYS, **data_set.keys}, scale=data_set.scale, keep=False,
            cache_folder=work / "cache", fold=data_set.fold,
        )  # fmt: skip
        assert isinstance(result, TuneResult)
        before, after = before_and_after(result)
        peaks = [trial.outcome.peak_host_bytes for trial in result.study.winner_trials]
        return {
            "data": data_set.folder,
            "limit_bytes": limit_gb * GB,
            "trials": len(result.study.trials),
            "failed": sum(not trial.outcome.is_finished for trial in result.study.trials),
            "seconds": result.study.seconds,
            "chosen": dict(result.values),
            "time_ratios": list(result.time_ratios),
            "before": _figures(before),
            "after": _figures(after),
            "peak_bytes": max(peaks, default=None),
            "is_within_limit": all(peak <= limit_gb * GB for peak in peaks),
            "monai": _monai(data_set, result.planned, dataset, work),
            "dice": _dice(data_set, result, limit_gb, work),
        }


def _figures(side: MeasuredSettings | None) -> dict[str, Any] | None:
    if side is None:
        return None
    values = {"images_per_s": side.rates, "validation_s": side.validations_s}
    spreads = {name: {**spread(figures), "n": len(figures)} for name, figures in values.items()}
    return {**spreads, "peak_bytes": side.peak_bytes}


def _monai(data_set: Set, planned: Planned, dataset: Path, work: Path) -> dict[str, Any]:
    """Images a second of MONAI's fast recipe and of its plain script, with the same network, patches and batch."""
    out = work / "monai"
    out.mkdir()
    race = Race(dataset=dataset, planned=planned, out=out, target_dice=0.0, limit_s=data_set.training_s)
    found: dict[str, Any] = {}
    for side in ("fast", "plain"):
        try:
            found[side] = train_side(side, race, seed=0).images_per_s
        except VoxelocityError as error:
            # A plan without a counterpart in the script, or a script that fails: the row says so.
            found[side], found[f"{side}_why_not"] = None, str(error)
    return found


def _dice(data_set: Set, result: TuneResult, limit_gb: int, work: Path) -> dict[str, Any] | None:
    """Dice of trainings of equal time before and after; None where nothing changes."""
    if not result.values:
        return None
    limits = TrialLimits(seconds=10 * data_set.training_s, host_bytes=limit_gb * GB)
    compared = compare_by_dice(
        result.planned, work / "pairs", [result.values], first=Length(seconds=data_set.training_s),
        num_pairs=data_set.num_pairs, limits=limits,
    )  # fmt: skip
    if compared.parity is None:
        return None
    overall = compared.parity.overall
    return {
        "before": overall.first,
        "after": overall.second,
        "difference": overall.difference,
        "low": overall.low,
        "high": overall.high,
        "judgment": overall.judgment,
        "pairs": len(compared.before),
        "seconds": data_set.training_s,
    }


def main() -> None:
    if TINY:
        sys.argv.remove("--tiny")
    measurements: dict[str, Callable[[], Any]] = {
        f"{name}-{limit}GB": partial(measure, data_set, limit) for name, data_set in SETS.items() for limit in LIMITS_GB
    }
    measure_each("tune", __doc__, measurements)


if __name__ == "__main__":
    main()
