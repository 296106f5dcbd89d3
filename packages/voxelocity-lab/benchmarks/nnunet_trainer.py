"""nnU-Net's trainer and ours, over the same data sets that nnU-Net preprocessed; what they make and what they learn.

    [NNUNET_WORK=FOLDER] python benchmarks/nnunet_trainer.py [--only distribution training fast ...]

- augmentation: CPU seconds of a batch in one process, and the largest differences of batches of equal seeds without
  noise, blur and low resolution.
- rates: batches a second to a consumer that does nothing else, and CPU seconds of a patch, of workers and threads too.
- distribution: 500 patches of each data set by equal seeds: boxes, foreground, draws, intensities, labels; and ranges
  that were made a tenth wider, which must show.
- iterations: wall seconds of training iterations, nnU-Net's loop with its workers and with our feed.
- training: losses of 300 steps, five seeds of nnU-Net's own and three of ours, and the Dice after.
- fast: the Dice after 300 steps, three seeds of nnU-Net's own and of ours with `Fast`.
- longer: the Dice after 2,000 steps, five seeds of nnU-Net's own and of ours.

Writes `benchmarks/results/nnunet_trainer.json`; NNUNET_WORK keeps the data sets, which take minutes.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from harness import alternate, measure_each
from nnunet_folder import SCENARIOS, Scenario, _do_without_sklearn, plan, write_dataset
from nnunet_parity import catches, compare, seed_all
from voxelocity.core.native import keep_freed_memory
from voxelocity.nnunet.cases import NnunetCases
from voxelocity.nnunet.feed import NnunetFeed
from voxelocity.nnunet.trainer import NAME, trainer_class
from voxelocity.report.parity import interval_of_mean

_CONFIGURATION = "3d_fullres"
_CPU = torch.device("cpu")
_BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
_SCENARIOS = (
    # nnU-Net's own patch of this data set.
    replace(_BY_NAME["40 scans"], name="hippocampus", dataset_id=411, num_train=20),
    replace(_BY_NAME["thick slices"], name="thick slices, dummy 2-D", dataset_id=412, patch=(16, 64, 64), num_train=10),
    replace(_BY_NAME["regions"], name="regions", dataset_id=413, patch=(40, 56, 40), num_train=20),
    Scenario(name="CT-like phantoms", dataset_id=414, patch=(80, 80, 80), num_train=6, num_test=0, thick_axis=3),
    # Larger than the box around a patch, as most scans are.
    Scenario(
        name="large CT-like phantoms", dataset_id=415, patch=(96, 96, 96), num_train=4, num_test=0, thick_axis=3,
        sides=(180, 200),
    ),
)  # fmt: skip
_ROUNDS, _NUM_CPU, _NUM_RATE = 5, 4, 40
# Of the comparison of draws: small, so that 500 patches take half a minute.
_PATCHES = {411: (24, 32, 24), 412: (8, 48, 40), 413: (24, 32, 24), 414: (32, 32, 32), 415: (32, 32, 32)}
# A small network on small patches, so that eleven trainings fit into some minutes on two cores.
_LEARNING_PATCH, _EPOCHS, _EPOCH_STEPS, _WINDOW = (24, 32, 24), 6, 50, 10
# After 300 steps, the Dice of two seeds may differ by 0.4.
_LONGER_EPOCHS = 40
_NUM_VALIDATED, _NUM_DRAWN = 8, 250
_THEIRS, _OURS, _FAST = "nnUNetTrainer", NAME, f"{NAME}Fast"
_SEEDS, _SEEDS_OF_BAND = 3, 5


@contextlib.contextmanager
def preprocessed_sets() -> Iterator[Path]:
    """The folder of the preprocessed data sets, made where NNUNET_WORK does not have them yet."""
    _do_without_sklearn()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(os.environ.get("NNUNET_WORK", temporary))
        places = {part: work / part for part in ("raw", "preprocessed", "results")}
        os.environ.update({f"nnUNet_{part}": str(place) for part, place in places.items()})
        for scenario in _SCENARIOS:
            write_dataset(scenario, places["raw"])
            plan(scenario, places["preprocessed"])
        torch.set_num_threads(1)
        yield places["preprocessed"]


def open_trainer(
    scenario: Scenario,
    preprocessed: Path,
    *,
    name: str = "nnUNetTrainer",
    patch: Sequence[int] | None = None,
    epochs: int = _EPOCHS,
) -> Any:
    """A trainer of this name, initialized, with nnU-Net's plans but for the patch."""
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    folder = preprocessed / f"Dataset{scenario.dataset_id}_small"
    plans, description = (json.loads((folder / name).read_text()) for name in ("nnUNetPlans.json", "dataset.json"))
    if patch is not None:
        plans["configurations"][_CONFIGURATION]["patch_size"] = list(patch)
    kind = nnUNetTrainer if name == "nnUNetTrainer" else trainer_class(name)
    os.environ.update(nnUNet_n_proc_DA="0", nnUNet_compile="f")
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = kind(plans | {"continue_training": False}, _CONFIGURATION, 0, description, device=_CPU)
        trainer.num_epochs, trainer.num_iterations_per_epoch = epochs, _EPOCH_STEPS
        trainer.initialize()
    return trainer


