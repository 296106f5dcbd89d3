"""How many of our files a batch passes once everything is warm: what a reader has to open to follow it."""

import sys
from pathlib import Path

import torch

import voxelocity
import voxelocity_observe
from shared.noted_cases import NotedCases, fill
from voxelocity.data.augment import EFFECTS, AugmentConfig
from voxelocity.data.pipeline import Feed
from voxelocity.step import (
    LossConfig,
    NetworkConfig,
    OptimizerConfig,
    PrecisionConfig,
    TrainingStep,
    build_loss,
    build_network,
)

ROOTS = tuple(f"{Path(package.__file__).parent}/" for package in (voxelocity, voxelocity_observe))

FLIPS = {"flip_probability": (1.0, 1.0, 1.0)}


def files_called(function):
    """What it returns, and our files whose functions, compiled loops too, it calls in this thread."""
    names, before = set(), sys.getprofile()

    def note(frame, event, argument):
        if event == "call":
            names.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        result = function()
    finally:
        sys.setprofile(before)
    return result, sorted(name.removeprefix(root) for name in names for root in ROOTS if name.startswith(root))


def test_a_steady_batch_passes_few_files(blob_refs, data_config, place, monkeypatch):
    # Free memory is looked at once a second, not for each batch.
    monkeypatch.setattr("voxelocity.data.cache.tiered._LOOK_EVERY_S", 1e9)
    # Each effect of a plan for a CPU, and no other; threads would make the batches by the same functions.
    effects = AugmentConfig.only(**{effect.probability: 1.0 for effect in EFFECTS if effect.is_searched} | FLIPS)
    config = data_config("memory", num_threads=0, **effects.to_plain())
    cases = NotedCases(blob_refs, config)
    fill(cases)
    # The first time, loops are compiled or loaded, and buffers taken.
    for _ in range(2):
        with Feed(cases, config) as feed:
            next(feed)
            batches, of_batches = files_called(lambda feed=feed: [next(feed) for _ in range(3)])
    step = TrainingStep(
        build_network(
            NetworkConfig.parse({"name": "unet", "widths": [4, 8], "strides": [[2, 2, 2]]}),
            num_channels=1,
            num_classes=2,
            seed=0,
        ),
        build_loss(LossConfig()),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.01),
        precision=PrecisionConfig(compute="float32"),
        device=torch.device("cpu"),
    )
    step(batches[0], 0.01)
    _, of_steps = files_called(lambda: step(batches[1], 0.01))
    assert len(of_batches) <= 20, of_batches
    assert len({*of_batches, *of_steps}) <= 34, of_steps
