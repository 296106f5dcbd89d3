"""Values for Prometheus, as text that both of its dialects read.

OpenMetrics wants `# UNIT` lines, whose unit ends the name, and `# EOF`, and gives counters, infos and states forms of
their own; the older text of Prometheus, which node_exporter's textfile collector reads, knows neither those types nor
times of single values, and takes `# UNIT` and `# EOF` for comments. Gauges without times are the same in both, so there
are only gauges here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxelocity.core.errors import OutputError
from voxelocity.core.whole_file import put_in_place

_NAME = re.compile(r"[a-z][a-z0-9_]*")

Labeled = tuple[Mapping[str, str], float | None]


@dataclass(frozen=True, kw_only=True)
class Gauge:
    """A quantity that goes up and down.

    Attributes:
        name: in lower case, ending in its unit.
        help: what it is, in one line.
        unit: in base units (bytes, seconds, ratio, watts); "" for a bare number.
    """

    name: str
    help: str
    unit: str = ""

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), self.name
        assert self.name.endswith(f"_{self.unit}" if self.unit else ""), f"{self.name} ends in its unit {self.unit}"


def exposition(gauges: Iterable[tuple[Gauge, Sequence[Labeled]]]) -> str:
    """The text of all gauges with their values. What is None or not finite is left out, and so is an empty gauge."""
    lines: list[str] = []
    for gauge, values in gauges:
        known = [(labels, value) for labels, value in values if value is not None and math.isfinite(value)]
        if not known:
            continue
        lines.append(f"# HELP {gauge.name} {_escaped(gauge.help)}")
        lines.append(f"# TYPE {gauge.name} gauge")
        if gauge.unit:
            lines.append(f"# UNIT {gauge.name} {gauge.unit}")
        lines.extend(f"{gauge.name}{_label_text(labels)} {_value_text(value)}" for labels, value in known)
    return "\n".join([*lines, "# EOF"]) + "\n"


def write_exposition(path: str | Path, text: str) -> Path:
    """The path, which now holds the text. It is written next to it, under a name no collector reads, and moved.

    Raises:
        OutputError: the folder is not there, or the file cannot be written.
    """
    target = Path(path)
    try:
        # Replaced every few seconds, and of no use after a power cut.
        put_in_place(target, text.encode(), is_durable=False)
    except OSError as error:
        raise OutputError(
            f"observe.exposition: cannot write '{target}': {error.strerror or error}; name a file in a folder that "
            "exists and that you may write to"
        ) from error
    return target


def _label_text(labels: Mapping[str, str]) -> str:
    texts = [f'{name}="{_escaped(value, quote=True)}"' for name, value in labels.items() if value]
    return "{" + ",".join(texts) + "}" if texts else ""


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _value_text(value: float) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else repr(float(value))
