"""A 96^3 patch out of an entry that was not opened before: every disk tier, and `torch.load` of the whole volume.

    python benchmarks/cache_read.py --folder /a/disk/with/2GB

Variants take turns in one process. "warm": the file is in the page cache; "cold": its pages were given back to the
system before each read. Every read ends with the patch copied, as a batch needs it. Writes
`benchmarks/results/cache_read.json`.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch

from harness import head, parser_of, write_record
from voxelocity.core.contracts import StoredVolume, Tier
from voxelocity.core.region import Region
from voxelocity.core.volume import Array, Grid, Volume
from voxelocity.data.cache import DiskTier, LmdbTier

PATCH = 96
KEY = "entry"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """An abdominal CT with thin slices: smooth organs in a body in air, noise of a usual dose, one label in places."""

    shape: tuple[int, int, int] = (512, 512, 256)
    noise_hu: float = 15.0
    air_noise_hu: float = 8.0
    num_reads: int = 31

    def volume(self) -> Volume:
        """The case, the same each time."""
        rng = np.random.default_rng(0)
        x, y, z = np.ogrid[tuple(slice(-1, 1, n * 1j) for n in self.shape)]
        in_body = x * x / 0.7 + y * y / 0.5 + 0 * z < 1
        image = np.where(in_body, 40 + 60 * np.sin(5 * x + 3 * z) * np.cos(4 * y), -1000).astype(np.float32)
        image += np.where(in_body, self.noise_hu, self.air_noise_hu) * rng.standard_normal(self.shape, np.float32)
        distance = (x - 0.1) ** 2 + (y + 0.2) ** 2 + z**2
        label = (distance < 0.1).astype(np.uint8) + (distance < 0.02)
        places = {index: np.flatnonzero(label == index)[::100].astype(np.int32) for index in (1, 2)}
        stored = np.clip(image, -1024, 3071).astype(np.int16)[None]
        return Volume(
            case_id="ct", image=stored, label=label, grid=Grid.of(self.shape, np.eye(4)), foreground=places
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to keep a volume: how it is written, how a patch is read if the file is not open, and which file."""

    name: str
    put: Callable[[Volume], None]
    read: Callable[[Region], tuple[Array, Array]]
    path: Path


def of_tier(name: str, make: Callable[[], Tier], path: Path) -> Variant:
    """A tier, opened once, as a run does; the entry is opened for each read."""
    tier = make()

    def read(region: Region) -> tuple[Array, Array]:
        volume = tier.get(KEY)
        assert volume is not None
        return copied(volume, region)

    return Variant(name=name, put=lambda volume: tier.put(KEY, volume), read=read, path=path)


def copied(volume: StoredVolume, region: Region) -> tuple[Array, Array]:
    """The patch in memory of its own."""
    image, label = volume.read(region)
    assert label is not None
    return np.ascontiguousarray(image), np.ascontiguousarray(label)


def of_torch(path: Path) -> Variant:
    """What MONAI's PersistentDataset does: the whole prepared case as tensors in one file, loaded, then cropped."""

    def put(volume: Volume) -> None:
        torch.save({"image": torch.tensor(volume.image), "label": torch.tensor(volume.label)}, path)

    def read(region: Region) -> tuple[Array, Array]:
        loaded = torch.load(path, weights_only=True)
        image, label = loaded["image"][(slice(None), *region.slices)], loaded["label"][region.slices]
        return image.contiguous().numpy(), label.contiguous().numpy()

    return Variant(name="torch.load, then crop", put=put, read=read, path=path)


def variants(folder: Path) -> list[Variant]:
    """Everything compared, each variant in a folder of its own."""
    found = []
    for name in ("disk raw", "disk blosc2", "lmdb raw", "lmdb blosc2"):
        tier, format = name.split()
        place = folder / name.replace(" ", "_")
        kind: Any = DiskTier if tier == "disk" else LmdbTier
        path = place / (f"{KEY}.safetensors" if tier == "disk" else "entries.lmdb")
        found.append(of_tier(name, functools.partial(kind, place, format=format), path))
    return [*found, of_torch(folder / "case.pt")]


def regions(scenario: Scenario, number: int) -> list[Region]:
    """Random patches, the same for every variant."""
    rng = np.random.default_rng(1)
    starts = [[int(rng.integers(0, n - PATCH + 1)) for n in scenario.shape] for _ in range(number)]
    return [Region((x, y, z), (x + PATCH, y + PATCH, z + PATCH)) for x, y, z in starts]


def give_back_pages(path: Path) -> None:
    """Lets the system forget the file's pages, so that the next read goes to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # only pages that are on the disk already are given back
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median and quartiles in milliseconds."""
    low, _, high = quantiles(seconds, n=4)
    return {"median_ms": 1000 * median(seconds), "low_ms": 1000 * low, "high_ms": 1000 * high, "n": len(seconds)}


def measure(scenario: Scenario, folder: Path) -> dict[str, Any]:
    """All figures, by variant."""
    volume, compared = scenario.volume(), variants(folder)
    wanted = regions(scenario, scenario.num_reads)
    facts: dict[str, dict[str, Any]] = {variant.name: {} for variant in compared}
    for variant in compared:
        start = time.perf_counter()
        variant.put(volume)
        facts[variant.name]["put_s"] = time.perf_counter() - start
        facts[variant.name]["bytes_per_voxel"] = variant.path.stat().st_size / volume.grid.num_voxels
    for state in ("warm", "cold"):
        # The pages of LMDB's file stay mapped while it is open, so the system keeps them.
        here = [variant for variant in compared if state == "warm" or not variant.name.startswith("lmdb")]
        seconds: dict[str, list[float]] = {variant.name: [] for variant in here}
        for region in wanted[:3] + wanted:
            for variant in here:
                if state == "cold":
                    give_back_pages(variant.path)
                start = time.perf_counter()
                image, label = variant.read(region)
                seconds[variant.name].append(time.perf_counter() - start)
                assert np.array_equal(image, volume.read(region)[0])
                assert np.array_equal(label, volume.label[region.slices] if volume.label is not None else label)
        for name, taken in seconds.items():
            facts[name][state] = spread(taken[3:])
    for num_threads in (1, 2):
        for variant in compared[:-1]:
            with ThreadPoolExecutor(num_threads) as pool:
                start = time.perf_counter()
                for _ in pool.map(variant.read, wanted * 4):
                    pass
                rate = 4 * len(wanted) / (time.perf_counter() - start)
            facts[variant.name][f"patches_per_s_{num_threads}_threads"] = rate
    return facts


def main() -> None:
    """Measures, prints, writes the JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, help="where to write the entries; a temporary folder if not given")
    arguments = parser.parse_args()
    scenario, record = Scenario(), head("cache_read", " ".join(sys.argv[1:]))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        facts = measure(scenario, Path(folder))
    for name, found in facts.items():
        cold = f"{found['cold']['median_ms']:7.2f} ms" if "cold" in found else "       n/a"
        print(
            f"{name:22} warm {found['warm']['median_ms']:7.2f} ms  cold {cold}  "
            f"{found['bytes_per_voxel']:.2f} bytes/voxel  put {found['put_s']:.2f} s  "
            + "  ".join(f"{k}: {v:.0f}" for k, v in found.items() if k.startswith("patches"))
        )
    write_record(record | {"shape": scenario.shape, "variants": facts}, "cache_read")


if __name__ == "__main__":
    main()
