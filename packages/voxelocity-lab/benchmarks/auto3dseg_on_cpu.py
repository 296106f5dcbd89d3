"""Runs a script of Auto3DSeg's templates; without a GPU on a CPU that stands in for one of $AUTO3DSEG_MEMORY bytes.

python benchmarks/auto3dseg_on_cpu.py ANSWER SCRIPT ARGUMENTS

Then CUDA's devices are the CPU; autocast and gradient scaling do nothing. The answer, as `run_trial` reads it, has the
seconds that the script ran, the patches that its network trained on, in how many steps, the most windows that it
took at once, and loss and Dice with the seconds and the CPU seconds until then. The process that starts it ends it if
it takes too much memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import yaml
from torch.nn.modules.module import register_module_forward_pre_hook

_DEVICE = torch.device
_CURVES = {"train/loss": "loss", "val/acc": "dice"}
"""What the templates call loss and Dice in TensorBoard."""
_NUM_POINTS = 40
Point = tuple[float, float, float]
"""Seconds, CPU seconds of this process, and a value."""


class _AsDevice(type):
    """`isinstance(x, torch.device)` still means the real one."""

    def __instancecheck__(cls, instance: object) -> bool:
        return type(instance) is _DEVICE


class _Device(metaclass=_AsDevice):
    def __new__(cls, kind: Any = "cpu", *rest: Any) -> Any:
        return _DEVICE("cpu") if isinstance(kind, int) or str(kind).startswith("cuda") else _DEVICE(kind, *rest)


@contextlib.contextmanager
def seeming_gpu(memory_bytes: int) -> Iterator[None]:
    """Within the block torch reports one GPU with this memory, for code that asks how much there is."""
    reported: dict[str, Any] = {
        "device_count": lambda: 1,
        "mem_get_info": lambda device=None: (memory_bytes, memory_bytes),
        "get_device_properties": lambda index: SimpleNamespace(total_memory=memory_bytes),
    }
    # The templates set the first; the second keeps segresnet2d in spite of isotropic voxels.
    variables = {"PYTORCH_CUDA_ALLOC_CONF": "", "SEGRESNET2D_ALWAYS": "1"}
    with mock.patch.multiple(torch.cuda, **reported), mock.patch.dict(os.environ, variables):
        yield


def shrink(work: Path) -> None:
    """Makes networks and patches small, as users do in the files of a work folder."""
    for file in work.glob("*_[0-9]/configs/*.yaml"):
        values = yaml.safe_load(file.read_text())
        inner = values.get("training", values)
        if "init_filters" in values.get("network", {}):
            values["network"] |= {"init_filters": 8, "blocks_down": [1, 1, 1]}
            values |= {"auto_scale_batch": False, "roi_size": [32, 32, 16]}
        elif "roi_size_valid" in inner:
            inner |= {"roi_size": [32] * 3, "roi_size_valid": [32] * 3}
        elif "training_network" in values:
            values["training_network"]["dints_space"]["channel_mul"] = 0.25
        elif "network" in values:
            # A single voxel is left at the bottom, which its usual norm cannot take.
            values["network"] |= {"feature_size": 12, "norm_name": ["group", {"num_groups": 1}]}
        file.write_text(yaml.safe_dump(values, sort_keys=False))


@contextlib.contextmanager
def _standing_in(memory_bytes: int) -> Iterator[None]:
    """Within the block, this process's CPU is what scripts take for a GPU."""
    vars(torch)["device"] = _Device
    autocast, scaler, amp = torch.amp.autocast, torch.amp.GradScaler, vars(torch.amp)
    amp["autocast"] = lambda device_type="cpu", *args, **options: autocast("cpu", enabled=False)
    amp["GradScaler"] = lambda device="cpu", *args, **options: scaler("cpu", enabled=False)
    with seeming_gpu(memory_bytes):
        yield


def note_curves(begin_s: float) -> dict[str, list[Point]]:
    """Loss and Dice by name, as they come: what is logged for TensorBoard from now on is noted there."""
    from torch.utils.tensorboard import SummaryWriter

    curves: dict[str, list[Point]] = {name: [] for name in _CURVES.values()}
    add_scalar = SummaryWriter.add_scalar

    def note(writer: Any, tag: str, value: Any, *rest: Any, **options: Any) -> None:
        if tag in _CURVES:
            curves[_CURVES[tag]].append((time.perf_counter() - begin_s, time.process_time(), float(value)))
        add_scalar(writer, tag, value, *rest, **options)

    mock.patch.object(SummaryWriter, "add_scalar", note).start()
    return curves


def thinned(points: list[Point], most: int = _NUM_POINTS) -> list[Point]:
    """At most this many points, each the mean of as many that follow each other, at the time of their last."""
    size = -(-len(points) // most)
    groups = [points[start : start + size] for start in range(0, len(points), max(size, 1))]
    return [(*group[-1][:2], statistics.fmean(value for *_, value in group)) for group in groups]


def main() -> None:
    answer, script = Path(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    # The templates log into the current folder.
    os.chdir(answer.parent)
    sys.path.insert(0, str(Path(script).parent))
    network: list[torch.nn.Module] = []
    patches, windows = list[int](), [0]

    def note(module: torch.nn.Module, given: tuple[Any, ...]) -> None:
        if not network and given and isinstance(given[0], torch.Tensor) and given[0].ndim == 5:
            network.append(module)
        if network and module is network[0]:
            (patches if torch.is_grad_enabled() else windows).append(len(given[0]))

    register_module_forward_pre_hook(note)
    begin_s = time.perf_counter()
    curves = note_curves(begin_s)
    with contextlib.nullcontext() if torch.cuda.is_available() else _standing_in(int(os.environ["AUTO3DSEG_MEMORY"])):
        runpy.run_path(script, run_name="__main__")
    found = {
        "seconds": time.perf_counter() - begin_s,
        "patches": sum(patches),
        "steps": len(patches),
        "windows": max(windows),
    }
    about = {"curves": {name: thinned(points) for name, points in curves.items()}}
    answer.write_text(json.dumps({"measurements": found, "about": about}))


if __name__ == "__main__":
    main()
