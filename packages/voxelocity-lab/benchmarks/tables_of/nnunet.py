"""The tables of nnU-Net's trainer and ours: what their batches share, and what they learn."""

from __future__ import annotations

import statistics
from typing import Any

from tables_of.results import columns, of_records, source_line
from voxelocity_observe.core.quantities import share_text, signed_text

_NAMES = {
    "nnUNetTrainer": "nnU-Net's own",
    "nnUNetTrainerVoxelocity": "ours",
    "nnUNetTrainerVoxelocityFast": "ours, `Fast`",
}


@of_records("nnunet_trainer.json")
def batch_lines(record: dict[str, Any]) -> list[str]:
    """For each data set: the noise compared, the labels that differ; all else was equal."""
    table = columns(
        record["found"]["distribution"].items(),
        ("data set", lambda row: row[0]),
        ("patches", lambda row: row[1]["num_patches"]),
        ("p of the noise", lambda row: f"{row[1]['p']['noise over its deviation']:.2f}"),
        ("labels that differ, per million", lambda row: f"{row[1]['label_share'] * 1e6:.1f}"),
    )
    return [*table, "", source_line(record)]


@of_records("nnunet_trainer.json")
def learning_lines(record: dict[str, Any]) -> list[str]:
    """The losses inside the band, and the Dice after: of our trainers against nnU-Net's own."""
    found = record["found"]
    sides = [(name, part, runs) for part in ("training", "fast") for name, runs in found[part]["runs"].items()][:4]
    table = columns(
        [side for side in sides if (side[0], side[1]) != ("nnUNetTrainer", "fast")],
        ("trainer", lambda side: _NAMES[side[0]]),
        ("seeds", lambda side: len(side[2])),
        ("mean Dice", lambda side: f"{statistics.fmean(run['dice'] for run in side[2]):.3f}"),
        ("difference, seed by seed", lambda side: _difference(side, found)),
        ("CPU seconds of a training", lambda side: f"{statistics.median(run['cpu_s'] for run in side[2]):.1f}"),
    )
    shares, others = (found["training"][name] for name in ("share_in_band", "share_in_band_of_the_other_seeds"))
    band = ", ".join(map(share_text, shares))
    return [
        *table,
        "",
        f"Windows of {found['training']['window']} losses inside the 95 % prediction band of nnU-Net's five seeds: "
        f"{band} of ours; {min(others) * 100:.0f} to {max(others) * 100:.0f} % of one of its seeds in the band of the "
        f"other four. {found['training']['num_steps']} steps, patches of "
        f"{' x '.join(map(str, found['training']['patch']))} voxels, a network of 8, 16 and 32 features.",
        "",
        source_line(record),
    ]


def _difference(side: tuple[str, str, Any], found: dict[str, Any]) -> str:
    if side[0] == "nnUNetTrainer":
        return ""
    about = found[side[1]]["dice_difference"]
    low, high = about["interval"]
    return f"{signed_text(about['mean'])} ({signed_text(low)} to {signed_text(high)})"
