"""docs/measured.md, which has everything."""

from __future__ import annotations

from typing import Any

from tables_of.comparisons import side_by_side
from tables_of.results import demo_words, load, markdown_table, refused
from voxelocity.core.quantities import bytes_text, duration_text


def measured_page() -> str:
    """docs/measured.md."""
    lines = ["# Measured", "", "Made by `python benchmarks/tables.py` from the files in `benchmarks/results/`.", ""]
    lines += ["## Train and predict, from outside", "", "Fresh processes, as a user runs them.", ""]
    lines += markdown_table(
        ("data set", "budget", "fold", "seed", "wall time", "steps", "Dice (own grid)", "Dice of the written files",
         "largest gap to the run's table", "waiting for data", "date"),
        (
            (_scenario_words(r), r["time_budget"], _fold(r), r["seed"], duration_text(r["wall_s"]), r["steps"],
             f"{r['mean_dice']:.4f}", f"{r['predicted_dice']:.4f}", f"{r['largest_gap_to_table']:.1e}",
             f"{r['wait_share']:.1%}", r["date"])
            for r in load("main_job_*.json")
        ),
    )  # fmt: skip
    lines += ["", *(f"`{r['command']}`  " for r in load("main_job_*.json")), ""]
    for record in load("fresh_clone.json"):
        lines += ["## A fresh clone", "", "Installation included; n = 1.", ""]
        lines += markdown_table(
            ("command", "status", "time"),
            [
                *(
                    (f"`make {t}{options}`", record[f"{t}_status"], duration_text(record[f"{t}_s"]))
                    for t, options in (("demo", " SEEDS=3"), ("test", ""))
                ),
                ("`voxelocity --help` (median of 9)", 0, f"{record['help_s']:.2f} s"),
            ],
        )
        lines += ["", demo_words(record["demo"]) + ".", ""]
    for record in load("bench_*.json"):
        lines += side_by_side(record)
    if left_out := refused():
        lines += ["## Not shown", ""]
        lines += ["Nobody could repeat these measurements. No table shows them until they are taken again.", ""]
        lines += [*(f"- {line}" for line in left_out), ""]
    lines += ["## Hardware", ""]
    lines += markdown_table(
        ("file", "CPU", "cores", "memory", "GPU", "torch", "MONAI", "commit"),
        ((r["file"], *_hardware(r["environment"])) for r in load("*.json") if "environment" in r),
    )
    return "\n".join(lines) + "\n"


def _fold(record: dict[str, Any]) -> str:
    return str(record["command"]).partition("--fold ")[2].split()[0]


def _scenario_words(record: dict[str, Any]) -> str:
    """The scenario, and whether it is judged on what it was trained on."""
    return f"{record['scenario']}{', **trained on the case itself**' if '--fold all' in record['command'] else ''}"


def _hardware(environment: dict[str, Any]) -> tuple[str, ...]:
    keys = ("cpu", "num_cpus", "memory_bytes", "gpu", "torch", "monai", "commit")
    values = {key: environment.get(key) for key in keys}
    values["memory_bytes"] = bytes_text(values["memory_bytes"])
    return tuple("none" if values[key] is None else str(values[key]) for key in keys)
