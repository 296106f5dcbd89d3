"""What grows how: building, reopening, memory and patches a second for 10 to 10,000 tiny cases.

    python benchmarks/growth.py [--cases 10 100 1000 10000]

Each size runs in a process of its own, on the disk tier. Writes `benchmarks/results/growth.json`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from harness import head, parser_of, run_fresh, write_record

_SIDE = 24
_BATCH = 4
_STEPS = 300


def write_cases(folder: Path, num_cases: int) -> None:
    """MR-like blocks of 24 x 24 x 24 voxels in an MSD folder."""
    rng = np.random.default_rng(0)
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True)
    listing = []
    for number in range(num_cases):
        image = rng.normal(100, 20, (_SIDE,) * 3).astype(np.int16)
        label = np.zeros((_SIDE,) * 3, np.uint8)
        label[4:20, 4:20, 4:20] = 1
        name = f"case_{number:05d}.nii"
        nib.save(nib.Nifti1Image(image, np.eye(4)), folder / "imagesTr" / name)
        nib.save(nib.Nifti1Image(label, np.eye(4)), folder / "labelsTr" / name)
        listing.append({"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"})
    description = {
        "name": "tiny",
        "channel_names": {"0": "MR"},
        "modality": {"0": "MR"},
        "labels": {"0": "background", "1": "block"},
        "numTraining": num_cases,
        "training": listing,
        "test": [],
    }
    (folder / "dataset.json").write_text(json.dumps(description))


def measure(folder: Path, num_cases: int) -> dict[str, Any]:
    """Seconds, bytes and rates for a data set of this size, in this process."""
    import psutil

    from voxelocity.data.pipeline import DataConfig, Feed, PreparedCases
    from voxelocity.data.source import open_cases

    data = folder / "data"
    start = time.perf_counter()
    write_cases(data, num_cases)
    record: dict[str, Any] = {"num_cases": num_cases, "write_s": time.perf_counter() - start}
    config = DataConfig.parse(
        {
            "prepare": {},
            "cache": {"tier": "disk", "folder": str(folder / "cache")},
            "patch": {"shape_voxel": [16, 16, 16]},
            "batch_size": _BATCH,
            "feed": {"num_threads": 1, "num_batches_ahead": 4},
        }
    )
    start = time.perf_counter()
    cases = open_cases(data)
    record["open_s"] = time.perf_counter() - start
    for name in ("build_s", "reopen_s"):
        start = time.perf_counter()
        prepared = PreparedCases(
            cases.refs, label_values=(0, 1), prepare=config.prepare, cache=config.cache, warn=print
        )
        facts = prepared.fill(num_threads=2, on_case=lambda *_: None, should_stop=lambda: False)
        record[name] = time.perf_counter() - start
        assert facts.num_kept == num_cases
    record["cache_bytes"] = facts.num_bytes
    with Feed(prepared, config) as feed:
        next(feed)
        start = time.perf_counter()
        for _ in range(_STEPS):
            next(feed)
        record["patches_per_s"] = _STEPS * _BATCH / (time.perf_counter() - start)
        record["num_open_files"] = psutil.Process().num_fds()
        record["resident_bytes"] = psutil.Process().memory_info().rss
    return record


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--cases", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(Path(folder), options.one)))
        return
    record, records = head("growth"), []
    for num_cases in options.cases:
        records.append(run_fresh(__file__, "--one", num_cases))
        print(records[-1])
    write_record(record | {"sizes": records}, "growth")


if __name__ == "__main__":
    main()
