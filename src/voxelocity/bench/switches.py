"""Settings that `voxelocity bench` turns off and on: what they change in a plan, and where they mean anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
        published: what others have published of it, and where; empty where nothing is known to us.
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
        fast_bfloat16: whether it multiplies bfloat16 in hardware.
    """

    kind: str
    words: str
    fast_bfloat16: bool


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
    return SWITCHES[name](device)


def _amp(device: Device) -> Switch:
    # The plan takes another memory format with another number format, and only one of them is compared here.
    common = {"precision.channels_last": True}
    compute = "bfloat16" if device.kind == "cpu" or device.fast_bfloat16 else "float16"
    return Switch(
        name="amp",
        title=f"mixed precision: {compute} against float32",
        off_label="float32",
        on_label=compute,
        off={"precision.compute": "float32", **common},
        on={"precision.compute": compute, **common},
        published=(
            "Published for mixed precision on a GPU: 1.11 times as fast, and 2892 MB of device memory became 1829 MB, "
            "1.58 times less. That was another network on other hardware: the figures here stand beside it, not "
            "against it."
        ),
    )


def _compile(device: Device) -> Switch:
    return Switch(
        name="compile",
        title="torch.compile against the network as it is",
        off_label="as it is",
        on_label="compiled",
        off={"precision.compile": "none"},
        on={"precision.compile": "default"},
    )


def _memory_format(device: Device) -> Switch:
    return Switch(
        name="memory-format",
        title="channels innermost (channels_last_3d) against channels outermost",
        off_label="contiguous",
        on_label="channels_last_3d",
        off={"precision.channels_last": False},
        on={"precision.channels_last": True},
    )


def _tf32(device: Device) -> Switch:
    # In float32, or there would be little for TF32 to do.
    return Switch(
        name="tf32",
        title="TF32 against float32 in full",
        off_label="float32",
        on_label="TF32",
        off={"precision.compute": "float32", "backend.tf32": False},
        on={"precision.compute": "float32", "backend.tf32": True},
    )


def _cudnn_benchmark(device: Device) -> Switch:
    return Switch(
        name="cudnn-benchmark",
        title="cuDNN's algorithms tried against its own guess",
        off_label="guessed",
        on_label="tried",
        off={"backend.cudnn_benchmark": False},
        on={"backend.cudnn_benchmark": True},
    )


def _allocator(device: Device) -> Switch:
    return Switch(
        name="allocator",
        title="torch's allocator with segments that grow against segments of fixed size",
        off_label="fixed",
        on_label="expandable",
        on_environ={"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    )


SWITCHES: dict[str, Callable[[Device], Switch]] = {
    "amp": _amp,
    "compile": _compile,
    "memory-format": _memory_format,
    "tf32": _tf32,
    "cudnn-benchmark": _cudnn_benchmark,
    "allocator": _allocator,
}
NEED_CUDA = {
    "tf32": "TF32 is a format of its matrix units",
    "cudnn-benchmark": "cuDNN is its library",
    "allocator": "the setting is of its memory",
}
"""Switches that only a GPU gives a meaning to, and why."""


def this_device() -> Device:
    """The device that a training would take here."""
    from voxelocity.data.cache import default_cache_folder
    from voxelocity.observe import environment
    from voxelocity.planning import survey

    machine = survey("auto", cache_folder=default_cache_folder())
    words = machine.device_name if machine.device == "cuda" else str(environment()["cpu"])
    return Device(kind=machine.device, words=words, fast_bfloat16=machine.fast_bfloat16)
