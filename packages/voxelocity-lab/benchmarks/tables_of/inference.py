"""The tables of predictions: what surrounds the network, the runtimes, and nnU-Net's folders."""

from __future__ import annotations

import re
import statistics
from typing import Any

from tables_of.results import columns, of_records, source_line
from voxelocity_observe.core.quantities import bytes_text

_NAMES = {
    "ours": "Voxelocity",
    "nnunet": "nnU-Net's predictor",
    "nnunet-torch": "nnU-Net's predictor, resampling in torch",
    "monai": "MONAI's transforms",
}


@of_records("inference*.json")
def around_lines(record: dict[str, Any]) -> list[str]:
    """For each scenario and side: seconds besides the network, how often ours is quicker, and peak memory."""
    lines: list[str] = []
    for scenario in record["scenarios"].values():
        about, sides = scenario["scenario"], scenario["sides"]
        around = {name: [run["seconds"] - run["network_s"] for run in side["runs"]] for name, side in sides.items()}
        head = f"{' x '.join(map(str, about['shape']))} voxels, {about['num_classes']} classes, windows of"
        lines += [f"**{head} {about['window']}³{', a real scan repeated' if about['is_real'] else ''}**", ""]
        table = columns(
            sides,
            ("side", _NAMES.__getitem__),
            ("seconds around the network", lambda name: _around_text(around[name], sides[name], about["memory_gib"])),  # noqa: B023
            ("ours faster by", lambda name: _ratio_text(name, around)),  # noqa: B023
            ("peak memory above the network", lambda name: _peak_text(sides[name])),  # noqa: B023
            ("same labels", lambda name: _agreement_text(name, sides[name])),  # noqa: B023
            ("n", lambda name: len(around[name])),  # noqa: B023
        )
        lines += [*table, ""]
    return [*lines, f"Load average before: {record['load_average']:.1f}. {source_line(record)}"]


def _around_text(around_s: list[float], side: dict[str, Any], memory_gib: float) -> str:
    if around_s:
        spread = f" ({min(around_s):.1f} to {max(around_s):.1f})" if len(around_s) > 1 else ""
        return f"{statistics.median(around_s):.1f}{spread}"
    inside = re.search(r"transforms\.[\w.]+\.(\w+) object", side["error"])
    why = "out of memory" if "allocate" in side["error"] else f"failed in {inside[1]}" if inside else side["error"]
    return f"not finished: {why} ({memory_gib:.0f} GiB allowed)"


def _ratio_text(name: str, around: dict[str, list[float]]) -> str:
    ratios = [theirs / mine for theirs, mine in zip(around[name], around["ours"], strict=False)]
    return "n/a" if not around[name] else "" if name == "ours" else f"{statistics.median(ratios):.1f}"


def _peak_text(side: dict[str, Any]) -> str:
    peaks = [run["peak_bytes"] for run in side["runs"]] or [side[key] for key in ("peak_bytes",) if key in side]
    return bytes_text(max(peaks)) if peaks else "n/a"


def _agreement_text(name: str, side: dict[str, Any]) -> str:
    return "n/a" if not side["runs"] else "" if name == "ours" else f"{side['agreement'] * 100:.2f} %"


@of_records("runtimes*.json")
def runtime_lines(record: dict[str, Any]) -> list[str]:
    """For each network, window and format: milliseconds of a window in every runtime, and the choice of `auto`."""
    names = list(dict.fromkeys(name for row in record["rows"] for name in row["runtimes"]))
    used = [name for name in names if any("window_s" in row["runtimes"].get(name, {}) for row in record["rows"])]
    table = columns(
        record["rows"],
        ("network", lambda row: row["network"]),
        ("window", lambda row: f"{row['edge_voxel']}³"),
        ("format", lambda row: row["compute"]),
        *((name, lambda row, name=name: _runtime_cell(row["runtimes"].get(name, {}))) for name in used),
        ("`auto` (over the best)", lambda row: f"{row['auto']['choice']} ({row['auto']['over_best']:.2f})"),
    )
    return [
        "Milliseconds of a window (largest difference from eager's logits, as a share of the largest):",
        "",
        *table,
        "",
        f"Load average before: {record['load_average']:.1f}. {source_line(record)}",
        "",
    ]


