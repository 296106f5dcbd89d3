"""Batches for nnU-Net's trainer: nnU-Net's own loader and workers, and our feed over the same loader, alternating.

    python benchmarks/nnunet_trainer.py [--work FOLDER] [--rounds 5]

For each data set, preprocessed by nnU-Net: CPU seconds of a batch in one process, batches a second to a consumer that
does nothing else, and the largest differences between batches of equal seeds without noise, blur and low resolution.
Writes `benchmarks/results/nnunet_trainer.json`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import alternate, head, parser_of, write_record
from nnunet_folder import SCENARIOS, Scenario, _do_without_sklearn, plan, write_dataset
from voxelocity.nnunet.cases import NnunetCases
from voxelocity.nnunet.feed import NnunetFeed

_CONFIGURATION = "3d_fullres"
_CPU = torch.device("cpu")
_BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
_SCENARIOS = (
    # nnU-Net's own patch of this data set.
    replace(_BY_NAME["40 scans"], name="hippocampus", dataset_id=411, num_train=20),
    replace(_BY_NAME["thick slices"], name="thick slices, dummy 2-D", dataset_id=412, patch=(16, 64, 64), num_train=10),
    replace(_BY_NAME["regions"], name="regions", dataset_id=413, patch=(40, 56, 40), num_train=20),
    Scenario(name="CT-like phantoms", dataset_id=414, patch=(80, 80, 80), num_train=6, num_test=0, thick_axis=3),
)
_NUM_CPU, _NUM_RATE = 24, 60


def open_loader(scenario: Scenario, preprocessed: Path) -> Any:
    """nnU-Net's training loader of a data set, with the transforms of its default trainer."""
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    folder = preprocessed / f"Dataset{scenario.dataset_id}_small"
    plans, description = (json.loads((folder / name).read_text()) for name in ("nnUNetPlans.json", "dataset.json"))
    os.environ.update(nnUNet_n_proc_DA="0")
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = nnUNetTrainer(plans | {"continue_training": False}, _CONFIGURATION, 0, description, device=_CPU)
        trainer.initialize()
        return trainer.get_dataloaders()[0].data_loader


def feed_of(loader: Any, *, num_threads: int) -> NnunetFeed:
    cases = NnunetCases(loader._data, max_bytes=2**33)
    return NnunetFeed(loader, cases, num_threads=num_threads, num_ahead=3, device=_CPU)


def cpu_seconds(make: Callable[[], Any], num: int) -> float:
    """CPU seconds of this process for a call, of `num`."""
    begin_s = time.process_time()
    for _ in range(num):
        make()
    return (time.process_time() - begin_s) / num


def batches_per_s(batches: Iterator[Any]) -> float:
    """To a consumer that does nothing else, from the time on when some were made ahead."""
    for _ in range(8):
        next(batches)
    begin_s = time.perf_counter()
    for _ in range(_NUM_RATE):
        next(batches)
    return _NUM_RATE / (time.perf_counter() - begin_s)


def rate_of_workers(loader: Any, num: int) -> float:
    from batchgenerators.dataloading.nondet_multi_threaded_augmenter import NonDetMultiThreadedAugmenter

    workers = NonDetMultiThreadedAugmenter(
        loader, None, num_processes=num, num_cached=max(6, num // 2), seeds=None, pin_memory=False, wait_time=0.002
    )
    try:
        return batches_per_s(workers)
    finally:
        workers._finish()


def rate_of_feed(loader: Any, num: int) -> float:
    with feed_of(loader, num_threads=num) as feed:
        return batches_per_s(feed)


def largest_differences(loader: Any, *, num: int = 60) -> dict[str, Any]:
    """Over batches of equal seeds: of intensities, and the share of labels that differ."""
    steps = [step for step in loader.transforms.transforms if hasattr(step, "apply_probability")]
    numbers = {id(step): step.apply_probability for step in steps}
    without = ("GaussianNoiseTransform", "GaussianBlurTransform", "SimulateLowResolutionTransform")
    for step in steps:
        if type(step.transform).__name__ in without:
            step.apply_probability = 0.0
    voxels, labels = 0.0, []
    with feed_of(loader, num_threads=1) as feed:
        for seed in range(num):
            both = []
            for make in (loader.generate_train_batch, lambda: feed._make(feed._draw())):
                np.random.seed(seed)
                torch.manual_seed(seed)
                both.append(make())
            theirs, ours = both
            voxels = max(voxels, float((theirs["data"] - ours["data"]).abs().max()))
            pairs = zip(theirs["target"], ours["target"], strict=True)
            labels.append(statistics.fmean(float((a != b).float().mean()) for a, b in pairs))
    for step in steps:
        step.apply_probability = numbers[id(step)]
    return {"num_batches": num, "intensity": voxels, "share_of_labels": statistics.fmean(labels)}


def measure(scenario: Scenario, preprocessed: Path, *, rounds: int) -> dict[str, Any]:
    loader, num_cores = open_loader(scenario, preprocessed), len(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    with feed_of(loader, num_threads=1) as feed:
        # Both have read their files once.
        sides = {"nnunet": loader.generate_train_batch, "voxelocity": lambda: feed._make(feed._draw())}
        calls = {name: partial(cpu_seconds, make, _NUM_CPU) for name, make in sides.items()}
        cpu = alternate(calls, rounds, warm_ups=1)
        left = [type(transform).__name__ for transform in feed.chain.rest]
    rates = alternate(
        {
            **{
                f"nnunet, {num} workers": partial(rate_of_workers, loader, num)
                for num in sorted({1, num_cores, 2 * num_cores})
            },
            "voxelocity": partial(rate_of_feed, loader, num_cores),
        },
        rounds,
    )
    best = max((name for name in rates if name != "voxelocity"), key=lambda name: statistics.median(rates[name]))
    return {
        "patch": list(scenario.patch),
        "left_to_nnunet": left,
        "cpu_seconds_a_batch": cpu,
        "cpu_ratios": [a / b for a, b in zip(cpu["nnunet"], cpu["voxelocity"], strict=True)],
        "batches_per_s": rates,
        "quickest_of_nnunet": best,
        "rate_ratios": [a / b for a, b in zip(rates["voxelocity"], rates[best], strict=True)],
        "equal_seeds": largest_differences(loader),
    }


def main() -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--work", type=Path, help="folder that keeps the data sets; a temporary one if not given")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    record = head("nnunet_trainer", f"--rounds {options.rounds}")
    _do_without_sklearn()
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        places = {part: (options.work or Path(temporary)) / part for part in ("raw", "preprocessed", "results")}
        os.environ.update({f"nnUNet_{part}": str(place) for part, place in places.items()})
        for scenario in _SCENARIOS:
            write_dataset(scenario, places["raw"])
            plan(scenario, places["preprocessed"])
            found[scenario.name] = measure(scenario, places["preprocessed"], rounds=options.rounds)
            print(scenario.name, json.dumps(found[scenario.name], indent=1), flush=True)
    write_record(record | {"rounds": options.rounds, "found": found}, "nnunet_trainer", out=options.out)


if __name__ == "__main__":
    main()
