"""A model in the runtime that the user asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from voxelocity.infer.model import ForeignNetwork, Model
from voxelocity.infer.runtimes.contract import EAGER, NamedForward, RuntimeTask
from voxelocity.step import precision_on
from voxelocity_observe.core.device import Device, Host
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.host import default_cache_folder
from voxelocity_observe.core.measured import FOLDER_NAME

if TYPE_CHECKING:
    import torch

AUTO = "auto"


def check_name(name: str, device: Device) -> None:
    """Returns if the user may ask for a runtime of this name.

    Raises:
        ConfigError: it is not known or cannot be used here.
    """
    # An export has its own runtime, which `check_model` compares.
    if name in (AUTO, EAGER) or isinstance(device, Host):
        return
    from voxelocity.infer.runtimes.table import check_runtime

    check_runtime(name, device)


def check_model(name: str, model: Model, device: Device) -> None:
    """Returns if the model may run in a runtime of this name. Opens an exported network.

    Raises:
        InputError: the model is an export, which has its own runtime, or which cannot be used on the device; or its
            windows have no fixed shape, which only eager mode takes.
    """
    if not isinstance(model.network, ForeignNetwork):
        if model.spec.window.is_of_volume and name not in (AUTO, EAGER):
            raise InputError(
                f"predict: {model.folder} passes whole volumes of different shapes to its network; --runtime "
                f"{name} needs one shape: leave it out"
            )
        return
    if name not in (AUTO, EAGER):
        raise InputError(
            f"predict: {model.folder} is an export, which runs only in {model.network.runtime}; leave --runtime {name} "
            "out, or predict with the run that it was exported from"
        )
    model.network.open(device)


def load_chosen(
    name: str,
    model: Model,
    *,
    num_windows: int,
    device: Device,
    warn: Callable[[str], None],
    note: Callable[[str], None],
) -> NamedForward:
    """The model's network in the runtime of this name, "auto" included; an export in its own.

    Args:
        name: which `check_name` and `check_model` accepted.
        model: moved to the device.
        num_windows: of all scans to be predicted, without mirrored ones.
        device: where windows are.
        warn: called if the runtime cannot be built.
        note: called with what "auto" chose and why.
    """
    if isinstance(model.network, ForeignNetwork):
        return NamedForward(model.network.runtime, model.network)
    from voxelocity.infer.runtimes.auto import load_quickest
    from voxelocity.infer.runtimes.native import load_eager
    from voxelocity.infer.runtimes.table import load_named

    assert not isinstance(device, Host), "only exports run without torch"
    task = task_of(model, device)
    network = model.network.to(device, memory_format=task.precision.memory_format)  # type: ignore[call-overload]
    if name == EAGER or num_windows == 0 or model.spec.window.is_of_volume:
        return NamedForward(EAGER, load_eager(network, task))
    if name != AUTO:
        return load_named(name, network, task, warn=warn)
    return load_quickest(
        network,
        task,
        num_windows=num_windows * 2 ** len(set(model.spec.window.mirror_axes)),
        folder=default_cache_folder() / FOLDER_NAME,
        note=note,
    )


def task_of(model: Model, device: torch.device) -> RuntimeTask:
    """What a runtime of the model's network has to compute on the device."""
    window, precision = model.spec.window, precision_on(model.spec.precision, device)
    if model.is_last_on_cpu and device.type == "cpu":
        precision = precision.model_copy(update={"channels_last": True})
    return RuntimeTask(
        # The preparation of an ensemble may repeat the channels.
        num_channels=model.describe_prepared().num_channels,
        shape_voxel=window.shape_voxel,
        batch_size=window.batch_size,
        device=device,
        precision=precision,
    )
