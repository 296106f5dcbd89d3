"""Runs a script of Auto3DSeg's templates on a CPU that stands in for a GPU with $AUTO3DSEG_MEMORY bytes.

python benchmarks/auto3dseg_on_cpu.py ANSWER SCRIPT ARGUMENTS

CUDA's devices are the CPU; autocast and gradient scaling do nothing. The answer, as `run_trial` reads it, has the
seconds that the script ran, the patches that its network trained on, in how many steps, and the most windows that it
took at once. The process that starts it ends it if it takes too much memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
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


def main() -> None:
    answer, script = Path(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    # The templates log into the current folder.
    os.chdir(answer.parent)
    sys.path.insert(0, str(Path(script).parent))
    vars(torch)["device"] = _Device
    autocast, scaler, amp = torch.amp.autocast, torch.amp.GradScaler, vars(torch.amp)
    amp["autocast"] = lambda device_type="cpu", *args, **options: autocast("cpu", enabled=False)
    amp["GradScaler"] = lambda device="cpu", *args, **options: scaler("cpu", enabled=False)
    network: list[torch.nn.Module] = []
    patches, windows = list[int](), [0]

    def note(module: torch.nn.Module, given: tuple[Any, ...]) -> None:
        if not network and given and isinstance(given[0], torch.Tensor) and given[0].ndim == 5:
            network.append(module)
        if network and module is network[0]:
            (patches if torch.is_grad_enabled() else windows).append(len(given[0]))

    register_module_forward_pre_hook(note)
    begin_s = time.perf_counter()
    with seeming_gpu(int(os.environ["AUTO3DSEG_MEMORY"])):
        runpy.run_path(script, run_name="__main__")
    found = {
        "seconds": time.perf_counter() - begin_s,
        "patches": sum(patches),
        "steps": len(patches),
        "windows": max(windows),
    }
    answer.write_text(json.dumps({"measurements": found}))


if __name__ == "__main__":
    main()
