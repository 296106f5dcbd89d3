"""A made-up but realistic run, written the way `training` writes one."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

ENVIRONMENT = {
    "python": "3.11.9",
    "torch": "2.13.0",
    "monai": "1.6.1",
    "numpy": "2.4.0",
    "voxelocity": "0.1.0",
    "platform": "Linux-6.8-x86_64",
    "cpu": "AMD EPYC 9354",
    "num_cpus": 16,
    "memory_bytes": 137_438_953_472,
    "gpu": "NVIDIA H100 80GB HBM3",
    "commit": "8f14e45fceea167a5a36dedd4bea2543d0c3f1a2",
}
NUM_CASES = 42


def make_record(**dataset: Any) -> dict[str, Any]:
    """What `run.yaml` holds."""
    return {
        "command": "voxelocity train Task04_Hippocampus -o runs/hippocampus --time-budget 10m",
        "dataset": {
            "name": "Task04_Hippocampus",
            "path": "/data/Task04_Hippocampus",
            "layout": "msd",
            "num_cases": 260,
            "num_training": 218,
            "num_validation": NUM_CASES,
            "fold": 0,
            "held_out": True,
            "classes": ["background", "anterior", "posterior"],
            "channels": ["MRI"],
            **dataset,
        },
        "seed": 7,
        "device": "cuda",
        "plan": {
            "seed": 7,
            "data": {"patch": {"shape_voxel": [40, 56, 40]}, "cache": {"tier": "memory", "limit_bytes": 8_589_934_592}},
            "optimizer": {"name": "adamw", "learning_rate": 0.002},
            "train": {"time_budget_s": 600.0, "target_dice": 0.85, "steps": 0},
        },
        "choices": [
            {
                "key": "data.cache.tier",
                "value": "memory",
                "reason": "all 260 prepared cases take 61 MiB of 102 GiB of free memory",
                "changes_results": False,
            },
            {
                "key": "data.patch.shape_voxel",
                "value": [40, 56, 40],
                "reason": "the median case (35 × 50 × 36) fits in whole, rounded up to a multiple of 8",
                "changes_results": True,
            },
            {
                "key": "precision.autocast",
                "value": "bfloat16",
                "reason": "the GPU has bfloat16 units; measured 2.1 times faster than float32 for one step",
                "changes_results": True,
            },
            {
                "key": "precision.channels_last",
                "value": True,
                "reason": "measured here: a step takes 0.71 times as long (0.69 to 0.74, n = 5; 223 and 321 ms)",
                "changes_results": False,
                "changes_roundings": True,
                "measured": {
                    "what": "channels_last_3d against contiguous",
                    "ratio": 0.71,
                    "low": 0.69,
                    "high": 0.74,
                    "rounds": 5,
                    "decided": True,
                },
            },
            {
                "key": "data.feed.num_threads",
                "value": 4,
                "reason": "one thread prepares 310 patches a second, one step takes 22 ms for 16 of them",
                "changes_results": False,
            },
        ],
        "fingerprint": {
            "num_cases": 260,
            "shape_voxel": {"low": [31.0, 40.0, 24.0], "median": [35.0, 51.0, 36.0], "high": [43.0, 59.0, 47.0]},
            "spacing_mm": {"low": [1.0, 1.0, 1.0], "median": [1.0, 1.0, 1.0], "high": [1.0, 1.0, 1.0]},
            "stored_dtypes": {"uint8": 260},
            "file_bytes": 14_680_064,
            "class_shares": {"background": 0.948, "anterior": 0.027, "posterior": 0.025},
            "intensity": [{"median": 98.0, "mean": 101.4, "std": 17.2}],
            "prepare_s": 0.84,
        },
    }


def make_events() -> list[dict[str, Any]]:
    """What a finished run of about five minutes leaves in `events.jsonl`."""
    rng = np.random.default_rng(0)
    events: list[dict[str, Any]] = [
        {"event": "run_started", "time_s": 0.1, "environment": ENVIRONMENT},
        {"event": "stage", "time_s": 2.0, "name": "start", "seconds": 2.0},
        {"event": "stage", "time_s": 5.1, "name": "plan", "seconds": 3.1},
        {"event": "stage", "time_s": 13.5, "name": "cache", "seconds": 8.4},
        {"event": "stage", "time_s": 16.0, "name": "rehearse validation", "seconds": 2.5},
    ]
    time_s, step = 16.0, 0
    for index in range(260):
        time_s, step = time_s + 1.0, step + 44
        events.append(
            {
                "event": "steps",
                "time_s": round(time_s, 3),
                "step": step,
                "epoch": step // 14,
                "loss": 0.25 + 1.1 * math.exp(-index / 30) + 0.04 * float(rng.normal()),
                "learning_rate": 0.002 * (1 - index / 260),
                "num_steps": 44,
                "num_images": 704,
                "seconds": 1.0,
                "wait_s": 0.019,
                "parts": {"forward": 0.03, "augment": 0.12, "network": 0.80},
            }
        )
        if index % 26 == 25:
            dice = 0.89 - 0.5 * math.exp(-index / 40)
            time_s += 2.0
            events.append(
                {
                    "event": "validation",
                    "time_s": round(time_s, 3),
                    "step": step,
                    "seconds": 2.0,
                    "mean_dice": dice,
                    "dice": {"anterior": dice + 0.012, "posterior": dice - 0.012},
                    "is_best": True,
                }
            )
    events += [
        {"event": "checkpoint", "time_s": time_s, "step": step, "path": f"checkpoints/{step}.pt", "seconds": 0.4},
        {"event": "stage", "time_s": time_s + 0.5, "name": "train", "seconds": time_s + 0.5 - 16.0},
        {"event": "stage", "time_s": 302.0, "name": "validate", "seconds": 4.6},
        {
            "event": "run_finished",
            "time_s": 302.1,
            "seconds": 302.1,
            "step": step,
            "mean_dice": 0.881,
            "num_images": 704 * 260,
            "images_per_s": 704.0,
            "wait_share": 0.019,
            "budget_s": 600.0,
        },
    ]
    return events


def make_scores() -> list[dict[str, Any]]:
    """42 cases, the worst of them without a surface in one class."""
    rng = np.random.default_rng(1)
    cases = []
    for index in range(NUM_CASES):
        anterior, posterior = 0.893 + 0.02 * rng.standard_normal(2)
        hd95: dict[str, float | None] = {"anterior": 1.0 + float(rng.random()), "posterior": 1.2 + float(rng.random())}
        if index == 17:
            anterior, hd95["anterior"] = 0.0, None
        dice = {"anterior": float(anterior), "posterior": float(posterior)}
        cases.append({"case_id": f"hippocampus_{index:03d}", "dice": dice, "hd95_mm": hd95})
    return cases


def make_slices(count: int = 4) -> dict[str, np.ndarray]:
    """Blobs of two classes on a noisy ellipse."""
    rng = np.random.default_rng(2)
    rows, columns = np.mgrid[0:51, 0:36]
    arrays: dict[str, np.ndarray] = {}
    for i in range(count):
        head = ((rows - 25) / 24) ** 2 + ((columns - 18) / 16) ** 2 < 1
        image = np.clip(head * 120 + 25 * rng.standard_normal(head.shape) + rows, 0, 255)
        for name, shift in (("truth", 0), ("prediction", i)):
            front = ((rows - 17) / 8) ** 2 + ((columns - 17 - shift) / 6) ** 2 < 1
            back = ((rows - 32) / 9) ** 2 + ((columns - 19) / 5) ** 2 < 1
            classes = np.where(back, 2, np.where(front, 1, 0)).astype(np.uint8)
            arrays |= {
                f"{i}_axial_{name}": np.stack([classes] * 3),
                f"{i}_coronal_{name}": classes[None, :20].repeat(2, 0),
            }
        grey = image.astype(np.uint8)
        arrays |= {f"{i}_axial_image": np.stack([grey] * 3), f"{i}_coronal_image": grey[None, :20].repeat(2, 0)}
        arrays |= {f"{i}_axial_pixel_mm": np.array([1.0, 1.0]), f"{i}_coronal_pixel_mm": np.array([3.0, 1.0])}
        arrays[f"{i}_title"] = np.array(f"hippocampus_{i:03d}, Dice 0.{88 - i}1")
    return arrays


def write_run(
    folder: Path,
    *,
    record: dict[str, Any] | None = None,
    events: list[dict[str, Any]] | None = None,
    scores: list[dict[str, Any]] | None = None,
    slices: dict[str, np.ndarray] | None = None,
) -> Path:
    """Writes the folder of a run; what is None is not written, but for the record, which has a default."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(record or make_record(), sort_keys=False))
    if events is not None:
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if scores is not None:
        (folder / "scores.json").write_text(json.dumps({"cases": scores}))
    if slices is not None:
        np.savez_compressed(folder / "slices.npz", **slices)
    return folder


@pytest.fixture
def record() -> dict[str, Any]:
    """A fresh `run.yaml` to change."""
    return make_record()


@pytest.fixture
def events() -> list[dict[str, Any]]:
    """Fresh events of a finished run to change."""
    return make_events()


@pytest.fixture
def scores() -> list[dict[str, Any]]:
    """Fresh scores to change."""
    return make_scores()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write_run` into a new folder."""
    return lambda **contents: write_run(tmp_path / "run", **contents)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that came to its end, for all tests: read it, but change nothing in it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return write_run(folder, events=make_events(), scores=make_scores(), slices=make_slices())


@pytest.fixture
def copied_run(finished_run: Path, tmp_path: Path) -> Path:
    """The same folder, to be changed."""
    return shutil.copytree(finished_run, tmp_path / "copied")


@pytest.fixture(autouse=True)
def _charts_are_blank():
    """Not here, where they are looked at."""
