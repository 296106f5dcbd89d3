"""Ten thousand small entries as files and in one LMDB file: making, opening, a patch of each, files, deleting.

    python benchmarks/many_entries.py [--entries 10000] [--folder /a/disk/with/2GB]

The tiers take turns in one process. Every entry is flushed to the disk as it is made and later found in the page cache.
Writes `benchmarks/results/many_entries.json`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness import head, parser_of, write_record
from voxelocity.core.contracts import StoredVolume, Tier
from voxelocity.core.region import Region
from voxelocity.core.volume import Grid, Volume
from voxelocity.data.cache import DiskTier, LmdbTier

SIDE = 24
PATCH = Region((4, 4, 4), (20, 20, 20))
REPEATS = 3


def mr_block() -> Volume:
    """A case as in `growth.py`: 24 x 24 x 24 voxels with a label."""
    image = np.random.default_rng(0).normal(100, 20, (1, SIDE, SIDE, SIDE)).astype(np.int16)
    label = np.zeros(image.shape[1:], np.uint8)
    label[4:20, 4:20, 4:20] = 1
    return Volume(
        case_id="block",
        image=image,
        label=label,
        grid=Grid.of(image.shape, np.eye(4)),
        foreground={1: np.flatnonzero(label)[::4].astype(np.int32)},
    )


def measure(make: Callable[[Path], Tier], folder: Path, num_entries: int) -> dict[str, float]:
    """Seconds and files of one tier, which is deleted afterwards."""
    volume, keys = mr_block(), [f"{number:040x}" for number in range(num_entries)]
    facts: dict[str, float] = {}

    def timed(name: str, work: Callable[[], object]) -> None:
        start = time.perf_counter()
        work()
        facts[name] = time.perf_counter() - start

    def build() -> None:
        tier = make(folder)
        for key in keys:
            with tier.lock(key):
                tier.put(key, volume)

    timed("build_s", build)
    found: list[StoredVolume | None] = []

    def open_all() -> None:
        tier = make(folder)
        found.extend(tier.get(key) for key in keys)

    timed("open_all_s", open_all)
    timed("patch_of_each_s", lambda: [np.array(one.read(PATCH)[0]) for one in found if one is not None])
    assert None not in found
    facts["num_files"] = sum(len(files) for _, _, files in os.walk(folder))
    found.clear()
    timed("delete_s", lambda: shutil.rmtree(folder))
    return facts


def main() -> None:
    """Measures, prints, writes the JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="where to write the entries; a temporary folder if not given")
    arguments = parser.parse_args()
    record = head("many_entries", " ".join(sys.argv[1:]))
    runs: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    makers: dict[str, Callable[[Path], Tier]] = {"disk": DiskTier, "lmdb": LmdbTier}
    for _ in range(REPEATS):
        for name, make in makers.items():
            folder = Path(tempfile.mkdtemp(dir=arguments.folder))
            runs[name].append(measure(make, folder, arguments.entries))
            print(name, runs[name][-1], flush=True)
    variants: dict[str, Any] = {
        name: {key: median(run[key] for run in all_runs) for key in all_runs[0]} | {"runs": all_runs}
        for name, all_runs in runs.items()
    }
    write_record(record | {"num_entries": arguments.entries, "variants": variants}, "many_entries")


if __name__ == "__main__":
    main()
