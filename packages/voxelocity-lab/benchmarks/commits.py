"""An earlier commit and this one side by side: feed, step, cache, filling it, and MONAI's data sets under our names.

    python benchmarks/commits.py c1b6f27 [--rounds 7]

Each workload runs in a fresh process on the sources of either commit, which take turns; the first two rounds compile
and do not count. The same Python and packages serve both. Writes `benchmarks/results/commits.json`.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness import ROOT, alternate, head, parser_of, real_data, run_fresh, source_folders, write_record

_HEAD = """
import inspect, json, sys, time
from pathlib import Path
import torch
import voxelocity as vx
from voxelocity.core.region import Region
from voxelocity.data.pipeline import PreparedCases
torch.set_num_threads(2)
# Earlier commits always wait.
waits = {"waits_for_loops": True} if "waits_for_loops" in inspect.signature(vx.Feed).parameters else {}
data, work = Path(sys.argv[1]), sys.argv[2]
cases = vx.open(data / "openkbp_headneck_ct")
keys = {
    "planner.measure": "never", "data.cache.tier": "disk", "data.cache.folder": work, "data.batch_size": 2,
    "data.patch.shape_voxel": [64, 64, 64], "data.feed.num_threads": 2, "data.augment.flip_probability": [0, 0, 0],
    "data.augment.affine_probability": 1.0, "data.prepare.spacing_mm": [3.0, 3.0, 3.0],
}
def planned(**more):
    return vx.plan(cases, overrides={**keys, **more}, cache_folder=Path(work)).plan.data
def prepared(config):
    return PreparedCases(list(cases), label_values=cases.label_values, prepare=config.prepare, cache=config.cache,
                         warn=print)
def fill(of):
    of.fill(num_threads=2, on_case=lambda case, size: None, should_stop=lambda: False)
class Timed:
    def __enter__(self):
        self.began = time.perf_counter(), time.process_time()
    def __exit__(self, *error):
        wall, cpu = self.began
        print(json.dumps({"seconds": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}))
"""

# A process can end before its thread has compiled everything.
_WARM_UPS = 2
WORKLOADS: Mapping[str, str] = {
    # 20 CTs of 128^3: read, windowed, resampled to 3 mm, written and found again.
    "build": """
of = prepared(planned())
fill(of.part([0]))
with Timed():
    fill(of)
""",
    # 80,000 boxes of 32^3 from entries on disk.
    "cache": """
of = prepared(planned())
fill(of)
volumes = [of[index] for index in range(len(of))]
boxes = [Region((n % 9, n % 7, n % 5), (32 + n % 9, 32 + n % 7, 32 + n % 5)) for n in range(4000)]
for volume in volumes:
    volume.read(boxes[0])
with Timed():
    for box in boxes:
        for volume in volumes:
            volume.read(box)
""",
    # 300 batches of two augmented patches of 64^3 from the cache in memory.
    "feed": """
with vx.Feed(cases, planned(**{"data.cache.tier": "memory"}), device="cpu", **waits) as feed:
    for _ in range(20):
        next(feed)
    with Timed():
        for _ in range(300):
            next(feed)
""",
    # Twenty steps of the planned network and precision on one batch.
    "step": """
from voxelocity.step import TrainingStep, build_loss, build_network
plan = vx.plan(cases, overrides={**keys, "data.patch.shape_voxel": [32, 32, 32]}, cache_folder=Path(work)).plan
with vx.Feed(cases, plan.data, device="cpu", **waits) as feed:
    batch = next(feed)
network = build_network(plan.network, num_channels=1, num_classes=len(cases.label_values), seed=0)
step = TrainingStep(
    network, build_loss(plan.loss), optimizer=plan.optimizer, precision=plan.precision, device=torch.device("cpu")
)
for _ in range(4):
    step(batch, 0.01)
with Timed():
    for _ in range(20):
        step(batch, 0.01)
""",
    # Thirty epochs of MONAI's CacheDataset and ThreadDataLoader, imported from us.
    "drop-ins": """
from monai.transforms import (Compose, EnsureChannelFirstd, LoadImaged, RandAffined, RandFlipd, RandGaussianNoised,
                              RandScaleIntensityd, RandSpatialCropd, ScaleIntensityRanged)
from voxelocity.monai import CacheDataset, ThreadDataLoader
both = ["image", "label"]
chain = Compose([
    LoadImaged(both), EnsureChannelFirstd(both), ScaleIntensityRanged("image", -160, 240, 0, 1, clip=True),
    RandSpatialCropd(both, (64, 64, 64), random_size=False), RandFlipd(both, prob=0.5, spatial_axis=0),
    RandAffined(both, prob=1.0, rotate_range=0.3, scale_range=0.1, mode=["bilinear", "nearest"]),
    RandGaussianNoised("image", prob=0.5), RandScaleIntensityd("image", factors=0.1, prob=0.5),
]).set_random_state(0)
files = [{"image": str(ref.images[0]), "label": str(ref.label)} for ref in cases]
dataset = CacheDataset(files, chain, progress=False)
loader = ThreadDataLoader(dataset, batch_size=2, num_workers=0)
def epochs(num):
    for _ in range(num):
        for _ in loader:
            pass
# Compiled loops are loaded when a random transform first needs them.
epochs(5)
with Timed():
    epochs(30)
""",
}


def measure(sources: Mapping[str, Path], name: str, rounds: int, work: Path) -> dict[str, Any]:
    """The median seconds and CPU seconds of both commits, and the ratios of the rounds, later to earlier."""
    sides = {commit: partial(_run, source, name, work / commit) for commit, source in sources.items()}
    found = alternate(sides, rounds, warm_ups=_WARM_UPS)
    before, now = found.values()
    record: dict[str, Any] = {"n": rounds}
    for unit in ("seconds", "cpu_s"):
        ratios = sorted(b[unit] / a[unit] for a, b in zip(before, now, strict=True))
        record[unit] = {
            **{commit: median(row[unit] for row in rows) for commit, rows in found.items()},
            "now_to_before": {"median": median(ratios), "least": ratios[0], "most": ratios[-1]},
        }
    return record


def _run(source: Path, name: str, work: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=work) as folder:
        environ = {
            "PYTHONPATH": os.pathsep.join(map(str, source_folders(source))),
            "NUMBA_CACHE_DIR": str(work / "numba"),
        }
        return run_fresh("-c", _HEAD + WORKLOADS[name], real_data(), folder, environ=environ)


def _export(commit: str, folder: Path) -> Path:
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    build_loops = folder / "packages/voxelocity/src/voxelocity/core/build_loops.py"
    if build_loops.exists():
        subprocess.run([sys.executable, str(build_loops)], check=True)
    return folder


def main() -> None:
    """The command line."""
    parser = parser_of(__doc__, out=True)
    parser.add_argument("before", help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    record = head("commits", options.before)
    with tempfile.TemporaryDirectory() as name:
        sources = {commit: _export(commit, Path(name) / commit) for commit in (options.before, "HEAD")}
        for name_of in WORKLOADS:
            record[name_of] = measure(sources, name_of, options.rounds, Path(name))
            print(name_of, json.dumps(record[name_of]), flush=True)
    write_record(record, "commits", out=options.out)


if __name__ == "__main__":
    main()
