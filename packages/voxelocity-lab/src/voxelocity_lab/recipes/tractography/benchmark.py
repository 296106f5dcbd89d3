"""The same model the plain way, as scripts do it, next to ours: trained, and sampled with 250 steps.

All ways train the same network on the same pairs from the same start, and sample from the same weights. The plain way
is measured one streamline after another, with a copy to the host in each step, and with batches as large as ours.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from voxelocity.core.learning import UNLEARNED
from voxelocity.parallel import ALONE
from voxelocity.step import TrainingStep
from voxelocity_lab.bench.comparison import BenchSide, Comparison, compare
from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.pages import write_benchmark
from voxelocity_lab.recipes.tractography.bundles import Bundles
from voxelocity_lab.recipes.tractography.diffusion import NUM_TIMES, clean_of, signal_and_noise, weights_of
from voxelocity_lab.recipes.tractography.exemplars import ExemplarPairs, Frame
from voxelocity_lab.recipes.tractography.generate import generate, untrained_streamlines
from voxelocity_lab.recipes.tractography.guide_rows import OURS, PLAIN, TrainingWay, guide_rows
from voxelocity_lab.recipes.tractography.judge import space_shared
from voxelocity_lab.recipes.tractography.model import Denoiser, pack
from voxelocity_lab.recipes.tractography.settings import TractographyConfig
from voxelocity_lab.recipes.tractography.shapes import Points, resample
from voxelocity_lab.recipes.tractography.train import (
    StreamlineBatches,
    TractLoss,
    TrainedTracts,
    change_sampling,
    divide,
    load_tracts,
)
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.errors import InputError

PLAIN_STEPS = 250
_ROUNDS = 3
_WARM_UP_STEPS, _STEPS = 3, 20
# Of each of the largest bundles; so few, because one after another takes a second or so for each.
_NUM_BUNDLES, _NUM_EACH = 3, 20


def benchmark(call: Call) -> None:
    """Measures all ways with the model in `call.out`; writes `bench_tractography.json` and its page there."""
    trained = change_sampling(call, load_tracts(call.out))
    config = trained.config
    training, real, notices = divide(trained, call.data)
    for notice in notices:
        call.console.print(f"warning: {notice}", style="yellow", highlight=False, soft_wrap=True)
    if not len(training):
        raise InputError(
            f"tractography: the model in {call.out} was not trained on {call.data}, and trainings are compared on what "
            "it was trained on; name that data"
        )
    if not len(real):
        raise InputError(
            f"tractography: the model in {call.out} was trained on all streamlines of {call.data}, so none are left to "
            "compare with; train with split.held_out above 0"
        )
    f1: dict[str, list[float | None]] = {}
    ways = _training_ways(call, config, training)
    comparisons = (
        _compare_training(ways, config.fit.batch_size),
        _compare_sampling(call, trained, real, f1),
    )
    settings = {
        "batch_size": config.fit.batch_size, "steps": config.sample.num_steps, "plain_steps": PLAIN_STEPS,
        "streamlines": _NUM_BUNDLES * _NUM_EACH,
    }  # fmt: skip
    details: dict[str, Any] = {
        UNLEARNED: trained.unlearned,
        **guide_rows(ways, comparisons, config.fit.batch_size, len(training), call.device),
    }
    if not trained.unlearned:
        details["f1"] = f1
    write_benchmark(call, "tractography", comparisons, settings, details)


def _training_ways(call: Call, config: TractographyConfig, training: Bundles) -> dict[str, TrainingWay]:
    pairs = ExemplarPairs.of(training, **dict(config.exemplar), seed=call.seed)
    items = _PlainPairs(config, training, pairs)
    return {
        OURS: lambda size, num_steps: _our_training(call, config, training, pairs, size, num_steps),
        PLAIN: lambda size, num_steps: _plain_training(call, config, items, size, num_steps),
    }


def _compare_training(ways: Mapping[str, TrainingWay], batch_size: int) -> Comparison:
    sides = [
        BenchSide(name=OURS, once=lambda: ways[OURS](batch_size, _STEPS)),
        BenchSide(name=f"{PLAIN} of {batch_size}", once=lambda: ways[PLAIN](batch_size, _STEPS)),
        BenchSide(name="One streamline after another", once=lambda: ways[PLAIN](1, _STEPS)),
    ]
    return compare("Training", "streamlines/s", sides, repeats=_ROUNDS, warmup=0)


def _compare_sampling(
    call: Call, trained: TrainedTracts, real: Bundles, f1: dict[str, list[float | None]]
) -> Comparison:
    num_real = np.bincount(real.bundle, minlength=len(trained.names))
    largest = np.argsort(num_real)[::-1][:_NUM_BUNDLES]
    counts = [min(_NUM_EACH, num) if number in largest else 0 for number, num in enumerate(num_real.tolist())]
    bundle = np.repeat(np.arange(len(counts)), counts)

    def judge(name: str, made: Points) -> None:
        shared = [
            space_shared(made[bundle == number], real.of(number)[: counts[number]])[2] for number in np.unique(bundle)
        ]
        mean = float(np.mean(shared))
        f1.setdefault(name, []).append(None if math.isnan(mean) else mean)

    def side(name: str, make: Callable[[], Points]) -> BenchSide:
        def once() -> float:
            watch = Stopwatch()
            made = make()
            seconds = watch.elapsed_s
            judge(name, made)
            return 1000.0 * seconds / len(bundle)

        return BenchSide(name=name, once=once)

    judge("Untrained network", untrained_streamlines(trained, bundle, seed=call.seed))

    sides = [
        side(OURS, lambda: _our_samples(trained, counts, call)),
        side("Batches of 250 steps", lambda: _plain_samples(trained, counts, call, len(bundle))),
        side("One streamline after another, 250 steps", lambda: _plain_samples(trained, counts, call, 1)),
    ]
    return compare("Sampling", "s per 1,000", sides, repeats=_ROUNDS, warmup=0)


def _our_samples(trained: TrainedTracts, counts: list[int], call: Call) -> Points:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.trx"
        return generate(trained, path, seed=call.seed, device=call.device, counts=counts, warn=print).streamlines


def _plain_samples(trained: TrainedTracts, counts: list[int], call: Call, at_once: int) -> Points:
    """In float32; each step's result goes to NumPy and back."""
    device, config = call.device, trained.config
    network, frame = trained.network.to(device).eval(), trained.frame
    numbers, factors = np.random.default_rng(call.seed), signal_and_noise().float().to(device)
    bundle = np.repeat(np.arange(len(counts)), counts)
    exemplars_mm = trained.exemplars.with_neighbors(trained.exemplars.draw(bundle, seed=call.seed))
    made = []
    with torch.no_grad():
        for start in range(0, len(bundle), at_once):
            members, exemplars = bundle[start : start + at_once], exemplars_mm[start : start + at_once]
            context = torch.from_numpy(frame.context(exemplars, members)).to(device)
            shape = (len(members), len(frame.sizes), 3)
            current = config.sample.spread * numbers.standard_normal(shape).astype(np.float32)
            for time, of_current, of_clean, _ in weights_of(PLAIN_STEPS, "ddim"):
                noisy = torch.from_numpy(current).to(device)
                times = torch.full((len(members),), time, device=device)
                output = network(pack(noisy, context, times, torch.from_numpy(members).to(device))).transpose(1, 2)
                clean = clean_of(output, noisy, factors[:, times], config.prediction).cpu().numpy()
                current = (of_current * current + of_clean * clean).astype(np.float32)
            made.append(frame.placed(current, exemplars[:, 0], frame.scales(exemplars, members)))
    return np.concatenate(made)


