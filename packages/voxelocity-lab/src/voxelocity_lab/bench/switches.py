"""The settings that `voxelocity bench NAME` trains off and on, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from voxelocity.planning import Machine
from voxelocity_lab.bench.phantom import PhantomSet
from voxelocity_observe.core.errors import InputError

# Of every published figure: what it was measured on decides it.
_ELSEWHERE = "That was another network on other hardware: do not compare the figures here with it."


@dataclass(frozen=True)
class Switch:
    """One setting, off and on; everything else of the two trainings is equal.

    Attributes:
        name: as in `voxelocity bench NAME`.
        title: what is compared, in words.
        labels: of the training without it and of the one with it.
        keys: of the plan, each with its values off and on.
        on_environ: variables of the process that trains with it.
        scenario: fields of `SwitchSettings` that are not as in other trainings.
        about: why they are not, for the page.
        published: what others have published about it, and where; empty where we know of nothing.
    """

    name: str
    title: str
    labels: tuple[str, str]
    keys: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    on_environ: Mapping[str, str] = field(default_factory=dict)
    scenario: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""
    published: str = ""

    @property
    def off(self) -> dict[str, Any]:
        """Keys of the plan without the setting."""
        return {key: values[0] for key, values in self.keys.items()}

    @property
    def on(self) -> dict[str, Any]:
        """Keys of the plan with it."""
        return {key: values[1] for key, values in self.keys.items()}


NEED_CUDA = {
    "tf32": "TF32 is a format of its matrix units",
    "cudnn-benchmark": "cuDNN is its library",
    "allocator": "the setting is about its memory",
}
"""Switches that only make sense on a GPU, and why."""

# Where epochs to a target are what counts; the speed under way is that of steps alone.
_WATCHED_OFTEN = {"train.validate_every_steps": (10, 10)}
# Where the data are what counts: on a CPU, a large network would hide what they cost, and cases that stay on a GPU
# change the number of threads, too.
_SMALL_NETWORK = {
    "data.cache.device_max_bytes": 0,
    "network.name": "unet",
    "network.widths": [8, 16, 32],
    "network.strides": [[2, 2, 2], [2, 2, 2]],
    "data.patch.shape_voxel": [48, 48, 32],
    "window.shape_voxel": [48, 48, 32],
}
_ABOUT_SMALL = "The network is small: on a CPU, a large one would hide the cost of the data."
# Compressed and resampled, as scans of clinics are; 8 to train on, so that an epoch is four batches.
_CLINICAL = PhantomSet(kind="ct", shape=(256, 256, 96), num_cases=9, spacing_mm=(1.6, 1.6, 4.0), packed=True)
# Where epochs to a Dice are what counts: half a minute of CPU time a training, so that seeds can be repeated.
_SHORT = {
    "cases": PhantomSet(kind="ct", shape=(40, 40, 32), num_cases=24, spacing_mm=(6.4, 6.4, 7.5)),
    "num_held_out": 8,
    "steps": 160,
    "plan": {**_SMALL_NETWORK, "data.patch.shape_voxel": [40, 40, 32], "window.shape_voxel": [40, 40, 32]},
}
_ABOUT_SHORT = "Cases and network are small: the comparison is in epochs, which take seconds."
_SWITCHES = (
    Switch(
        "amp",
        "mixed precision: bfloat16 against float32",
        ("float32", "bfloat16"),
        # The plan takes another memory format with another number format, and only one of them is compared here.
        {"precision.compute": ("float32", "bfloat16"), "precision.channels_last": (True, True)},
        published=(
            "Published for mixed precision on a GPU: 1.11 times as fast, and 2892 MB of device memory became 1829 MB, "
            f"1.58 times less. {_ELSEWHERE}"
        ),
    ),
    Switch("compile", "torch.compile against the uncompiled network", ("not compiled", "compiled"),
           {"precision.compile": ("none", "default")}),
    Switch("memory-format", "channels innermost (channels_last_3d) against channels outermost",
           ("contiguous", "channels_last_3d"), {"precision.channels_last": (False, True)}),
    Switch("muon", "Muon against AdamW, each with its learning rate", ("AdamW", "Muon"),
           {"optimizer.name": ("adamw", "muon"), "optimizer.learning_rate": (4e-3, 8e-3)}),
    Switch(
        "caching", "prepared cases kept in memory against files read for every patch", ("read again", "cached"),
        {"data.cache.tier": ("none", "memory")},
        scenario={
            "cases": _CLINICAL,
            "num_held_out": 1,
            "steps": 24,
            "rounds": 5,
            "num_validations": 1,
            "num_cases_on_the_way": 1,
            # Validation is not what differs.
            "plan": {**_SMALL_NETWORK, "data.prepare.spacing_mm": [2.0, 2.0, 4.0], "window.overlap": 0.0},
        },
        about=_ABOUT_SMALL,
        published=f"MONAI's guide reports a factor of 10 for an epoch from cached data. {_ELSEWHERE}",
    ),
    Switch(
        "thread-buffer", "batches made ahead in a thread (MONAI's ThreadBuffer) against in the training thread",
        ("when needed", "ahead"), {"data.feed.num_threads": (0, 1)},
        # All of the augmentation from the first step on is what a thread can do meanwhile.
        scenario={"steps": 160, "num_validations": 1, "plan": {**_SMALL_NETWORK, "data.augment.ramp_epochs": 0}},
        about=_ABOUT_SMALL,
        published=f"MONAI's guide reports 50.7 s without ThreadBuffer and 31.1 s with it. {_ELSEWHERE}",
    ),
    Switch(
        "dice-ce", "Dice plus cross-entropy against Dice alone", ("Dice", "Dice and cross-entropy"),
        {"loss.name": ("dice", "dice_ce"), **_WATCHED_OFTEN},
        scenario=_SHORT,
        about=_ABOUT_SHORT,
        published=f"MONAI's guide reports 50 epochs to a target instead of 200 with DiceCE. {_ELSEWHERE}",
    ),
    Switch(
        "novograd", "NovoGrad against AdamW, each with its learning rate", ("AdamW", "NovoGrad"),
        # Of 4e-3, 8e-3 and 1.6e-2, AdamW learned most by the last on these cases (n = 1): at 4e-3 it would look slow.
        {"optimizer.name": ("adamw", "novograd"), "optimizer.learning_rate": (1.6e-2, 4e-2), **_WATCHED_OFTEN},
        scenario=_SHORT,
        about=_ABOUT_SHORT,
        published=f"MONAI's guide reports 30 epochs to a target instead of 50 with Novograd. {_ELSEWHERE}",
    ),
    Switch("stem", "DynUNet at half the resolution against DynUNet", ("no stem", "stem of stride 2"),
           {"network.stem_stride": ([1, 1, 1], [2, 2, 2])}),
    Switch("ramp", "augmentation that ramps up over 50 epochs against full augmentation from the "
        "start", ("all of it", "rising"),
           {"data.augment.ramp_epochs": (0, 50)}),
    Switch("average", "a running average of the weights against the last ones", ("last weights", "average"),
           {"optimizer.average_decay": (0.0, 0.98)}),
    # In float32, or there would be little for TF32 to do.
    Switch("tf32", "TF32 against full float32", ("float32", "TF32"),
           {"precision.compute": ("float32", "float32"), "backend.tf32": (False, True)}),
    Switch("cudnn-benchmark", "cuDNN's algorithms benchmarked against its heuristic", ("guessed", "tried"),
           {"backend.cudnn_benchmark": (False, True)}),
    Switch("allocator", "torch's allocator with segments that grow against segments of fixed size",
           ("fixed", "expandable"), on_environ={"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
)  # fmt: skip
SWITCHES = {switch.name: switch for switch in _SWITCHES}


def make_switch(name: str, machine: Machine) -> Switch:
    """The setting of this name on this machine.

    Raises:
        InputError: it means nothing without a CUDA device.
    """
    if machine.device != "cuda" and name in NEED_CUDA:
        raise InputError(
            f"bench: '{name}' needs a CUDA device ({NEED_CUDA[name]}), and torch sees none here; choose one of "
            f"{', '.join(other for other in SWITCHES if other not in NEED_CUDA)}"
        )
    switch = SWITCHES[name]
    if name == "amp" and machine.device == "cuda" and not machine.fast_bfloat16:
        keys = {**switch.keys, "precision.compute": ("float32", "float16")}
        title = switch.title.replace("bfloat16", "float16")
        return replace(switch, title=title, labels=("float32", "float16"), keys=keys)
    return switch
