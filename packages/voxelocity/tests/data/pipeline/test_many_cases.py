"""Ten thousand cases must cost ten thousand times one: counted in calls to the system, not in seconds."""

import json
import os
import subprocess
import sys

import pytest

from voxelocity_observe.core.environment import python_path

# Few files may be open at once. Every opened file and every listed folder is counted.
_SCRIPT = """
import collections, json, os, resource, sys
from dataclasses import replace
from pathlib import Path
import nibabel as nib
import numpy as np
import voxelocity
from voxelocity.data.cache import choose
from voxelocity.data.pipeline import DataConfig, Feed, PreparedCases

folder, tier, format = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
choose.memory_folder = lambda *, min_free_bytes: (folder / "shm", "")
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
counts = collections.Counter()
sys.addaudithook(lambda event, _: counts.update([event]) if event in ("open", "os.listdir", "os.scandir") else None)

def counted(num_cases):
    root = folder / f"data{num_cases}"
    for name in ("imagesTr", "labelsTr"):
        (root / name).mkdir(parents=True)
    listing = []
    for number in range(num_cases):
        pair = {"image": f"imagesTr/{number}.nii", "label": f"labelsTr/{number}.nii"}
        nib.save(nib.Nifti1Image(np.full((6, 6, 6), number, np.int16), np.eye(4)), root / pair["image"])
        nib.save(nib.Nifti1Image(np.eye(6, dtype=np.uint8)[None].repeat(6, 0), np.eye(4)), root / pair["label"])
        listing.append(pair)
    description = {"name": "many", "modality": {"0": "MR"}, "labels": {"0": "background", "1": "plane"}}
    (root / "dataset.json").write_text(json.dumps({**description, "numTraining": num_cases, "training": listing}))
    config = DataConfig.parse(
        {
            "prepare": {},
            "cache": {
                "tier": tier, "format": format, "folder": str(folder / f"cache{num_cases}"), "max_bytes": 2**30,
                "num_cases": num_cases // 2,
            },
            "patch": {"shape_voxel": [4, 4, 4]},
            "batch_size": 1,
            "feed": {"num_threads": 2, "num_batches_ahead": 4},
        }
    )
    before = collections.Counter(counts)
    cases = voxelocity.open(root)
    voxelocity.plan(cases)
    prepared = PreparedCases(
        cases.refs, label_values=(0, 1), prepare=config.prepare, cache=config.cache, warn=sys.exit
    )
    if config.cache.tier != "rotating":
        facts = prepared.fill(num_threads=2, on_case=lambda *_: None, should_stop=lambda: False)
        assert facts.num_kept == num_cases
    drawn = set()
    with Feed(prepared, config) as feed:
        for _ in range(num_cases):
            drawn.update(next(feed).case_ids)
    assert tier == "rotating" or len(drawn) == num_cases
    return counts - before

print(json.dumps([counted(10)] + [counted(num_cases) for num_cases in (60, 120)]))
"""


@pytest.mark.nightly
@pytest.mark.parametrize("tier", ["memory raw", "disk raw", "disk blosc2", "lmdb raw", "rotating raw"])
def test_twice_as_many_cases_take_twice_as_many_calls_and_no_more_open_files(tmp_path, tier):
    source = python_path()
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, tmp_path, *tier.split()],
        env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, few, many = json.loads(done.stdout)
    assert many["open"] > 120, "files are counted"
    assert many["open"] <= 2.3 * few["open"]
    for listed in ("os.listdir", "os.scandir"):
        assert many.get(listed, 0) <= few.get(listed, 0) + 4, "folders are listed a fixed number of times"
