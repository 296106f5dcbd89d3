"""Tables of the README and of the pages in docs, made from the result files and from nothing else.

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
README, DOCS = ROOT / "README.md", ROOT / "docs"
_TABLE_OF = {"cache.md": ("cache", "build"), "patches.md": ("patches",), "augmentation.md": ("transforms",),
             "feed.md": ("feed", "training")}  # fmt: skip
"""Scenarios of `voxelocity bench` whose records a page shows, as far as there are any."""
_NOT_MEASURED = "Not measured yet: run the commands above, then `python benchmarks/tables.py`."
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


def page_tables(name: str) -> str:
    """The tables of one concept page: its scenarios in short, and what else was measured of its subject."""
    lines: list[str] = []
    if name == "feed.md":
        lines += _waiting_lines()
    for record in load("cache_read.json") if name == "cache.md" else []:
        lines += [f"**96³ patch of an entry not opened before, {_shape(record)} CT**", "", *_cache_table(record), "",
                  _source(record, " ".join(record["command"])), ""]  # fmt: skip
    for record in load("growth.json") if name == "cache.md" else []:
        lines += ["**What grows how** (tiny cases of 24³ voxels, disk tier)", "", *_growth_table(record), ""]
        lines += [_source(record, "python benchmarks/growth.py"), ""]
    for scenario in _TABLE_OF[name]:
        for record in load(f"bench_{scenario}.json"):
            lines += _in_short(record)
    assert lines, f"no result file for {name}"
    return "\n".join(lines[:-1])


def _in_short(record: dict[str, Any]) -> list[str]:
    """All comparisons of a record without their notes."""
    lines = []
    for comparison in record["comparisons"]:
        lines += [f"**{comparison['title']}**", ""]
        lines += _table(
            ("", comparison["unit"], "least to most", "n", "ours better by"),
            (
                (
                    side["name"],
                    _figure(side.get("median")),
                    f"{_figure(side.get('low'))} to {_figure(side.get('high'))}" if side["n"] > 1 else "",
                    side["n"],
                    factor_text((side.get("ours_better_by") or {}).get("median")) if side["n"] else side["note"],
                )
                for side in comparison["sides"]
            ),
        )
        lines += [""]
    return [*lines, f"{_source(record, record['command'])} Settings and notes: [measured.md](measured.md).", ""]


def _source(record: dict[str, Any], command: str) -> str:
    environment = record["environment"]
    commit = str(environment.get("commit") or "unknown")[:12]
    date = f"{record['date']}, " if "date" in record else ""
    return (
        f"`{command}`, {date}commit {commit}, {environment['cpu']}, {environment['num_cpus']} cores, "
        f"{bytes_text(environment['memory_bytes'])}, GPU: {environment['gpu'] or 'none'}."
    )


def _waiting_lines() -> list[str]:
    """Which part of whole trainings was spent waiting, ours and the demo's plain script."""
    rows = [
        (f"{r['scenario']}, {r['time_budget']}", "Voxelocity", f"{r['wait_share']:.1%}", 1, f"{r['date']}")
        for r in load("main_job_*.json")
    ]
    rows += [
        ("the demo", run["label"], f"{run['wait_share']:.1%}", 1, record["date"])
        for record in load("fresh_clone.json")
        for run in record["demo"]["runs"]
    ]
    table = _table(("training", "by", "waiting for data", "n", "date"), rows)
    return ["**Part of the training time spent waiting for data**", "", *table, "",
            "Commands and machines: [measured.md](measured.md).", ""]  # fmt: skip


def _deterministic_lines() -> list[str]:
    lines: list[str] = []
    for record in load("monai_deterministic.json"):
        lines += ["**CPU time of MONAI's deterministic transforms**", "", *_deterministic_table(record), ""]
        lines += [_source(record, record["command"])]
    return lines


