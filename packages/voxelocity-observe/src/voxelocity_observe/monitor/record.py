"""What a monitor saw: the record, and its samples as rows of a table and back. Opens no files."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from voxelocity_observe.monitor.nvml import GpuName
from voxelocity_observe.monitor.samples import (
    GPU_FIELDS,
    HOST_FIELDS,
    GpuSample,
    HostSample,
    PhaseMark,
    RankSample,
    Sample,
)


@dataclass(frozen=True, kw_only=True)
class MonitorRecord:
    """Samples of a machine while a program ran.

    Attributes:
        command: of the program; empty if the monitor was started from Python.
        status: its exit status, negative for a signal; None while it runs or if there is no command.
        seconds: time watched.
        period_s: requested seconds between samples.
        own_cpu_s: CPU seconds that the monitor itself took.
        missing: what could not be measured, and why, in words.
    """

    command: Sequence[str] = ()
    status: int | None = None
    seconds: float
    period_s: float
    own_cpu_s: float = 0.0
    samples: Sequence[Sample] = ()
    phases: Sequence[PhaseMark] = ()
    missing: Sequence[str] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)


# Ranks start after the first row, so each column holds those of all ranks.
_RANK_FIELDS = {"ranks": "rank", "rank_cores": "cores", "rank_memory_bytes": "memory_bytes"}
# monitor.json holds the names of each GPU, once.
_GPU_FIELDS = [*GPU_FIELDS, "throttle_reasons"]
# Written, but not read: it follows from others.
_GPU_COLUMNS = [*_GPU_FIELDS, "memory_ratio"]
_CORE = re.compile(r"core(\d+)_busy_share$")
_GPU = re.compile(r"gpu(\d+)(?:_slice(\d+))?_(\w+)$")
_WHOLE = ("_bytes", "num_processes", "num_threads", "num_other_processes")

Device = tuple[int, int | None]


def columns(sample: Sample, devices: Iterable[Device]) -> list[str]:
    """Names of the columns that a sample like this needs: time, host, cores, then each device."""
    return [
        "time_s",
        "period_s",
        *HOST_FIELDS,
        *_RANK_FIELDS,
        *(f"core{core}_busy_share" for core in range(len(sample.host.core_shares))),
        *(f"{_prefix(device)}_{name}" for device in devices for name in _GPU_COLUMNS),
    ]


def row(sample: Sample, devices: Iterable[Device], *, num_cores: int) -> list[str]:
    """The cells of a sample under `columns`; empty if a figure is not known or a device is gone."""
    gpus = {(gpu.index, gpu.slice): gpu for gpu in sample.gpus}
    cores = [_cell(share) for share in sample.host.core_shares[:num_cores]]
    cells = [f"{sample.time_s:.3f}", f"{sample.period_s:.3f}"]
    cells += [_cell(getattr(sample.host, name)) for name in HOST_FIELDS]
    cells += [_cell(tuple(_cell(getattr(rank, name)) for rank in sample.host.ranks)) for name in _RANK_FIELDS.values()]
    cells += cores + [""] * (num_cores - len(cores))
    for device in devices:
        gpu = gpus.get(device)
        cells += [_cell(getattr(gpu, name)) if gpu is not None else "" for name in _GPU_COLUMNS]
    return cells


def row_reader(header: Sequence[str], gpus: Sequence[GpuName] = ()) -> Callable[[Sequence[str]], Sample]:
    """A function from the cells of a row to its sample. It skips columns that it does not know.

    Args:
        header: names of the columns.
        gpus: names of the devices.

    Raises:
        ValueError: raised by the function: a row has another number of cells, or one that is not a number.
    """
    names = {(gpu.index, gpu.slice): gpu for gpu in gpus}
    hosts = [(name, at) for at, name in enumerate(header) if name in HOST_FIELDS]
    cores = [at for at, name in enumerate(header) if _CORE.match(name)]
    ranks = [(name, header.index(column)) for column, name in _RANK_FIELDS.items() if column in header]
    devices: dict[Device, list[tuple[str, int]]] = {}
    for at, name in enumerate(header):
        match = _GPU.match(name)
        if match is not None and match[3] in _GPU_FIELDS:
            device = (int(match[1]), None if match[2] is None else int(match[2]))
            devices.setdefault(device, []).append((match[3], at))

    def read(cells: Sequence[str]) -> Sample:
        if len(cells) != len(header):
            raise ValueError(f"{len(cells)} cells under {len(header)} columns")
        return Sample(
            time_s=number_of(cells[header.index("time_s")]),
            period_s=number_of(cells[header.index("period_s")]),
            host=HostSample(
                core_shares=tuple(number_of(cells[at]) for at in cores if cells[at]),
                ranks=_ranks({name: cells[at].split("+") for name, at in ranks if cells[at]}),
                **{name: _value(name, cells[at]) for name, at in hosts},
            ),
            gpus=tuple(
                _gpu(device, names.get(device), {name: _value(name, cells[at]) for name, at in figures})
                for device, figures in devices.items()
                # A lost device has only empty cells.
                if any(cells[at] for _, at in figures)
            ),
        )

    return read


def number_of(value: Any) -> float:
    """The finite number that a file holds.

    Raises:
        ValueError, TypeError: it is none.
    """
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a number of seconds, bytes or cores")
    return number


def _gpu(device: Device, name: GpuName | None, values: dict[str, Any]) -> GpuSample:
    values["throttle_reasons"] = values.get("throttle_reasons") or ()
    return GpuSample(
        index=device[0], slice=device[1], name=name.name if name else "", uuid=name.uuid if name else "", **values
    )


def _ranks(cells: Mapping[str, Sequence[str]]) -> tuple[RankSample, ...]:
    rows = zip(*(cells.get(name, ()) for name in _RANK_FIELDS.values()), strict=True)
    return tuple(
        RankSample(rank=int(rank), cores=number_of(cores), memory_bytes=int(size)) for rank, cores, size in rows
    )


def _prefix(device: Device) -> str:
    return f"gpu{device[0]}" if device[1] is None else f"gpu{device[0]}_slice{device[1]}"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return "+".join(value)
    return str(value) if isinstance(value, int) else f"{value:.5g}"


def _value(name: str, cell: str) -> Any:
    if not cell:
        return None
    if name == "throttle_reasons":
        return tuple(cell.split("+"))
    return int(cell) if name.endswith(_WHOLE) else number_of(cell)
