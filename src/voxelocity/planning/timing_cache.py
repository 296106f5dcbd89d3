"""Measured steps in the user's cache folder, so that each network is measured once on each machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from voxelocity.core.errors import OutputError
from voxelocity.core.whole_file import write_whole
from voxelocity.observe import Clock, cpu_name, system_clock
from voxelocity.planning.interleaved_timing import MIN_ROUNDS, Times
from voxelocity.planning.machine import Machine
from voxelocity.planning.step_benchmark import StepTask, StepVariant, describe, time_steps

FOLDER_NAME = "measured"
_FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class CachedStepTimer:
    """Times of steps, either kept from an earlier measurement on the same machine or measured now; a `StepTimer`.

    Keeps one file for each task, machine and version of torch, which describes all three next to the seconds. You may
    remove it at any time. A damaged file is measured again. A step that could not be timed is not kept.

    Attributes:
        folder: where the files are.
        machine: where the steps run.
        refresh: whether to measure again even if times are kept, and to keep the new ones.
        clock: returns seconds.
    """

    folder: Path
    machine: Machine
    refresh: bool = False
    clock: Clock = system_clock

    def __call__(self, task: StepTask, ways: Mapping[str, StepVariant], *, limit_s: float) -> Times:
        """Times of a step by way. If the folder cannot be read or written, the step is measured again."""
        about = {"format_version": _FORMAT_VERSION, "machine": _machine(self.machine), "step": describe(task, ways)}
        path = self.folder / f"{_digest(about)}.json"
        kept = None if self.refresh else _read(path, about)
        if kept is not None:
            return kept
        times = time_steps(task, ways, self.machine.torch_device, limit_s=limit_s, clock=self.clock)
        if times.seconds:
            record = {**about, "seconds": {name: list(values) for name, values in times.seconds.items()}}
            # With a full or protected folder, the next plan measures again; this plan is not affected.
            with contextlib.suppress(OutputError):
                write_whole(path, json.dumps(record, indent=1).encode())
        return times


def _machine(machine: Machine) -> dict[str, Any]:
    on_cpu = machine.device == "cpu"
    return {
        "device": machine.device,
        "name": cpu_name() if on_cpu else machine.device_name,
        "num_cpus": machine.num_cpus,
        "num_threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _digest(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


def _read(path: Path, about: Mapping[str, Any]) -> Times | None:
    """The times in a file about exactly this; None if there is no such file or it is damaged."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or any(record.get(key) != value for key, value in about.items()):
        return None
    seconds = record.get("seconds")
    if not isinstance(seconds, dict) or not all(_are_seconds(values) for values in seconds.values()):
        return None
    # Some ways may be missing, left out for lack of time.
    ways = about["step"]["ways"]
    lengths = {len(values) for values in seconds.values()}
    if len(seconds) < 2 or not seconds.keys() <= ways.keys() or len(lengths) != 1 or min(lengths) < MIN_ROUNDS:
        return None
    return Times(seconds={name: tuple(values) for name, values in seconds.items()})


def _are_seconds(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, float) and value > 0.0 for value in values)
