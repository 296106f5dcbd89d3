"""What libraries take in memory, measured in a process of its own: `python -m voxelocity.training.library_memory`.

It reads a plan from its input and trains, as a run does, on a made-up case of few voxels: this loads code, compiles
loops and starts threads, while data and network take next to nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch

from voxelocity.core.config import find_factory
from voxelocity.core.volume import VolumeRef
from voxelocity.data.pipeline import Feed, PreparedCases
from voxelocity.planning.config import Plan, plan_with
from voxelocity.planning.make import Planned
from voxelocity.planning.memory_estimate import LibraryMemory
from voxelocity.step import NETWORKS, NetworkConfig, TrainingStep, build_loss, build_network
from voxelocity_observe.core.environment import python_path
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.host import peak_host_bytes

_SIDE = 16
_TINY = NetworkConfig(name="dynunet", widths=(4, 8, 16), strides=((2, 2, 2), (2, 2, 2)))


def measure_libraries(planned: Planned) -> LibraryMemory:
    """Main memory that libraries take on this machine, from a process of its own that computes tiny steps.

    Raises:
        InputError: it failed.
    """
    given = {
        "plan": planned.plan.to_plain(),
        "device": planned.machine.device,
        "num_channels": planned.cases.num_channels,
    }
    done = subprocess.run(
        [sys.executable, "-m", "voxelocity.training.library_memory"],
        input=json.dumps(given),
        env={**os.environ, "PYTHONPATH": python_path()}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise InputError(
            f"plan: the process that measures the memory of libraries ended with status {done.returncode}: {last}; "
            "training on this machine would fail in the same way, so fix that, or leave out --memory"
        )
    return LibraryMemory(**json.loads(done.stdout.splitlines()[-1]))


def measure(plan: Plan, device: torch.device, *, num_channels: int) -> dict[str, int]:
    """Peaks of this process's main memory once a case is prepared, and after two steps.

    Cases have as many channels as those of the run, which the user's own augmentation may need. What a run imports is
    imported with this package.
    """
    source = NETWORKS[plan.network.name].source
    if source == "user":
        find_factory(plan.network.factory, key="network.factory")
    elif source == "monai":
        import monai.networks.nets  # noqa: F401
    keys: dict[str, Any] = {
        "data.patch.shape_voxel": [_SIDE] * 3,
        "data.patch.growth": [],
        "window.shape_voxel": [_SIDE] * 3,
    }
    keys |= {"data.batch_size": 2, "data.cache.tier": "memory", "data.cache.device_max_bytes": 0}
    keys |= {"data.augment.swap_pairs": [], "window.swap_pairs": []}
    keys |= {f"network.{name}": value for name, value in _TINY.to_plain().items()}
    tiny = plan_with(plan, keys, where="plan")
    with tempfile.TemporaryDirectory() as folder:
        cases = PreparedCases(
            [_case(Path(folder), plan, num_channels)],
            label_values=[0, 1],
            prepare=plan.data.prepare,
            cache=tiny.data.cache,
            warn=lambda text: None,
        )
        cases.fill(num_threads=1, on_case=lambda *_: None, should_stop=lambda: False)
        preparing = peak_host_bytes()
        network = build_network(_TINY, num_channels=num_channels, num_classes=2, seed=0).train()
        step = TrainingStep(
            network, build_loss(plan.loss), optimizer=plan.optimizer, precision=plan.precision, device=device
        )
        with Feed(cases, tiny.data, device=device) as feed:
            for _ in range(2):
                step(next(feed), plan.optimizer.learning_rate)
    return {"preparing_bytes": preparing, "training_bytes": peak_host_bytes()}


def _case(folder: Path, plan: Plan, num_channels: int) -> VolumeRef:
    """A scan that must be resampled, if the plan resamples."""
    spacing = plan.data.prepare.spacing_mm
    affine = np.diag([*(1.25 * np.array((1.0, 1.0, 1.0) if spacing == "keep" else spacing)), 1.0])
    voxels = np.arange((2 * _SIDE) ** 3, dtype=np.int16).reshape([2 * _SIDE] * 3) % 100
    for name, values in (("image", voxels), ("label", (voxels > 50).astype(np.uint8))):
        nibabel.save(nibabel.Nifti1Image(values, affine), folder / f"{name}.nii.gz")
    return VolumeRef(case_id="made up", images=(folder / "image.nii.gz",) * num_channels, label=folder / "label.nii.gz")


if __name__ == "__main__":
    given = json.load(sys.stdin)
    plan, device = Plan.parse(given["plan"], where="plan"), torch.device(given["device"])
    print(json.dumps(measure(plan, device, num_channels=given["num_channels"])))