def open_loader(scenario: Scenario, preprocessed: Path, *, patch: Sequence[int] | None = None) -> Any:
    """nnU-Net's training loader of a data set, with the transforms of its default trainer."""
    with contextlib.redirect_stdout(io.StringIO()):
        return open_trainer(scenario, preprocessed, patch=patch).get_dataloaders()[0].data_loader


def feed_of(loader: Any, *, num_threads: int = 1) -> NnunetFeed:
    cases = NnunetCases(loader._data, max_bytes=2**33)
    return NnunetFeed(loader, cases, num_threads=num_threads, num_ahead=3, device=_CPU)


def cpu_seconds(make: Callable[[], Any], num: int) -> float:
    """CPU seconds of this process for a call, of `num`."""
    begin_s = time.process_time()
    for _ in range(num):
        make()
    return (time.process_time() - begin_s) / num


def rate_and_cost(batches: Iterator[Any], use: Callable[[Any], Any] = id, num: int = _NUM_RATE) -> tuple[float, float]:
    """Batches a second to a consumer, from the time on when some were made ahead, and CPU seconds of a batch."""
    for _ in range(8):
        use(next(batches))
    begin_s, begin_cpu_s = time.perf_counter(), cpu_of_all()
    for _ in range(num):
        use(next(batches))
    return num / (time.perf_counter() - begin_s), (cpu_of_all() - begin_cpu_s) / num


def cpu_of_all() -> float:
    """CPU seconds of this process and of its workers."""
    workers = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(taken.user + taken.system for taken in workers)


