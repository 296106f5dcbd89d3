"""The tables of predictions: what surrounds the network, in seconds and memory."""

from __future__ import annotations

import statistics
from typing import Any

from tables_of.results import markdown_table, of_records, source_line
from voxelocity.core.quantities import bytes_text

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
        rows = [_row(_NAMES[name], side, sides["ours"]) for name, side in sides.items()]
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


def _row(name: str, side: dict[str, Any], ours: dict[str, Any]) -> tuple[str, ...]:
    if not side["runs"]:
        peak = bytes_text(side["peak_bytes"]) if "peak_bytes" in side else "n/a"
        return name, f"not finished: {side['error']}", "n/a", peak, "n/a", "0"
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
