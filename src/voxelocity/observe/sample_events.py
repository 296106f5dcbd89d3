"""Samples of the machine among the events of a run: few, however long it takes, and read back from their line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from voxelocity.observe.events import EventLog
from voxelocity.observe.samples import GpuSample, HostSample, Sample

# A run of a week has about 5,000 samples: one in 10 s for the first three hours, then each 0.1 % of its time.
_SHARE_OF_TIME = 0.001


class SampleEvents:
    """Writes samples into the events of a run as event `sample`; called with each sample, by one thread.

    Args:
        log: of the run.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._due_s = 0.0

    def __call__(self, sample: Sample) -> None:
        """Writes the sample where one is due, else nothing.

        Raises:
            OutputError: the line cannot be written.
        """
        now_s = self._log.elapsed_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + now_s * _SHARE_OF_TIME
        shares = tuple(round(share, 4) for share in sample.host.core_shares)
        self._log.write(
            "sample",
            period_s=round(sample.period_s, 3),
            host=replace(sample.host, core_shares=shares),
            gpus=sample.gpus,
        )


def sample_of(event: Mapping[str, Any]) -> Sample:
    """The sample in an event `sample`; ignores fields that a newer version added."""
    return Sample(
        time_s=float(event["time_s"]),
        period_s=float(event["period_s"]),
        host=_record(HostSample, event["host"]),
        gpus=tuple(_record(GpuSample, gpu) for gpu in event["gpus"]),
    )


def _record(kind: type[Any], plain: Mapping[str, Any]) -> Any:
    known = {field.name for field in fields(kind)}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return kind(**{name: value for name, value in values.items() if name in known})
