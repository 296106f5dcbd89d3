"""A sample of the machine as text for Prometheus, and the file that a collector reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from voxelocity_observe.monitor.exposition import exposition, sample_values, write_exposition
from voxelocity_observe.monitor.samples import Sample


def openmetrics_text(sample: Sample, *, labels: Mapping[str, str] | None = None) -> str:
    """The sample in OpenMetrics 1.0, which is valid in Prometheus' older format too; unknown values are left out.

    Args:
        sample: of the machine.
        labels: put on every value, such as the name of a job, in addition to those of devices and cores.
    """
    return exposition(sample_values(sample, labels or {}))


def write_openmetrics(sample: Sample, path: str | Path, *, labels: Mapping[str, str] | None = None) -> Path:
    """The path, which now holds the sample, moved there in one piece; node_exporter reads `*.prom`.

    Raises:
        OutputError: the folder does not exist, or the file cannot be written.
    """
    return write_exposition(path, openmetrics_text(sample, labels=labels))
