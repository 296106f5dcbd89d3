"""Whether a network learns left from right: the parotids of 20 CTs, with earlier flips, current flips, and none.

    python benchmarks/laterality.py [--seeds 0 1 2] [--steps 450]

Every training has the same network, patches and number of steps; only flips and what they do to labels differ, and
mirrored windows follow them. Writes `benchmarks/results/laterality.json` after each training, in order of the seeds.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch

from harness import head, parser_of, real_data, write_record
from voxelocity.bench.switched import train_afresh
from voxelocity.data.source import open_cases
from voxelocity.infer import Predictor, load_model

CLASSES = ("background", "RightParotid", "LeftParotid")
_VALUES = {"RightParotid": 3, "LeftParotid": 4}


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Head and neck CTs cropped to the box of their organs, so that a patch sees both sides at once."""

    dataset: str = "openkbp_headneck_ct"
    steps: int = 450
    # Coarse and small, to fit nine trainings into half an hour of two cores; a patch is as large as a case.
    keys: dict[str, Any] = field(
        default_factory=lambda: {
            "planner.measure": "never",
            "data.prepare.spacing_mm": [9.0, 9.0, 9.0],
            "data.patch.shape_voxel": [28, 24, 28],
            "network.name": "dynunet",
            "network.strides": [[2, 2, 2], [2, 2, 2]],
            "network.widths": [8, 16, 32],
            "train.validation_share": 0.0,
        }
    )
    settings: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            # Until this benchmark.
            "flips, labels unswapped": {"data.augment.swap_pairs": [], "data.augment.flip_probability": [0.5, 0, 0]},
            "flips, labels swapped": {},
            "no flips": {"data.augment.flip_probability": [0, 0, 0]},
        }
    )


def write_parotids(source: Path, folder: Path) -> Path:
    """The data set with two classes, each case cropped to the box of all its organs."""
    description = json.loads((source / "dataset.json").read_text())
    for entry in description["training"]:
        image, label = (nib.load(source / entry[key]) for key in ("image", "label"))
        values = np.asarray(label.dataobj)
        inside = np.argwhere(values > 0)
        box = tuple(slice(int(a), int(b) + 1) for a, b in zip(inside.min(0), inside.max(0), strict=True))
        sides = np.zeros_like(values)
        for index, name in enumerate(CLASSES[1:], start=1):
            sides[values == _VALUES[name]] = index
        for key, scan in (("image", image), ("label", nib.Nifti1Image(sides, label.affine, label.header))):
            path = folder / entry[key]
            path.parent.mkdir(parents=True, exist_ok=True)
            nib.save(scan.slicer[box], path)
    description["labels"] = {str(index): name for index, name in enumerate(CLASSES)}
    (folder / "dataset.json").write_text(json.dumps(description))
    return folder


def judge(run: Path, dataset: Path) -> dict[str, Any]:
    """Dice of each side and of both as one, and how many voxels of a side were given the other's name, all cases."""
    network, spec = load_model(run)
    predictor = Predictor(network, spec, device=torch.device("cpu"))
    refs = open_cases(dataset).split(0).validation
    dice: dict[str, list[float]] = {name: [] for name in (*CLASSES[1:], "either side")}
    confusion = np.zeros((len(CLASSES), len(CLASSES)), dtype=np.int64)
    for scan, found in predictor.stream(refs, num_threads=1):
        assert scan.label is not None
        for index, name in enumerate(CLASSES[1:], start=1):
            dice[name].append(_dice(found == index, scan.label == index))
        dice["either side"].append(_dice(found > 0, scan.label > 0))
        pairs = scan.label.astype(np.int64) * len(CLASSES) + found
        confusion += np.bincount(pairs.ravel(), minlength=confusion.size).reshape(confusion.shape)
    called = {name: int(confusion[i, 3 - i]) for i, name in enumerate(CLASSES[1:], start=1)}
    voxels = {name: int(confusion[i].sum()) for i, name in enumerate(CLASSES[1:], start=1)}
    return {
        "dice": {name: statistics.fmean(values) for name, values in dice.items()},
        "called_the_other_side": called,
        "voxels": voxels,
    }


def _dice(found: Any, wanted: Any) -> float:
    return float(2.0 * (found & wanted).sum() / max(1, found.sum() + wanted.sum()))


def main() -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=Sides.steps)
    options = parser.parse_args()
    sides = Sides(steps=options.steps)
    record: dict[str, Any] = head("laterality", f"--seeds {' '.join(map(str, options.seeds))}")
    record |= {"settings": asdict(sides), "runs": []}
    with tempfile.TemporaryDirectory() as name:
        dataset = write_parotids(real_data() / sides.dataset, Path(name) / "parotids")
        for seed in options.seeds:
            for setting, keys in sides.settings.items():
                run = Path(name) / f"{len(record['runs'])}"
                train_afresh(dataset, run, {**sides.keys, "train.steps": sides.steps, "seed": seed, **keys}, {})
                record["runs"].append({"setting": setting, "seed": seed, **judge(run, dataset)})
                print(json.dumps(record["runs"][-1]), flush=True)
                write_record(record, "laterality", out=options.out)


if __name__ == "__main__":
    main()
