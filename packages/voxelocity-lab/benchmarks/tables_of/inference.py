"""The tables of predictions: what surrounds the network, the runtimes, and nnU-Net's folders."""

from __future__ import annotations

import re
import statistics
from typing import Any

from tables_of.results import markdown_table, of_records, source_line
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
        size = " x ".join(map(str, about["shape"]))
        rows = [_row(_NAMES[name], side, sides["ours"], about["memory_gib"]) for name, side in sides.items()]
        head = f"{size} voxels, {about['num_classes']} classes, windows of {about['window']}³"
        heads = (
            "side",
            "seconds around the network",
            "ours quicker by",
            "peak memory above the network",
            "same labels",
            "n",
        )
        lines += [
            f"**{head}{', a real scan repeated' if about['is_real'] else ''}**",
            "",
            *markdown_table(heads, rows),
            "",
        ]
    return [*lines, f"Load average before: {record['load_average']:.1f}. {source_line(record)}"]


def _row(name: str, side: dict[str, Any], ours: dict[str, Any], memory_gib: float) -> tuple[str, ...]:
    if not side["runs"]:
        peak = bytes_text(side["peak_bytes"]) if "peak_bytes" in side else "n/a"
        inside = re.search(r"transforms\.[\w.]+\.(\w+) object", side["error"])
        why = f"failed in {inside[1]}" if inside else side["error"]
        is_memory = "allocate" in side["error"]
        said = f"not finished: {'out of memory' if is_memory else why} ({memory_gib:.0f} GiB allowed)"
        return name, said, "n/a", peak, "n/a", "0"
    around_s = [run["seconds"] - run["network_s"] for run in side["runs"]]
    ours_s = [run["seconds"] - run["network_s"] for run in ours["runs"]]
    middle = statistics.median(around_s)
    ratio = statistics.median(theirs / mine for theirs, mine in zip(around_s, ours_s, strict=False))
    return (
        name,
        f"{middle:.1f}" + (f" ({min(around_s):.1f} to {max(around_s):.1f})" if len(around_s) > 1 else ""),
        "" if side is ours else f"{ratio:.1f}",
        bytes_text(max(run["peak_bytes"] for run in side["runs"])),
        "" if side is ours else f"{side['agreement'] * 100:.2f} %",
        str(len(around_s)),
    )


@of_records("runtimes*.json")
def runtime_lines(record: dict[str, Any]) -> list[str]:
    """For each network, window and format: milliseconds of a window in every runtime, and the choice of `auto`."""
    names = list(dict.fromkeys(name for row in record["rows"] for name in row["runtimes"]))
    used = [name for name in names if any("window_s" in row["runtimes"].get(name, {}) for row in record["rows"])]
    rows = [
        (
            row["network"],
            f"{row['edge_voxel']}³",
            row["compute"],
            *(_runtime_cell(row["runtimes"].get(name, {})) for name in used),
            f"{row['auto']['choice']} ({row['auto']['over_best']:.2f})",
        )
        for row in record["rows"]
    ]
    heads = ("network", "window", "format", *used, "`auto` (over the best)")
    return [
        "Milliseconds of a window (largest difference from eager's logits, as a share of the largest):",
        "",
        *markdown_table(heads, rows),
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
    rows = []
    for name, found in record["scenarios"].items():
        ratios = [a / b for a, b in zip(found["seconds"]["nnunet"], found["seconds"]["voxelocity"], strict=True)]
        rows.append(
            (
                name,
                str(found["num_cases"]),
                f"{found['lowest_agreement'] * 100:.2f} %",
                f"{found['median_s']['nnunet']:.2f}",
                f"{found['median_s']['voxelocity']:.2f}",
                f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})",
                _over_slowest_stage(found),
            )
        )
    heads = (
        "model",
        "cases",
        "lowest agreement of a case",
        "nnU-Net, s",
        "Voxelocity, s",
        "ours quicker by",
        "ours over its slowest stage",
    )
    source = f"n = {record['repeats']}. Load average before: {record['load_average']:.1f}. {source_line(record)}"
    return [*markdown_table(heads, rows), "", source]


def _over_slowest_stage(found: dict[str, Any]) -> str:
    """How much longer all scans take than the stage alone that takes longest; earlier records do not say."""
    pairs = zip(found["seconds"]["voxelocity"], found.get("stage_s", ()), strict=False)
    ratios = [wall_s / max(stages.values()) for wall_s, stages in pairs]
    return f"{statistics.median(ratios):.2f}" if ratios else "n/a"
