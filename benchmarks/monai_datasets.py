"""Items of real size from `PersistentDataset` and `CacheDataset`: under MONAI's import line and under ours.

    python benchmarks/monai_datasets.py [--folder /a/disk/with/1GB]

Both sides take turns in one process, each round begun by the other. An item is an image of 256 x 256 x 128 float32
with a label of uint8; a use is one crop of 96 x 96 x 96, read whole. CPU time of the process, and time on the clock,
which says little on a machine with other work. Writes `benchmarks/results/monai_datasets.json`.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import monai.data
import torch
from monai.data import MetaTensor
from monai.transforms import Compose, RandSpatialCropd, Transform

import voxelocity.monai
from harness import head, parser_of, write_record

SHAPE = (1, 256, 256, 128)
NUM_ITEMS = 4
NUM_EPOCHS = 3
ROUNDS = 5
SIDES = {"voxelocity": voxelocity.monai, "monai": monai.data}


class MadeItem(Transform):  # type: ignore[misc]
    """A case of noise in place of a chain that loads and resamples: cheap, as its cost is the same on both sides."""

    def __call__(self, number: int) -> dict[str, Any]:
        """Image and label of this case."""
        source = torch.Generator().manual_seed(number)
        image = torch.rand(SHAPE, generator=source)
        return {"image": MetaTensor(image), "label": MetaTensor((image > 0.9).to(torch.uint8))}


def measure(side: Any, kind: str, folder: Path) -> dict[str, float]:
    """Seconds of one side: its first epoch, an item of a later one, and the first item of another run."""
    chain = Compose([MadeItem(), RandSpatialCropd(["image", "label"], (96, 96, 96), random_size=False)])
    found: dict[str, float] = {}

    def make() -> Any:
        if kind == "PersistentDataset":
            return side.PersistentDataset(range(NUM_ITEMS), chain, folder)
        return side.CacheDataset(range(NUM_ITEMS), chain, progress=False)

    def timed(name: str, work: Any, parts: int = 1) -> Any:
        cpu, clock = time.process_time(), time.perf_counter()
        result = work()
        found[f"{name}, CPU"] = (time.process_time() - cpu) / parts
        found[f"{name}, clock"] = (time.perf_counter() - clock) / parts
        return result

    def first_epoch() -> Any:
        dataset = make()
        for index in range(NUM_ITEMS):
            dataset[index]["image"].sum()
        return dataset

    dataset = timed("first epoch", first_epoch)
    uses = [index % NUM_ITEMS for index in range(NUM_ITEMS * NUM_EPOCHS)]
    timed("item of a later epoch", lambda: [dataset[index]["image"].sum() for index in uses], len(uses))
    if kind == "PersistentDataset":
        timed("first item of another run", lambda: make()[0]["image"].sum())
    return found


def main() -> None:
    """Measures, prints, writes the JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, help="where to write the items; a temporary folder if not given")
    arguments = parser.parse_args()
    record = head("monai_datasets", "--folder DIR" if arguments.folder else "")
    variants: dict[str, Any] = {}
    for kind in ("PersistentDataset", "CacheDataset"):
        rounds: list[dict[str, dict[str, float]]] = []
        for number in range(ROUNDS + 1):
            order = list(SIDES) if number % 2 else list(SIDES)[::-1]
            this_round = {}
            for name in order:
                with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                    this_round[name] = measure(SIDES[name], kind, Path(folder))
                gc.collect()
            # The first round warms up.
            rounds += [this_round] if number else []
        variants[kind] = {}
        for name in rounds[0]["monai"]:
            ratios = [one["monai"][name] / one["voxelocity"][name] for one in rounds]
            medians = {side: statistics.median(one[side][name] for one in rounds) for side in SIDES}
            spread = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
            variants[kind][name] = {**medians, "ours_better_by": spread, "n": len(ratios)}
            print(
                f"{kind}, {name}: {medians['voxelocity'] * 1e3:.1f} ms, MONAI {medians['monai'] * 1e3:.1f} ms, {spread}"
            )
    write_record(record | {"variants": variants}, "monai_datasets")


if __name__ == "__main__":
    main()
