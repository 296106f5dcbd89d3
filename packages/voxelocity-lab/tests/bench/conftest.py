from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

CLASSES = ["background", "liver", "spleen"]


def write_fake_run(out: Path, keys: Mapping[str, Any], *, step_s: float, dice: float, peak_mib: int) -> None:
    """A finished run of `train.steps` steps, one stretch each, whose first took 10 s; two validations on the way."""
    out.mkdir()
    dataset = {"name": "Fake", "classes": CLASSES, "channels": ["CT"], "num_cases": 6, "num_training": 3, "fold": 0}
    record = {"dataset": dataset, "seed": keys["seed"], "device": "cpu", "plan": {"keys": dict(keys)}}
    (out / "run.yaml").write_text(yaml.safe_dump(record))
    events: list[dict[str, Any]] = [{"event": "run_started", "time_s": 0.0, "environment": {"cpu": "EPYC"}}]
    time_s, steps = 0.0, int(keys["train.steps"])
    for step in range(1, steps + 1):
        seconds = 10.0 if step == 1 else step_s
        time_s += seconds
        events.append(
            {
                "event": "steps",
                "time_s": time_s,
                "step": step,
                "epoch": step // 3,
                "loss": 1.0 / step,
                "learning_rate": 0.1,
                "num_steps": 1,
                "num_images": 2,
                "seconds": seconds,
                "wait_s": 0.0,
                "parts": {"network": seconds},
            }
        )
        if step in (steps // 2, steps):
            at = dice * step / steps
            events.append(
                {
                    "event": "validation",
                    "time_s": time_s,
                    "step": step,
                    "seconds": 0.0,
                    "mean_dice": at,
                    "dice": {},
                    "is_best": True,
                }
            )
    events.append(
        {
            "event": "run_finished",
            "time_s": time_s,
            "seconds": time_s,
            "step": steps,
            "mean_dice": dice,
            "num_images": 2 * steps,
            "images_per_s": 2 * steps / time_s,
            "wait_share": 0.0,
            "peak_host_bytes": peak_mib * 2**20,
            "peak_device_bytes": None,
        }
    )
    (out / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    cases = [
        {
            "case_id": f"case_{i}",
            "dice": {"liver": dice + 0.01 * i, "spleen": dice},
            "hd95_mm": {"liver": 2.0, "spleen": None},
        }
        for i in range(3)
    ]
    (out / "scores.json").write_text(json.dumps({"cases": cases}))


@pytest.fixture
def fake_train() -> Callable[..., float]:
    """Trains nothing: float32 takes 2 s a step, 40 CPU-s and 300 MiB, all else 1 s, 10, 200 and Dice 0.002 more."""

    def train(dataset: Path, out: Path, keys: Mapping[str, Any], environ: Mapping[str, str]) -> float:
        assert dataset.is_file()
        is_slow = keys.get("precision.compute") == "float32"
        dice = 0.8 + 0.01 * int(keys["seed"]) + (0.0 if is_slow else 0.002)
        write_fake_run(out, keys, step_s=2.0 if is_slow else 1.0, dice=dice, peak_mib=300 if is_slow else 200)
        return 40.0 if is_slow else 10.0

    return train
