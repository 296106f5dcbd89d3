"""Settings that `voxelocity bench` turns off and on: what they change in a plan, and where they mean anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from voxelocity.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One setting, off and on; everything else of the two trainings is equal.

    Attributes:
        name: as in `voxelocity bench NAME`.
        title: what is compared, in words.
        off_label: of the training without it. `on_label` likewise.
        off: keys of the plan without it. `on` likewise.
        on_environ: variables of the process that trains with it.
        published: what others have published about it, and where; empty where we know of nothing.
    """

    name: str
    title: str
    off_label: str
    on_label: str
    off: Mapping[str, Any] = field(default_factory=dict)
    on: Mapping[str, Any] = field(default_factory=dict)
    on_environ: Mapping[str, str] = field(default_factory=dict)
    published: str = ""


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where the trainings run.

    Attributes:
        kind: "cpu" or "cuda".
        words: its name, for titles.
        fast_bfloat16: whether it computes bfloat16 faster than float32.
    """

    kind: str
    words: str
    fast_bfloat16: bool


NEED_CUDA = {
    "tf32": "TF32 is a format of its matrix units",
    "cudnn-benchmark": "cuDNN is its library",
    "allocator": "the setting is about its memory",
}
"""Switches that only make sense on a GPU, and why."""

_SWITCHES = (
    Switch(
        name="amp",
        title="mixed precision: bfloat16 against float32",
        off_label="float32",
        on_label="bfloat16",
        # The plan takes another memory format with another number format, and only one of them is compared here.
        off={"precision.compute": "float32", "precision.channels_last": True},
        on={"precision.compute": "bfloat16", "precision.channels_last": True},
        published=(
            "Published for mixed precision on a GPU: 1.11 times as fast, and 2892 MB of device memory became 1829 MB, "
            "1.58 times less. That was another network on other hardware: the figures here are not to be compared "
            "with it."
        ),
    ),
    Switch(
        name="compile",
        title="torch.compile against the uncompiled network",
        off_label="not compiled",
        on_label="compiled",
        off={"precision.compile": "none"},
        on={"precision.compile": "default"},
    ),
    Switch(
        name="memory-format",
        title="channels innermost (channels_last_3d) against channels outermost",
        off_label="contiguous",
        on_label="channels_last_3d",
        off={"precision.channels_last": False},
        on={"precision.channels_last": True},
    ),
    Switch(
        name="muon",
        title="Muon against AdamW, each with its learning rate",
        off_label="AdamW",
        on_label="Muon",
        off={"optimizer.name": "adamw", "optimizer.learning_rate": 4e-3},
        on={"optimizer.name": "muon", "optimizer.learning_rate": 8e-3},
    ),
    Switch(
        name="stem",
        title="DynUNet at half the resolution against DynUNet",
        off_label="no stem",
        on_label="stem of stride 2",
        off={"network.stem_stride": [1, 1, 1]},
        on={"network.stem_stride": [2, 2, 2]},
    ),
    Switch(
        name="ramp",
        title="augmentation that rises over 50 epochs against all of it from the start",
        off_label="all of it",
        on_label="rising",
        off={"data.augment.ramp_epochs": 0},
        on={"data.augment.ramp_epochs": 50},
    ),
    Switch(
        name="average",
        title="a running average of the weights against the last ones",
        off_label="last weights",
        on_label="average",
        off={"optimizer.average_decay": 0.0},
        on={"optimizer.average_decay": 0.98},
    ),
    # In float32, or there would be little for TF32 to do.
    Switch(
        name="tf32",
        title="TF32 against float32 in full",
        off_label="float32",
        on_label="TF32",
        off={"precision.compute": "float32", "backend.tf32": False},
        on={"precision.compute": "float32", "backend.tf32": True},
    ),
    Switch(
        name="cudnn-benchmark",
        title="cuDNN's algorithms tried against its own guess",
        off_label="guessed",
        on_label="tried",
        off={"backend.cudnn_benchmark": False},
        on={"backend.cudnn_benchmark": True},
    ),
    Switch(
        name="allocator",
        title="torch's allocator with segments that grow against segments of fixed size",
        off_label="fixed",
        on_label="expandable",
        on_environ={"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    ),
)
SWITCHES = {switch.name: switch for switch in _SWITCHES}


def make_switch(name: str, device: Device) -> Switch:
    """The setting of this name on this device.

    Raises:
        InputError: it means nothing without a CUDA device.
    """
    if device.kind != "cuda" and name in NEED_CUDA:
        raise InputError(
            f"bench: '{name}' needs a CUDA device ({NEED_CUDA[name]}), and torch sees none here; choose one of "
            f"{', '.join(other for other in SWITCHES if other not in NEED_CUDA)}"
        )
    switch = SWITCHES[name]
    if name == "amp" and device.kind == "cuda" and not device.fast_bfloat16:
        on = {**switch.on, "precision.compute": "float16"}
        return replace(switch, title=switch.title.replace("bfloat16", "float16"), on_label="float16", on=on)
    return switch


def this_device() -> Device:
    """The device that a training would take here."""
    from voxelocity.data.cache import default_cache_folder
    from voxelocity.observe import environment
    from voxelocity.planning import survey

    machine = survey("auto", cache_folder=default_cache_folder())
    words = machine.device_name if machine.device == "cuda" else str(environment()["cpu"])
    return Device(kind=machine.device, words=words, fast_bfloat16=machine.fast_bfloat16)
