"""What the pages of recipes share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from voxelocity.report.charts import Series, time_chart
from voxelocity.report.document import Block, Chart, fact_table


def training_blocks(events: Sequence[Mapping[str, Any]], settings: Mapping[str, str]) -> list[Block]:
    """The loss over time, and the settings in words."""
    points = [(float(one["time_s"]), float(one["loss"])) for one in events if one["event"] == "steps" and one["loss"]]
    blocks: list[Block] = [fact_table("Settings", settings.items())]
    if len(points) > 1:
        svg = time_chart("loss", [Series(points=points)], y_label="loss")
        last = points[-1][1]
        blocks.insert(0, Chart(title="Loss", svg=svg, alt=f"The loss falls from {points[0][1]:.3f} to {last:.3f}."))
    return blocks


def number_text(value: float, digits: int = 2) -> str:
    """A number, or "n/a" for NaN."""
    return "n/a" if math.isnan(value) else f"{value:.{digits}f}"


def percent_text(value: float) -> str:
    """A share in percent, or "n/a" for NaN."""
    return "n/a" if math.isnan(value) else f"{100.0 * value:.1f} %"
