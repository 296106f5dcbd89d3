"""Tables of the README and of docs/measured.md, made from the result files and from nothing else.

python benchmarks/tables.py          # rewrite them
python benchmarks/tables.py --check  # status 1 if they are not what the result files say
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from voxelocity.report import bytes_text, duration_text
from voxelocity.report.quantities import factor_text

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README, MEASURED = ROOT / "README.md", ROOT / "docs" / "measured.md"
_BEGIN = "<!-- figures: made by `python benchmarks/tables.py` from benchmarks/results -->"
_END = "<!-- /figures -->"


def load(pattern: str) -> list[dict[str, Any]]:
    """Result files by name, each with its own name under "file"."""
    return [json.loads(path.read_text()) | {"file": path.name} for path in sorted(RESULTS.glob(pattern))]


def readme_table() -> str:
    """The few figures of the README."""
    rows = [
        (
            f"hippocampus MR, 208 cases, `--time-budget {record['time_budget']}`",
            f"mean foreground Dice {record['mean_dice']:.3f} of the held-out fold, after "
            f"{duration_text(record['wall_s'])}",
        )
        for record in sorted(load("main_job_hippocampus_*m.json"), key=lambda record: record["wall_s"])
    ]
    rows += [
        ("demo: the same training, plainly and with Voxelocity", _demo_words(record["demo"]))
        for record in load("fresh_clone.json")
    ]
    return "\n".join(["| on 2 CPU cores, no GPU | measured |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)])


def measured_page() -> str:
    """docs/measured.md."""
    lines = ["# Measured", "", "Made by `python benchmarks/tables.py` from the files in `benchmarks/results/`.", ""]
    lines += ["## Train and predict, from outside", "", "Fresh processes, as a user runs them.", ""]
    lines += _table(
        ("data set", "budget", "seed", "wall time", "steps", "Dice (own grid)", "Dice of the written files",
         "largest gap to the run's table", "waiting for data", "date"),
        (
            (r["scenario"], r["time_budget"], r["seed"], duration_text(r["wall_s"]), r["steps"],
             f"{r['mean_dice']:.4f}", f"{r['predicted_dice']:.4f}", f"{r['largest_gap_to_table']:.1e}",
             f"{r['wait_share']:.1%}", r["date"])
            for r in load("main_job_*.json")
        ),
    )  # fmt: skip
    lines += ["", *(f"`{r['command']}`  " for r in load("main_job_*.json")), ""]
    for record in load("fresh_clone.json"):
        lines += ["## A fresh clone", "", "Installation included; n = 1.", ""]
        lines += _table(
            ("command", "status", "time"),
            [
                *((f"`make {t}`", record[f"{t}_status"], duration_text(record[f"{t}_s"])) for t in ("demo", "test")),
                ("`voxelocity --help` (median of 9)", 0, f"{record['help_s']:.2f} s"),
            ],
        )
        lines += ["", _demo_words(record["demo"]) + ".", ""]
    for record in load("cache_read.json"):
        lines += _cache_lines(record)
    for record in load("bench_*.json"):
        lines += _side_by_side(record)
    lines += ["## Hardware", ""]
    lines += _table(
        ("file", "CPU", "cores", "memory", "GPU", "torch", "MONAI", "commit"),
        ((r["file"], *_hardware(r["environment"])) for r in load("*.json") if "environment" in r),
    )
    return "\n".join(lines) + "\n"


def _cache_lines(record: dict[str, Any]) -> list[str]:
    shape = " x ".join(str(n) for n in record["shape"])
    num_reads = next(iter(record["variants"].values()))["warm"]["n"]
    lines = ["## A patch from a disk tier", ""]
    lines += [f"96³ voxels of a {shape} int16 CT with uint8 label, from an entry not opened before. Median and "
              f"quartiles of {num_reads}; warm: in the page cache. Load average of the machine before: "
              f"{record['load_average']:.1f}.", ""]  # fmt: skip
    lines += _table(
        ("kept as", "warm", "cold", "bytes a voxel", "written in"),
        (
            (name, _spread(found["warm"]), _spread(found.get("cold")), f"{found['bytes_per_voxel']:.2f}",
             duration_text(found["put_s"]))
            for name, found in record["variants"].items()
        ),
    )  # fmt: skip
    return [*lines, "", f"`{' '.join(record['command'])}`", ""]


def _spread(found: dict[str, float] | None) -> str:
    if found is None:
        return "n/a"
    return f"{found['median_ms']:.2f} ms ({found['low_ms']:.2f} to {found['high_ms']:.2f})"


def _side_by_side(record: dict[str, Any]) -> list[str]:
    """All comparisons of one `voxelocity bench` scenario."""
    lines = [f"## Side by side: {record['benchmark']}", "", f"`{record['command']}`, {record['date']}", ""]
    for comparison in record["comparisons"]:
        lines += [f"**{comparison['title']}**", ""]
        lines += _table(
            ("", comparison["unit"], "least", "most", "n", "ours better by", ""),
            (
                (
                    side["name"],
                    *(_figure(side.get(key)) for key in ("median", "low", "high")),
                    side["n"],
                    factor_text((side.get("ours_better_by") or {}).get("median")),
                    side["note"],
                )
                for side in comparison["sides"]
            ),
        )
        lines += ["", *([comparison["note"] + ".", ""] if comparison["note"] else [])]
    return lines


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _demo_words(demo: dict[str, Any]) -> str:
    plain, fast = demo["runs"]
    times = plain["seconds_to_target"], fast["seconds_to_target"]
    target = demo["target_dice"]
    if None in times:
        return f"a side did not reach Dice {target:g}"
    return (
        f"{times[0] / times[1]:.1f} times sooner at Dice {target:g} "
        f"({duration_text(times[0])} plainly, {duration_text(times[1])} with Voxelocity)"
    )


def _hardware(environment: dict[str, Any]) -> tuple[str, ...]:
    keys = ("cpu", "num_cpus", "memory_bytes", "gpu", "torch", "monai", "commit")
    values = {key: environment.get(key) for key in keys}
    values["memory_bytes"] = bytes_text(values["memory_bytes"])
    return tuple("none" if values[key] is None else str(values[key])[:12] for key in keys)


def _table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    titles = list(header)
    body = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles), *body]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    before, rest = README.read_text().split(_BEGIN)
    pages = {README: f"{before}{_BEGIN}\n{readme_table()}\n{_END}{rest.split(_END)[1]}", MEASURED: measured_page()}
    stale = [path.name for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if check:
        sys.exit(f"not what the result files say: {', '.join(stale)}; run benchmarks/tables.py" if stale else 0)
    for path, text in pages.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
