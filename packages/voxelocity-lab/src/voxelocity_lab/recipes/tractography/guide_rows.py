"""The four rows of TractoDiff's table: seconds of an epoch, use of the device, time of a streamline, largest batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from voxelocity_lab.bench.comparison import Comparison
from voxelocity_observe.core.host import cpu_budget
from voxelocity_observe.monitor.monitor import Monitor
from voxelocity_observe.monitor.samples import Sample

TrainingWay = Callable[[int, int], float]
"""Trains with a batch size for a number of steps; returns streamlines a second."""
OURS, PLAIN = "Voxelocity", "A loop with batches"
# Long enough for a GPU's own average of a sixth of a second.
_STEPS_WATCHED, _PERIOD_S = 100, 0.2


def guide_rows(
    ways: Mapping[str, TrainingWay],
    comparisons: Sequence[Comparison],
    batch_size: int,
    num_streamlines: int,
    device: torch.device,
) -> dict[str, Any]:
    """A mapping for each row, from the way to its figure; none where it cannot be known.

    Args:
        ways: to train.
        comparisons: training (streamlines/s) and sampling (seconds for 1,000), as they were measured.
        batch_size: of the comparison, from which the search for the largest begins.
        num_streamlines: of an epoch.
        device: they train on.
    """
    training, sampling = ({figure.name: figure.median for figure in found.figures} for found in comparisons)
    plain_samples = next(name for name in sampling if name != OURS)
    rates = {OURS: training[OURS], PLAIN: training[f"{PLAIN} of {batch_size}"]}
    return {
        "epoch_s": {name: num_streamlines / rate if rate else None for name, rate in rates.items()},
        "device_use": {name: _device_use(train, batch_size, device) for name, train in ways.items()},
        "streamline_ms": {OURS: sampling[OURS], PLAIN: sampling[plain_samples]},
        "largest_batch": {
            name: largest_batch(train, batch_size, num_streamlines, device) for name, train in ways.items()
        },
    }


def _device_use(train: TrainingWay, batch_size: int, device: torch.device) -> float | None:
    """The share of a training in which the GPU ran a kernel; on a CPU, of all cores that this process may use."""
    with Monitor(period_s=_PERIOD_S) as monitor:
        train(batch_size, _STEPS_WATCHED)
    shares = [share for sample in monitor.record.samples if (share := _share(sample, device)) is not None]
    return sum(shares) / len(shares) if shares else None


def _share(sample: Sample, device: torch.device) -> float | None:
    if device.type == "cpu":
        cores = sample.host.program_cores
        return None if cores is None else min(1.0, cores / cpu_budget())
    index = device.index if device.index is not None else torch.cuda.current_device()
    return next((gpu.busy_share for gpu in sample.gpus if gpu.index == index), None)


def largest_batch(train: TrainingWay, batch_size: int, num_streamlines: int, device: torch.device) -> int | None:
    """The largest of `batch_size`, twice that, and so on, that fits; a quarter of the streamlines is not exceeded.

    None on a CPU, where the system would move other programs' memory to the disk first.
    """
    if device.type == "cpu":
        return None
    fits = None
    while batch_size <= num_streamlines // 4:
        try:
            train(batch_size, 1)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            break
        fits, batch_size = batch_size, 2 * batch_size
    return fits