def _deterministic_table(record: dict[str, Any]) -> list[str]:
    """A line for each transform: ours and MONAI's, medians of the rounds; the ratio is the median of theirs."""
    rows = []
    for comparison in record["comparisons"]:
        ours, theirs = comparison["sides"]
        ratio = theirs["ours_better_by"]
        spread = f"{ratio['low']:.1f} to {ratio['high']:.1f}"
        rows.append((comparison["title"], _figure(ours["median"]), _figure(theirs["median"]),
                     factor_text(ratio["median"]), spread, ours["n"]))  # fmt: skip
    return _table(("", "Voxelocity, ms", "MONAI, ms", "better by", "least to most", "n"), rows)


def _growth_table(record: dict[str, Any]) -> list[str]:
    return _table(
        ("cases", "building", "reopening", "resident memory", "patches/s", "open files"),
        (
            (f"{size['num_cases']:,}", f"{size['build_s']:.3g} s", f"{size['reopen_s']:.3g} s",
             bytes_text(size["resident_bytes"]), _figure(size["patches_per_s"]), size["num_open_files"])
            for size in record["sizes"]
        ),
    )  # fmt: skip


def _parity_lines() -> list[str]:
    lines: list[str] = []
    for record in load("monai_parity.json"):
        lines += [*_parity_table(record), "", _source(record, record["command"])]
    return lines


def _parity_table(record: dict[str, Any]) -> list[str]:
    return _table(
        ("transform", "arguments tried", "draws", "keys", "largest difference / largest value",
         "label voxels that differ", "tolerance", "MONAI, CPU ms", "ours, CPU ms"),
        (
            (f"`{row['transform']}`", f"`{row['arguments'].replace('|', '&#124;')}`" if row["arguments"] else "",
             row["num_draws"], ", ".join(row["keys"]), _gap(row),
             "not touched" if row["num_label_voxels"] is None else row["num_label_voxels"], _promise(row),
             _figure(row["monai_ms"]), _figure(row["our_ms"]))
            for row in record["rows"]
        ),
    )  # fmt: skip


def _gap(row: dict[str, Any]) -> str:
    """The difference, and in words what else differs."""
    if row["smallest_p"] is not None:
        found = f"not compared; smallest p of {row['num_draws']}: {row['smallest_p']:.2g}"
    else:
        found = f"{row['largest']:.1e}" if row["largest"] else "0"
    return "; ".join([found, row["words"]] if row["words"] else [found])


def _promise(row: dict[str, Any]) -> str:
    """What a case is held to."""
    if row["smallest_p"] is not None:
        return "equal in distribution"
    return f"{row['tolerance']:.0e}" if row["tolerance"] else "equal"


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
    for record in load("growth.json"):
        lines += [
            "## What grows how",
            "",
            "Tiny cases of 24³ voxels, disk tier, each size in a fresh process; n = 1.",
            "",
        ]
        lines += [*_growth_table(record), "", "`python benchmarks/growth.py`", ""]
    for record in load("many_entries.json"):
        lines += _entries_lines(record)
    for record in load("bench_*.json"):
        lines += _side_by_side(record)
    lines += ["## Hardware", ""]
    lines += _table(
        ("file", "CPU", "cores", "memory", "GPU", "torch", "MONAI", "commit"),
        ((r["file"], *_hardware(r["environment"])) for r in load("*.json") if "environment" in r),
    )
    return "\n".join(lines) + "\n"


def _cache_lines(record: dict[str, Any]) -> list[str]:
    num_reads = next(iter(record["variants"].values()))["warm"]["n"]
    lines = ["## A patch from a disk tier", ""]
    lines += [f"96³ voxels of a {_shape(record)} int16 CT with uint8 label, from an entry not opened before. Median "
              f"and quartiles of {num_reads}; warm: in the page cache. Load average of the machine before: "
              f"{record['load_average']:.1f}.", ""]  # fmt: skip
    return [*lines, *_cache_table(record), "", f"`{' '.join(record['command'])}`", ""]


def _cache_table(record: dict[str, Any]) -> list[str]:
    return _table(
        ("kept as", "warm", "cold", "bytes a voxel", "written in"),
        (
            (name, _spread(found["warm"]), _spread(found.get("cold")), f"{found['bytes_per_voxel']:.2f}",
             duration_text(found["put_s"]))
            for name, found in record["variants"].items()
        ),
    )  # fmt: skip


