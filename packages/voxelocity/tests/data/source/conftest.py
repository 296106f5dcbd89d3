"""Data sets of empty files: this room reads names, so no scan is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Touch = Callable[..., None]
WriteJson = Callable[..., Path]


@pytest.fixture
def touch(tmp_path: Path) -> Touch:
    """Makes empty files below the test's folder."""

    def make(*names: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()

    return make


@pytest.fixture
def write_json(tmp_path: Path) -> WriteJson:
    """Writes a value as JSON below the test's folder."""

    def write(value: Any, name: str = "dataset.json") -> Path:
        (tmp_path / name).write_text(json.dumps(value))
        return tmp_path / name

    return write


@pytest.fixture
def msd(touch: Touch) -> dict[str, Any]:
    """A valid MSD description of the cases a, b and c, whose files exist."""
    entries = []
    for case in ("b", "a", "c"):
        touch(f"imagesTr/{case}.nii.gz", f"labelsTr/{case}.nii.gz")
        entries.append({"image": f"./imagesTr/{case}.nii.gz", "label": f"./labelsTr/{case}.nii.gz"})
    return {
        "name": "Tiny",
        "modality": {"0": "CT"},
        "labels": {"0": "background", "2": "liver", "1": "spleen"},
        "training": entries,
        "test": ["./imagesTs/absent.nii.gz"],
    }


@pytest.fixture
def nnunet(touch: Touch) -> dict[str, Any]:
    """A valid nnU-Net v2 description of the two-channel cases a, b and c, whose files exist."""
    for case in ("b", "a", "c"):
        touch(f"imagesTr/{case}_0000.nii.gz", f"imagesTr/{case}_0001.nii.gz", f"labelsTr/{case}.nii.gz")
    return {
        "channel_names": {"0": "T1", "1": "T2"},
        "labels": {"background": 0, "lesion": 1},
        "numTraining": 3,
        "file_ending": ".nii.gz",
    }
