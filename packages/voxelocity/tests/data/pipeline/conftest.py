from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from shared.forked import ForkedPython
from shared.noted_cases import NotedCases
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.pipeline import DataConfig


@pytest.fixture(scope="session")
def blob_refs(tmp_path_factory) -> tuple[VolumeRef, ...]:
    """Five small labeled scans of different shapes, with one ball each."""
    folder: Path = tmp_path_factory.mktemp("blobs")
    refs = []
    for i in range(5):
        rng = np.random.default_rng(i)
        shape = (18 + i, 20, 16)
        distance = np.linalg.norm(np.stack(np.indices(shape)) - np.array([9, 10, 8]).reshape(3, 1, 1, 1), axis=0)
        label = (distance < 5).astype(np.uint8)
        image = (rng.normal(size=shape) * 20 + 100 * label).astype(np.int16)
        paths = folder / f"case_{i}.nii.gz", folder / f"label_{i}.nii.gz"
        for array, path in zip((image, label), paths, strict=True):
            nib.save(nib.Nifti1Image(array, np.eye(4)), path)
        refs.append(VolumeRef(case_id=f"case_{i}", images=(paths[0],), label=paths[1], fold=i % 2))
    return tuple(refs)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Where the memory tiers of a test and of its processes meet."""
    folder: Path = tmp_path / "shm"
    monkeypatch.setattr("voxelocity.data.cache.choose.memory_folder", lambda *, min_free_bytes: (folder, ""))
    return folder


@pytest.fixture
def wanted(blob_refs, data_config) -> list[Volume]:
    """The volumes of all cases, prepared without a cache."""
    cases = NotedCases(blob_refs, data_config("none"))
    return [cases[index].load() for index in range(5)]


@pytest.fixture
def data_config(tmp_path):
    """A function that makes the path's configuration with a choice of tier ("lmdb blosc2": and format) and threads.

    `cache` has other values of the cache, all further arguments are values of the augmentation.
    """

    def make(tier="memory", num_threads=0, cache=None, **augment) -> DataConfig:
        tier, _, format = tier.partition(" ")
        return DataConfig.parse(
            {
                "prepare": {"intensity": {"mode": "zscore"}, "spacing_mm": [1.0, 1.0, 1.0]},
                "cache": {
                    "tier": tier,
                    "folder": str(tmp_path / f"cache{format}"),
                    "format": format or "raw",
                    "max_bytes": 2**30,
                    "num_cases": 3,
                    "replace_rate": 0.3,
                    **(cache or {}),
                },
                "patch": {"shape_voxel": [8, 12, 20], "foreground_share": 0.5},
                "batch_size": 3,
                "feed": {"num_threads": num_threads, "num_batches_ahead": 2},
                "augment": {"affine_probability": 0.5, "noise_probability": 0.5, **augment},
            }
        )

    return make


# A process that takes commands, one a line, and answers in lines. It writes down each case that it prepares.
_WORKER = """
import itertools, json, os, sys
from pathlib import Path
from voxelocity.core.volume import VolumeRef
from voxelocity.data.cache import choose
from voxelocity.data.pipeline import DataConfig, Feed
from shared.batches import batch_digest, digests_by_draw
from shared.noted_cases import NotedCases, fill

def tell(**answer):
    print(json.dumps(answer), flush=True)

class StoppingCases(NotedCases):
    stop_at = None

    def _prepare(self, index):
        if self.refs[index].case_id == self.stop_at:
            tell(stopped_at=self.stop_at)
            sys.stdin.readline()
        return super()._prepare(index)

tell(ready=True)
for line in sys.stdin:
    order = json.loads(line)
    choose.memory_folder = lambda *, min_free_bytes: (Path(order["place"]), "")
    if "remove" in order:
        os.unlink(order["remove"])
    if order.get("memory_is_low"):
        choose.memory_floor_bytes = lambda: 2**60
    config = DataConfig.parse(order["config"])
    refs = [
        VolumeRef(case_id=ref["case_id"], images=tuple(map(Path, ref["images"])), label=Path(ref["label"]))
        for ref in order["refs"]
    ]
    cases = StoppingCases(refs, config)
    cases.stop_at = order.get("stop_at")
    answer = {}
    if "num_steps" in order:
        with Feed(cases, config, seed=3, **order.get("feed", {})) as feed:
            batches = list(itertools.islice(feed, order["num_steps"]))
        answer.update(digests=list(map(batch_digest, batches)), by_draw=digests_by_draw(batches))
    else:
        facts = fill(cases, order["num_threads"])
        answer.update(num_found=facts.num_found, num_kept=facts.num_kept)
    tell(prepared=cases.prepared, warnings=cases.warnings, **answer)
"""


class Worker:
    """The other end of `_WORKER`."""

    def __init__(self, before: str = "") -> None:
        self.process = ForkedPython(before + _WORKER)

    def ask(self, config: DataConfig, refs: Sequence[VolumeRef], place: Path, **order: Any) -> None:
        """Tells it to fill a cache with `num_threads`, or with `num_steps` to draw batches; `hear` gives the answer."""
        plain = [
            {"case_id": ref.case_id, "images": list(map(str, ref.images)), "label": str(ref.label)} for ref in refs
        ]
        self.say(json.dumps({"config": config.to_plain(), "refs": plain, "place": str(place), **order}))

    def say(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, "the process ended by itself"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def two_workers() -> Iterator[list[Worker]]:
    """Two processes that take orders, for all tests of a module."""
    workers = [Worker(), Worker()]
    assert [worker.hear() for worker in workers] == [{"ready": True}] * 2
    yield workers
    for worker in workers:
        worker.end()


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    """Starts a process of this test's own, which first runs the code `before`."""
    started: list[Worker] = []

    def start(before: str = "") -> Worker:
        started.append(Worker(before))
        assert started[-1].hear() == {"ready": True}
        return started[-1]

    yield start
    for worker in started:
        worker.end()
