"""A model in a runtime: what its windows are, how many a list of scans has, and the runtime that the user asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from voxelocity.core.errors import InputError
from voxelocity.core.volume import VolumeSpec
from voxelocity.data.cache import default_cache_folder
from voxelocity.data.decode import ScanHeader
from voxelocity.data.patch import grid_regions
from voxelocity.infer.model import Model
from voxelocity.infer.models.exported import ExportedNetwork
from voxelocity.infer.runtimes.auto import load_quickest
from voxelocity.infer.runtimes.contract import Forward, RuntimeTask
from voxelocity.infer.runtimes.table import EAGER, check_runtime, load_named
from voxelocity.observe.measured import FOLDER_NAME
from voxelocity.step import precision_on

AUTO = "auto"


def check_choice(name: str, model: Model, device: torch.device) -> None:
    """Returns if the user may ask for a runtime of this name, before any scan is read. Opens an exported network.

    Raises:
        ConfigError: the runtime is not known or cannot be used here.
        InputError: the model is an export, which has its own runtime, or cannot be used on the device.
    """
    if isinstance(model.network, ExportedNetwork):
        if name not in (AUTO, EAGER):
            raise InputError(
                f"predict: {model.folder} is an export for {model.network.format}, which is its runtime; leave "
                f"--runtime {name} out, or predict with the run that it was exported from"
            )
        model.network.open(device)
    elif name != AUTO:
        check_runtime(name, device)


def load_chosen(
    name: str,
    model: Model,
    scans: Sequence[Sequence[ScanHeader]],
    *,
    device: torch.device,
    warn: Callable[[str], None],
    note: Callable[[str], None],
) -> Forward | None:
    """The model's network in the runtime of this name, "auto" included; None for eager mode.

    Args:
        name: which `check_choice` accepted.
        model: moved to the device.
        scans: headers of the files of each scan to be predicted.
        device: where windows are.
        warn: called if the runtime cannot be built.
        note: called with what "auto" chose and why.
    """
    if name == EAGER or isinstance(model.network, ExportedNetwork) or not scans:
        return None
    specs = [_spec_of(headers) for headers in scans]
    task = task_of(model, device, num_channels=model.preparation.describe(specs[0]).spec.num_channels)
    network = model.network.to(device, memory_format=task.precision.memory_format)  # type: ignore[call-overload]
    if name != AUTO:
        return load_named(name, network, task, warn=warn)
    num_windows = count_windows(model, specs)
    return load_quickest(network, task, num_windows=num_windows, folder=default_cache_folder() / FOLDER_NAME, note=note)


def task_of(model: Model, device: torch.device, *, num_channels: int) -> RuntimeTask:
    """What a runtime of the model's network has to compute.

    Args:
        model: the model.
        device: where windows are.
        num_channels: of a prepared scan.
    """
    window = model.spec.window
    return RuntimeTask(
        num_channels=num_channels,
        shape_voxel=window.shape_voxel,
        batch_size=window.batch_size,
        device=device,
        precision=precision_on(model.spec.precision, device),
    )


def count_windows(model: Model, scans: Iterable[VolumeSpec]) -> int:
    """Windows that pass through the network for these scans, mirrored ones included; an estimate if scans are cropped
    to what they show.
    """
    window = model.spec.window
    shapes = [model.preparation.describe(scan).spec.grid.shape for scan in scans]
    num = sum(len(grid_regions(shape, window.shape_voxel, window.overlap)) for shape in shapes)
    return int(num * 2 ** len(set(window.mirror_axes)))


def _spec_of(headers: Sequence[ScanHeader]) -> VolumeSpec:
    num_channels = sum(header.num_channels for header in headers)
    return VolumeSpec(num_channels=num_channels, grid=headers[0].grid, dtype=headers[0].dtype)