def _runtime_cell(figures: dict[str, Any]) -> str:
    if "window_s" not in figures:
        return "n/a"
    difference = f" ({figures['relative_difference']:.0e})" if figures["relative_difference"] else ""
    return f"{figures['window_s'] * 1e3:.0f}{difference}" + (", refused" if figures.get("refused") else "")


@of_records("nnunet_folder*.json")
def nnunet_lines(record: dict[str, Any]) -> list[str]:
    """For each small nnU-Net: lowest agreement of a case, and seconds of all cases with both predictors."""
    table = columns(
        record["scenarios"].items(),
        ("model", lambda row: row[0]),
        ("cases", lambda row: row[1]["num_cases"]),
        ("lowest agreement of a case", lambda row: f"{row[1]['lowest_agreement'] * 100:.2f} %"),
        ("nnU-Net, s", lambda row: f"{row[1]['median_s']['nnunet']:.2f}"),
        ("Voxelocity, s", lambda row: f"{row[1]['median_s']['voxelocity']:.2f}"),
        ("ours faster by", lambda row: _quicker_by(row[1]["seconds"])),
        ("ours over its slowest stage", lambda row: _over_slowest_stage(row[1])),
    )
    source = f"n = {record['repeats']}. Load average before: {record['load_average']:.1f}. {source_line(record)}"
    return [*table, "", source]


@of_records("nnunet_models.json")
def nnunet_kind_lines(record: dict[str, Any]) -> list[str]:
    """For each kind of model of nnU-Net: lowest agreement of a case, also with float16 sums, and both sides' time."""
    table = columns(
        record["kinds"].items(),
        ("model", lambda row: row[0]),
        ("lowest agreement of a case", lambda row: f"{row[1]['voxelocity']['lowest_agreement'] * 100:.2f} %"),
        ("with --float16-sums", lambda row: f"{row[1]['voxelocity float16']['lowest_agreement'] * 100:.2f} %"),
        ("ours faster by", lambda row: _quicker_by(row[1]["seconds"])),
        ("and in CPU time", lambda row: _quicker_by(row[1]["cpu_seconds"])),
    )
    cases = sum(found["num_cases"] for found in record["kinds"].values())
    load = f"Load average before: {record['load_average']:.1f}."
    source = f"{cases} cases, n = {record['repeats']}. {load} {source_line(record, record['kinds'])}"
    return [*table, "", source]


@of_records("bundles.json")
def bundle_lines(record: dict[str, Any]) -> list[str]:
    """For each bundle: classes that were predicted, agreement with MONAI, both sides' CPU time, and the network's."""
    found = record["bundles"]
    shown = {name: row for name, row in found.items() if "refused" not in row}

    def quicker_by(name: str) -> str:
        runs = found[name]["runs"]
        return _quicker_by({side: [run["cpu_s"] for run in runs[side]] for side in runs}, peer="monai")

    def share_text(name: str) -> str:
        """Of our time in the network; earlier records do not say."""
        shares = [run["network_s"] / run["wall_s"] for run in found[name]["runs"]["voxelocity"] if "network_s" in run]
        return f"{statistics.median(shares) * 100:.0f} %" if shares else "n/a"

    table = columns(
        shown,
        ("bundle", lambda name: f"`{name}`"),
        (
            "classes predicted",
            lambda name: f"{found[name]['num_classes']['voxelocity']} of {found[name]['network_classes']}",
        ),
        ("agreement on the foreground", lambda name: f"{found[name]['agreement'] * 100:.3f} %"),
        ("ours faster by, in CPU time", quicker_by),
        ("our time in the network", share_text),
    )
    load = f"Load average before: {record['load_average']:.1f}."
    source = f"n = {record['rounds']}, medians. {load} {source_line(record, shown)}"
    return [*table, "", source]


def _quicker_by(seconds: dict[str, list[float]], *, peer: str = "nnunet") -> str:
    ratios = [theirs / ours for theirs, ours in zip(seconds[peer], seconds["voxelocity"], strict=True)]
    return f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"


def _over_slowest_stage(found: dict[str, Any]) -> str:
    """How much longer all scans take than the stage alone that takes longest; earlier records do not say."""
    pairs = zip(found["seconds"]["voxelocity"], found.get("stage_s", ()), strict=False)
    ratios = [wall_s / max(stages.values()) for wall_s, stages in pairs]
    return f"{statistics.median(ratios):.2f}" if ratios else "n/a"