def _shape(record: dict[str, Any]) -> str:
    return " x ".join(str(n) for n in record["shape"])


def _entries_lines(record: dict[str, Any]) -> list[str]:
    lines = [f"## {record['num_entries']:,} small entries", ""]
    lines += ["24³ voxels each, int16 and uint8 label, flushed one by one. Medians of 3, on a machine that others used "
              f"meanwhile (load average before: {record['load_average']:.1f}): only large differences mean something.",
              ""]  # fmt: skip
    lines += _table(
        ("kept as", "files", "made in", "all opened in", "a patch of each in", "deleted in"),
        (
            (name, f"{found['num_files']:.0f}", duration_text(found["build_s"]), duration_text(found["open_all_s"]),
             duration_text(found["patch_of_each_s"]), duration_text(found["delete_s"]))
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


def _filled(text: str, tables: str, *, where: str, name: str = "") -> str:
    """The page's text with these tables between its two marks, or between those of this name."""
    begin, end = (mark.replace("figures", f"figures of {name}") if name else mark for mark in (_BEGIN, _END))
    assert text.count(begin) == text.count(end) == 1, f"{where} needs the marks {begin} and {end}, once each"
    before, rest = text.split(begin)
    return f"{before}{begin}\n{tables}\n{end}{rest.split(end)[1]}"


def _page(path: Path, tables: str) -> str:
    return _filled(path.read_text(), tables, where=str(path))


def _named_page(path: Path) -> str:
    """A page with several tables, each between marks of its own."""
    text = path.read_text()
    for name, lines in _NAMED_TABLES[path.name].items():
        text = _filled(text, "\n".join(lines() or [_NOT_MEASURED]), where=str(path), name=name)
    return text


def _example_lines() -> list[str]:
    """Both scripts of each worked example."""
    lines: list[str] = []
    for record in load("monai_examples.json"):
        rows = [
            (found["name"], side, *(_range(figures[key]) for key in ("seconds_to_fill_cache", "seconds_per_epoch",
             "samples_per_s", "seconds_in_all")), f"{figures['mean_dice']['median']:.4f}", found["n"])
            for found in record["examples"]
            for side, figures in found["sides"].items()
        ]  # fmt: skip
        lines += _table(("example", "imports from", "filling the cache, s", "an epoch, s", "patches/s",
                         "the whole script, s", "Dice", "n"), rows)  # fmt: skip
        lines += ["", *(
            f"{found['name']}: {found['cases']}, `{' '.join(found['options'])}`, {found['num_steps']} steps; largest "
            f"difference of a loss {found['largest_difference']:.1e} of its value.  "
            for found in record["examples"]
        ), "", _source(record, record["command"])]  # fmt: skip
    return lines


def _chain_lines() -> list[str]:
    return [line for record in load("bench_monai.json") for line in _in_short(record)][:-1]


def _curve_lines() -> list[str]:
    """Largest differences of losses, and the two samples of final losses."""
    lines: list[str] = []
    for record in load("monai_curves.json"):
        lines += _table(
            ("data set", "loader", "optimizer", "steps", "largest difference of a loss", "of the held-out loss"),
            (
                (row["data_set"], row["loader"], row["optimizer"], row["num_steps"],
                 f"{row['largest_difference']:.1e}", f"{row['held_out_difference']:.1e}")
                for row in record["curves"]
            ),
        )  # fmt: skip
        found = record["noise"]
        low, high = found["difference_of_means"]
        is_within = "within" if found["is_equivalent"] else "**not within**"
        lines += ["", f"Shares of MONAI's loss; expected below {record['tolerance']:g}.", "",
                  f"With `RandGaussianNoised`, drawn by the engine: final losses of {found['n'][0]} seeds against "
                  f"{found['n'][1]} others under MONAI. Two-sided Mann-Whitney p = {found['mann_whitney_p']:.2f}, "
                  f"two-sample Kolmogorov-Smirnov p = {found['kolmogorov_smirnov_p']:.2f}. The difference of the means "
                  f"is {low:+.2%} to {high:+.2%} of MONAI's ({found['confidence']:.0%} interval), {is_within} the "
                  f"{found['margin']:.0%} set before.", "", _source(record, record["command"])]  # fmt: skip
    return lines


def _own_cost_lines() -> list[str]:
    """What spans and watchers take."""
    lines: list[str] = []
    for record in load("own_cost.json"):
        step, span_us = record["training_step"], record["span_on_us"]["median"]
        by_spans = step["spans_per_step"] * span_us * 1e-6 / step["step_cpu_s"]["median"]
        rows = [
            ("a span, nobody listens", _range(record["span_off_us"]), "µs of CPU", record["span_off_us"]["n"]),
            ("a span, recorded with the host's clock", _range(record["span_on_us"]), "µs of CPU",
             record["span_on_us"]["n"]),
            (f"recording the {step['spans_per_step']:.0f} spans of a training step of the demo "
             f"({step['step_cpu_s']['median']:.2f} s)", _percent(step["share"]),
             f"of its CPU time, pair by pair; so many times the line above is {by_spans:.2%}", step["share"]["n"]),
        ]  # fmt: skip
        for row in record["watchers"]:
            what = f"`{row['watcher']}` around {_WATCHED[row['program']]}"
            if row["note"]:
                rows.append((what, "n/a", row["note"], 0))
                continue
            rows += [
                (f"{what}: its own CPU time, start-up included", _percent(row["own_share"]), "of the program's time",
                 row["own_share"]["n"]),
                (f"{what}: what it adds to the program", _percent(row["wall_share"]), "of the program's time",
                 row["wall_share"]["n"]),
            ]  # fmt: skip
        lines += _table(("what", "median (least to most)", "", "n"), rows)
        lines += ["", f"Load average before: {record['load_average']:.1f}. {_source(record, record['command'])}"]
    return lines


_WATCHED = {"cpu": "a CPU-bound program", "training": "a training program"}


def _split_lines() -> list[str]:
    """How the split of the report compares with the time of the process."""
    lines: list[str] = []
    for record in load("time_split.json"):
        rows = [
            ("stopped by Ctrl-C and resumed" if run["resumed"] else "in one go", duration_text(run["wall_s"]),
             duration_text(run["reported_s"]), f"{run['gap_share']:.1%}", f"{run['other_share']:.1%}",
             f"{run['other_share_of_steps']:.1%}")
            for run in record["runs"]
        ]  # fmt: skip
        heads = ("run", "time of its processes", "sum of the split", "gap", '"other"', '"other" in the steps')
        lines += _table(heads, rows)
        lines += ["", f"MSD's hippocampus, n = 1 each, load average at the end: {record['load_average']:.1f}. "
                  f"{_source(record, record['command'])}"]  # fmt: skip
    return lines


def _percent(figure: dict[str, float]) -> str:
    return f"{figure['median']:.2%} ({figure['low']:.2%} to {figure['high']:.2%})"


def _range(figure: dict[str, float]) -> str:
    return f"{_figure(figure['median'])} ({_figure(figure['low'])} to {_figure(figure['high'])})"


_NAMED_TABLES = {
    "monai.md": {"the examples": _example_lines, "the chains": _chain_lines, "the curves": _curve_lines},
    "monai-transforms.md": {
        "the random transforms": _parity_lines,
        "the deterministic transforms": _deterministic_lines,
    },
    "spans.md": {"the own cost": _own_cost_lines},
    "runs.md": {"the split": _split_lines},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    pages = {README: _page(README, readme_table()), DOCS / "measured.md": measured_page()}
    pages |= {DOCS / name: _page(DOCS / name, page_tables(name)) for name in _TABLE_OF}
    pages |= {DOCS / name: _named_page(DOCS / name) for name in _NAMED_TABLES}
    stale = [path.name for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if check:
        sys.exit(f"not what the result files say: {', '.join(stale)}; run benchmarks/tables.py" if stale else 0)
    for path, text in pages.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
