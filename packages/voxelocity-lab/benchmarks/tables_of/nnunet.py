"""The tables of nnU-Net's trainer and preprocessing, and ours: what their results share, and what they cost."""

from __future__ import annotations

import statistics
from typing import Any

from tables_of.results import columns, of_records, source_line
from voxelocity_observe.core.quantities import bytes_text, share_text, signed_text

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
    return [*table, "", _source(record, "distribution")]


@of_records("nnunet_trainer.json")
def rate_lines(record: dict[str, Any]) -> list[str]:
    """CPU time of a patch, and batches a second, of nnU-Net with its best number of workers and of ours."""
    table = columns(
        record["found"]["rates"].items(),
        ("data set", lambda row: f"{row[0]}, {' x '.join(map(str, row[1]['patch']))}"),
        ("nnU-Net, CPU ms a patch", lambda row: _median(row[1]["cpu_ms_a_patch"][row[1]["quickest_of_nnunet"]])),
        ("ours", lambda row: _median(row[1]["cpu_ms_a_patch"]["voxelocity"])),
        ("times less", lambda row: _range(row[1]["cpu_ratios"])),
        ("times as many batches a second", lambda row: _range(row[1]["rate_ratios"])),
    )
    return [*table, "", _source(record, "rates")]


@of_records("nnunet_trainer.json")
def iteration_lines(record: dict[str, Any]) -> list[str]:
    """Iterations a second of nnU-Net's own step, fed by its best number of workers and by our feed."""
    table = columns(
        record["found"]["iterations"].items(),
        ("data set", lambda row: row[0]),
        ("nnU-Net, iterations a second", lambda row: _median(row[1]["batches_per_s"][row[1]["quickest_of_nnunet"]])),
        ("with our feed", lambda row: _median(row[1]["batches_per_s"]["voxelocity"])),
        ("times as many", lambda row: _range(row[1]["rate_ratios"])),
    )
    return [*table, "", _source(record, "iterations")]


@of_records("nnunet_preprocess.json")
def preprocess_lines(record: dict[str, Any]) -> list[str]:
    """Seconds and memory of both preprocessors, and what differs in what they store."""
    found = record["found"]
    rows = [(name, part, set_[part]) for name, set_ in found.items() for part in ("fingerprint", "cases")]
    cost = columns(
        rows,
        ("data set", lambda row: row[0]),
        ("part", lambda row: row[1]),
        ("nnU-Net, seconds", lambda row: _median(row[2]["seconds"]["nnunet"])),
        ("ours", lambda row: _median(row[2]["seconds"]["voxelocity"])),
        ("times sooner", lambda row: _range(row[2]["ratios_of_seconds"])),
        ("times less CPU", lambda row: _range(row[2]["ratios_of_cpu_s"])),
        ("nnU-Net, peak memory", lambda row: bytes_text(statistics.median(row[2]["most_bytes"]["nnunet"]))),
        ("ours", lambda row: bytes_text(statistics.median(row[2]["most_bytes"]["voxelocity"]))),
    )
    equality = columns(
        ((name, set_["differences"]) for name, set_ in found.items()),
        ("data set", lambda row: row[0]),
        ("cases compared", lambda row: row[1]["num_cases"]),
        ("voxels", lambda row: f"{row[1]['num_voxels']:,}"),
        ("that differ", lambda row: row[1]["voxels_that_differ"]),
        ("by at most", lambda row: f"{row[1]['largest_of_intensity']:.0e}"),
        ("labels that differ", lambda row: row[1]["labels_that_differ"]),
        ("fingerprints", lambda row: "equal" if row[1]["fingerprints_are_equal"] else "differ"),
    )
    rounds = len(rows[0][2]["ratios_of_seconds"])
    return [*cost, "", *equality, "", f"Medians of {rounds} alternating runs. {source_line(record)}"]


def _source(record: dict[str, Any], *sections: str) -> str:
    """Where sections of the record come from, which may have been measured at another commit than the last one."""
    command = record["command"].partition(" --only")[0]
    known = {fact: record.get(f"{fact}s", {}).get(sections[0]) for fact in ("commit", "cpu")}
    machine = {**record["environment"], **{fact: value for fact, value in known.items() if value}}
    return source_line({**record, "command": f"{command} --only {' '.join(sections)}", "environment": machine})


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}"


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


@of_records("nnunet_trainer.json")
def learning_lines(record: dict[str, Any]) -> list[str]:
    """The losses inside the band, and the Dice after few steps and after more: of our trainers and nnU-Net's own."""
    found = record["found"]
    parts = ("longer", "training", "fast")
    sides = [(part, name, runs) for part in parts for name, runs in found[part]["runs"].items()]
    table = columns(
        # The first three seeds of nnU-Net's own again.
        [side for side in sides if side[:2] != ("fast", "nnUNetTrainer")],
        ("steps", lambda side: f"{found[side[0]]['num_steps']:,}"),
        ("trainer", lambda side: _NAMES[side[1]]),
        ("seeds", lambda side: len(side[2])),
        ("mean Dice", lambda side: f"{statistics.fmean(run['dice'] for run in side[2]):.3f}"),
        ("difference, seed by seed", lambda side: _difference(side[1], found[side[0]]["dice_difference"])),
        ("CPU seconds of a training", lambda side: f"{statistics.median(run['cpu_s'] for run in side[2]):.1f}"),
    )
    about = found["training"]
    shares, others = (about[name] for name in ("share_in_band", "share_in_band_of_the_other_seeds"))
    band = ", ".join(map(share_text, shares))
    return [
        *table,
        "",
        f"Of the trainings of {about['num_steps']} steps, windows of {about['window']} losses inside the 95 % "
        f"prediction band of nnU-Net's five seeds: {band} of ours; {min(others) * 100:.0f} to "
        f"{max(others) * 100:.0f} % of one of its seeds in the band of the other four. Patches of "
        f"{' x '.join(map(str, about['patch']))} voxels, a network of 8, 16 and 32 features.",
        "",
        _source(record, *parts),
    ]


def _difference(name: str, about: dict[str, Any]) -> str:
    if name == "nnUNetTrainer":
        return ""
    low, high = about["interval"]
    return f"{signed_text(about['mean'])} ({signed_text(low)} to {signed_text(high)})"
