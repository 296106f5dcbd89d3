"""docs/measured.md, which has everything."""

from __future__ import annotations

from statistics import median
from typing import Any

from tables_of.comparisons import side_by_side
from tables_of.races import full_lines
from tables_of.results import load, markdown_table, refused, source_line
from voxelocity_observe.core.quantities import bytes_text, duration_text


def measured_page() -> str:
    """docs/measured.md."""
    lines = [
        "# Measured",
        "",
        "Made by `tables.py` in `packages/voxelocity-lab/benchmarks` from the records there.",
        "",
    ]
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
        lines += fresh_clone_lines(record)
    lines += full_lines()
    for record in load("bench_*.json"):
        lines += side_by_side(record)
    for record in load("triton_kernels.json"):
        lines += kernel_lines(record)
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


def fresh_clone_lines(record: dict[str, Any]) -> list[str]:
    """What a new user waits for: installation, demo, first steps and tests."""
    found = record["found"]
    rows = [
        (f"`{run['command']}`{words}", run["status"], duration_text(run["wall_s"]), f"{run['cpu_s']:.0f}")
        for run, words in [
            (found["install"], ", installation"),
            *((run, words) for run, words in zip(found["demo"]["runs"], ("", ", again"), strict=True)),
            *([(found["test"], "")] if "test" in found else []),
        ]
    ]
    heads = ("training of 60 steps, by home folder", "first step after (s)", "CPU seconds of all", "n")
    trainings = [
        (kind, *(_spread([run[key] for run in runs]) for key in ("first_step_s", "cpu_s")), len(runs))
        for kind, runs in found["trainings"].items()
    ]
    return [
        *("## A fresh clone", "", "On an empty home folder; n = 1 where nothing else is said.", ""),
        *markdown_table(("command", "status", "time", "CPU seconds"), rows),
        "",
        *markdown_table(heads, trainings),
        "",
        f"`voxelocity --help`: {found['help_s']:.2f} s (median of 9). The demo's verdict: {found['demo']['verdict']}",
        "",
    ]


def _spread(values: list[float]) -> str:
    """Median, least and most."""
    return f"{median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def kernel_lines(record: dict[str, Any]) -> list[str]:
    """For each kernel, over its forms and all architectures: registers, the largest accesses, and what was spilled."""
    kernels: dict[str, list[dict[str, Any]]] = {}
    for row in record["kernels"]:
        kernels.setdefault(row["kernel"], []).append(row)
    lines = ["## Triton kernels", "", f"Compiled ahead for {', '.join(record['architectures'])}; nothing was run.", ""]
    lines += markdown_table(
        ("kernel", "forms", "registers a thread, at most", "largest load and store, bytes a thread", "spilled bytes"),
        (
            (
                f"`{name}`",
                len(rows),
                max(max(_figures(row["registers"])) for row in rows),
                " and ".join(str(_largest(rows, kind)) for kind in ("load", "store")),
                sum(sum(_figures(row[kind])) for row in rows for kind in ("spill_store_bytes", "spill_load_bytes")),
            )
            for name, rows in kernels.items()
        ),
    )
    return [*lines, "", f"{source_line(record)} Triton {record['triton']}.", ""]


def _figures(value: int | str) -> list[int]:
    """A figure of a row, which is one for all architectures or one for each."""
    return [int(part) for part in str(value).split()]


def _largest(rows: list[dict[str, Any]], kind: str) -> int:
    sizes = [access.removeprefix(kind) for row in rows for access in row["accesses"] if access.startswith(kind)]
    return max(map(int, sizes), default=0)


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