def rate_of_workers(loader: Any, num_workers: int, **consumer: Any) -> tuple[float, float]:
    from batchgenerators.dataloading.nondet_multi_threaded_augmenter import NonDetMultiThreadedAugmenter

    workers = NonDetMultiThreadedAugmenter(
        loader,
        None,
        num_processes=num_workers,
        num_cached=max(6, num_workers // 2),
        seeds=None,
        pin_memory=False,
        wait_time=0.002,
    )
    try:
        return rate_and_cost(workers, **consumer)
    finally:
        workers._finish()


def rate_of_feed(loader: Any, num_threads: int, **consumer: Any) -> tuple[float, float]:
    # As our trainer.
    keep_freed_memory()
    with feed_of(loader, num_threads=num_threads) as feed:
        for identifier in loader._data.identifiers:
            feed._cases.open(identifier)
        # More of them, as they take less time.
        return rate_and_cost(feed, **{"num": 4 * _NUM_RATE, **consumer})


def in_own_process(call: Callable[[], Any]) -> Any:
    """What the call returns in a fork of this process: what it sets for good, the other side does not have."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(call()))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


def largest_differences(loader: Any, *, num: int) -> dict[str, Any]:
    """Over batches of equal seeds: of intensities, and the share of labels that differ."""
    steps = [step for step in loader.transforms.transforms if hasattr(step, "apply_probability")]
    numbers = {id(step): step.apply_probability for step in steps}
    without = ("GaussianNoiseTransform", "GaussianBlurTransform", "SimulateLowResolutionTransform")
    for step in steps:
        if type(step.transform).__name__ in without:
            step.apply_probability = 0.0
    voxels, labels = 0.0, []
    with feed_of(loader) as feed:
        for seed in range(num):
            both = []
            for make in (loader.generate_train_batch, lambda: feed._make(feed._draw())):
                seed_all(seed)
                both.append(make())
            theirs, ours = both
            voxels = max(voxels, float((theirs["data"] - ours["data"]).abs().max()))
            pairs = zip(theirs["target"], ours["target"], strict=True)
            labels.append(statistics.fmean(float((a != b).float().mean()) for a, b in pairs))
    for step in steps:
        step.apply_probability = numbers[id(step)]
    return {"num_batches": num, "intensity": voxels, "share_of_labels": statistics.fmean(labels)}


def measure_augmentation(scenario: Scenario, preprocessed: Path) -> dict[str, Any]:
    loader = open_loader(scenario, preprocessed)
    with feed_of(loader) as feed:
        # Both have read their files once.
        sides = {"nnunet": loader.generate_train_batch, "voxelocity": lambda: feed._make(feed._draw())}
        calls = {name: partial(cpu_seconds, make, _NUM_CPU) for name, make in sides.items()}
        cpu = alternate(calls, _ROUNDS, warm_ups=1)
        left = [type(transform).__name__ for transform in feed.chain.rest]
    return {
        "patch": list(scenario.patch),
        "left_to_nnunet": left,
        "cpu_seconds_a_batch": cpu,
        "cpu_ratios": [a / b for a, b in zip(cpu["nnunet"], cpu["voxelocity"], strict=True)],
        "equal_seeds": largest_differences(loader, num=20),
    }


def measure_rates(scenario: Scenario, preprocessed: Path) -> dict[str, Any]:
    loader = open_loader(scenario, preprocessed)
    found = _rates(loader, len(os.sched_getaffinity(0)))
    return {"patch": list(scenario.patch), **found}


def _rates(loader: Any, num_cores: int, **consumer: Any) -> dict[str, Any]:
    """Batches a second, alternating: nnU-Net with one, as many and twice as many workers as cores, and ours."""
    numbers = sorted({1, num_cores, 2 * num_cores})
    theirs = {f"nnunet, {num} workers": partial(rate_of_workers, loader, num, **consumer) for num in numbers}
    sides = {**theirs, "voxelocity": partial(rate_of_feed, loader, num_cores, **consumer)}
    found = alternate({name: partial(in_own_process, call) for name, call in sides.items()}, _ROUNDS)
    rates = {name: [rate for rate, _ in values] for name, values in found.items()}
    costs = {name: [1000.0 * cpu_s / loader.batch_size for _, cpu_s in values] for name, values in found.items()}
    best = max(theirs, key=lambda name: statistics.median(rates[name]))
    return {
        "batches_per_s": rates,
        "cpu_ms_a_patch": costs,
        "quickest_of_nnunet": best,
        "rate_ratios": [a / b for a, b in zip(rates["voxelocity"], rates[best], strict=True)],
        "cpu_ratios": [a / b for a, b in zip(costs[best], costs["voxelocity"], strict=True)],
    }


def measure_iterations(scenario: Scenario, preprocessed: Path) -> dict[str, Any]:
    """Iterations a second of nnU-Net's own step, whichever side feeds it."""
    trainer, num_cores = open_trainer(scenario, preprocessed), len(os.sched_getaffinity(0))
    with contextlib.redirect_stdout(io.StringIO()):
        loader = trainer.get_dataloaders()[0].data_loader
    torch.set_num_threads(num_cores)
    try:
        return _rates(loader, num_cores, use=trainer.train_step, num=12)
    finally:
        torch.set_num_threads(1)


def measure_distribution(scenario: Scenario, preprocessed: Path) -> dict[str, Any]:
    loader = open_loader(scenario, preprocessed, patch=_PATCHES[scenario.dataset_id])
    found = compare(loader, feed_of, num_batches=_NUM_DRAWN)
    return found | {"a_tenth_wider_shows_in": catches(loader, feed_of, num_batches=_NUM_DRAWN)}


def train(name: str, seed: int, preprocessed: Path, epochs: int) -> dict[str, Any]:
    """The losses of a training by a trainer of this name, without its validations, and its Dice after."""
    seed_all(seed)
    trainer = open_trainer(_SCENARIOS[0], preprocessed, name=name, patch=_LEARNING_PATCH, epochs=epochs)
    keys = [f"case_{number:03d}" for number in range(_SCENARIOS[0].num_train)]
    trainer.do_split = lambda: (keys[_NUM_VALIDATED:], keys[:_NUM_VALIDATED])
    losses, begin_s = [], time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        batches, validation = trainer.get_dataloaders()
        for epoch in range(epochs):
            trainer.current_epoch = epoch
            trainer.on_train_epoch_start()
            losses += [float(trainer.train_step(next(batches))["loss"]) for _ in range(_EPOCH_STEPS)]
        cpu_s = time.process_time() - begin_s
        dice = dice_of(trainer)
    for feed in (batches, validation):
        if isinstance(feed, NnunetFeed):
            feed.close()
    print(name, seed, f"loss {statistics.fmean(losses[-20:]):.3f}, Dice {dice:.4f}, {cpu_s:.0f} CPU s", flush=True)
    means = [statistics.fmean(losses[at : at + _WINDOW]) for at in range(0, len(losses), _WINDOW)]
    return {"seed": seed, "losses": means, "dice": dice, "cpu_s": cpu_s}


def dice_of(trainer: Any) -> float:
    """The mean over held-out cases and classes, of nnU-Net's sliding window without mirroring."""
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    fast = getattr(trainer, "_fast", None)
    network = trainer.network if fast is None else fast.averaged()
    network.decoder.deep_supervision = False
    network.eval()
    predictor = nnUNetPredictor(use_mirroring=False, device=_CPU, allow_tqdm=False)
    predictor.manual_initialization(
        network, trainer.plans_manager, trainer.configuration_manager, None, trainer.dataset_json, "", None
    )
    _, dataset = trainer.get_tr_and_val_datasets()
    scores = []
    for key in dataset.identifiers:
        image, label, _, _ = dataset.load_case(key)
        found = predictor.predict_sliding_window_return_logits(torch.from_numpy(image[:])).argmax(0).numpy()
        for value in (1, 2):
            both = [found == value, label[0] == value]
            scores.append(2.0 * float((both[0] & both[1]).sum()) / max(1.0, float(both[0].sum() + both[1].sum())))
    return statistics.fmean(scores)


def measure_band(preprocessed: Path) -> dict[str, Any]:
    """Our losses and those of further seeds of nnU-Net's own; only the feed differs."""
    found = _runs({_THEIRS: _SEEDS_OF_BAND, _OURS: _SEEDS}, preprocessed)
    theirs = [run["losses"] for run in found["runs"][_THEIRS]]
    others = [[curve for curve in theirs if curve is not left] for left in theirs]
    return found | {
        # What a further seed of nnU-Net's own would be in, with a chance of 95 % for each window.
        "share_in_band": [share_in_band(run["losses"], theirs) for run in found["runs"][_OURS]],
        "share_in_band_of_the_other_seeds": [share_in_band(*pair) for pair in zip(theirs, others, strict=True)],
    }


def measure_fast(preprocessed: Path) -> dict[str, Any]:
    """The Dice after as many steps with our step too."""
    return _runs({_THEIRS: _SEEDS, _FAST: _SEEDS}, preprocessed)


def measure_longer(preprocessed: Path) -> dict[str, Any]:
    """The Dice once the networks have learned; only the feed differs."""
    return _runs({_THEIRS: _SEEDS_OF_BAND, _OURS: _SEEDS_OF_BAND}, preprocessed, epochs=_LONGER_EPOCHS)


def _runs(num_seeds: dict[str, int], preprocessed: Path, *, epochs: int = _EPOCHS) -> dict[str, Any]:
    """Trainings of two sides, nnU-Net's first, alternating."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in num_seeds}
    for seed in range(max(num_seeds.values())):
        for name in (name for name, num in num_seeds.items() if seed < num):
            runs[name].append(train(name, seed, preprocessed, epochs))
    theirs, ours = runs.values()
    return {
        "patch": list(_LEARNING_PATCH),
        "num_steps": epochs * _EPOCH_STEPS,
        "window": _WINDOW,
        "runs": runs,
        "dice_difference": differences(ours, theirs),
    }


def share_in_band(curve: Sequence[float], others: Sequence[Sequence[float]]) -> float:
    """Of the windows, those in the 95 % prediction interval that the other curves give for one more."""
    from scipy.special import stdtrit

    num = len(others)
    half = stdtrit(num - 1, 0.975) * np.std(others, axis=0, ddof=1) * (1.0 + 1.0 / num) ** 0.5
    return float((np.abs(np.array(curve) - np.mean(others, axis=0)) <= half).mean())


def differences(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the Dice, ours minus nnU-Net's, seed by seed, and the 95 % interval of their mean."""
    found = [run["dice"] - other["dice"] for run, other in zip(ours, theirs, strict=False)]
    return {"by_seed": found, "mean": statistics.fmean(found), "interval": interval_of_mean(found)}


def _each(measure: Callable[[Scenario, Path], Any], scenarios: Sequence[Scenario] = _SCENARIOS) -> Any:
    with preprocessed_sets() as preprocessed:
        return {scenario.name: measure(scenario, preprocessed) for scenario in scenarios}


def _once(measure: Callable[[Path], Any]) -> Any:
    with preprocessed_sets() as preprocessed:
        return measure(preprocessed)


def main() -> None:
    measure_each(
        "nnunet_trainer",
        __doc__,
        {
            "augmentation": partial(_each, measure_augmentation),
            "rates": partial(_each, measure_rates),
            "distribution": partial(_each, measure_distribution),
            "iterations": partial(_each, measure_iterations, _SCENARIOS[:1]),
            "training": partial(_once, measure_band),
            "fast": partial(_once, measure_fast),
            "longer": partial(_once, measure_longer),
        },
        {"rounds": _ROUNDS},
    )


if __name__ == "__main__":
    main()