def _our_training(
    call: Call, config: TractographyConfig, training: Bundles, pairs: ExemplarPairs, batch_size: int, num_steps: int
) -> float:
    frame, device = Frame.of(training, pairs, num_waves=config.network.num_waves), call.device
    torch.manual_seed(call.seed)
    step = TrainingStep(
        Denoiser(config.network, frame, config.exemplar.num_around).to(device),
        TractLoss(config, frame, device, ALONE),
        optimizer=config.fit.optimizer,
        precision=config.precision,
        device=device,
    )
    batches = StreamlineBatches(training, pairs, frame, batch_size, seed=call.seed)
    return _measure_rate(lambda number: step(batches(number), 1e-4), batch_size, device, num_steps)


class _PlainPairs(torch.utils.data.Dataset[Any]):
    """As scripts make them: a streamline, resampled, put in relation to an exemplar and noised when it is asked for."""

    def __init__(self, config: TractographyConfig, training: Bundles, pairs: ExemplarPairs) -> None:
        self._lines, self._bundle = training.streamlines[pairs.index], training.bundle[pairs.index]
        self._num_points, self._pairs = config.network.num_points, pairs
        self.frame = Frame.of(training, pairs, num_waves=config.network.num_waves)
        self._factors = signal_and_noise().numpy().astype(np.float32)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        points, number = self._lines[index], int(self._bundle[index])
        line = resample(points, np.array([0, len(points)]), self._num_points)[0]
        near = np.random.choice(self._pairs.nearest[index])  # noqa: NPY002 - as scripts do it
        exemplars = self._pairs.exemplars.with_neighbors(np.array([near]), without=self._pairs.own[[index]])
        bundle = np.array([number])
        clean = self.frame.seen(line[None], exemplars[:, 0], self.frame.scales(exemplars, bundle))[0]
        time = int(np.random.randint(NUM_TIMES))  # noqa: NPY002
        signal, sigma = self._factors[:, time]
        noise = np.random.standard_normal(clean.shape).astype(np.float32)  # noqa: NPY002
        context = self.frame.context(exemplars, bundle)[0]
        return signal * clean + sigma * noise, signal * noise - sigma * clean, context, time, number


def _plain_training(
    call: Call, config: TractographyConfig, items: _PlainPairs, batch_size: int, num_steps: int
) -> float:
    """A loop as scripts have it: a DataLoader of single streamlines, float32, AdamW, the loss read in each step."""
    torch.manual_seed(call.seed)
    device = call.device
    network = Denoiser(config.network, items.frame, config.exemplar.num_around).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    # As a script's epochs, but without an end, however few streamlines there are.
    num_drawn = batch_size * (_WARM_UP_STEPS + num_steps)
    sampler = torch.utils.data.RandomSampler(items, replacement=True, num_samples=num_drawn)
    loader = iter(torch.utils.data.DataLoader(items, batch_size=batch_size, sampler=sampler))

    def one(_: int) -> None:
        noisy, wanted, context, time, bundle = (part.to(device) for part in next(loader))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(network(pack(noisy, context, time, bundle)).transpose(1, 2), wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()

    return _measure_rate(one, batch_size, device, num_steps)


def _measure_rate(one: Callable[[int], Any], batch_size: int, device: torch.device, num_steps: int) -> float:
    """Streamlines a second."""
    seconds = []
    for number in range(_WARM_UP_STEPS + num_steps):
        watch = Stopwatch()
        one(number)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(watch.elapsed_s)
    return batch_size / median(seconds[_WARM_UP_STEPS:])
