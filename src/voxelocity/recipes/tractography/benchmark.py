"""The same model the plain way, as scripts do it: one streamline after another, 250 steps, a copy to the host in each.

Both ways train the same network on the same streamlines from the same start, and sample from the same weights.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from voxelocity.core.whole_file import put_in_place
from voxelocity.observe import Stopwatch, environment
from voxelocity.parallel import ALONE
from voxelocity.recipes.call import Call
from voxelocity.recipes.tractography.bundles import Bundles, Frame, open_bundles, split
from voxelocity.recipes.tractography.diffusion import NUM_TIMES, clean_of, signal_and_noise, weights_of
from voxelocity.recipes.tractography.files import read_tracts, tract_files
from voxelocity.recipes.tractography.generate import generate
from voxelocity.recipes.tractography.judge import space_shared
from voxelocity.recipes.tractography.model import Denoiser, pack
from voxelocity.recipes.tractography.settings import TractographyConfig
from voxelocity.recipes.tractography.shapes import Points, resample
from voxelocity.recipes.tractography.train import Batches, TractLoss, TrainedTracts, load_tracts
from voxelocity.report import TableView
from voxelocity.report.document import Table
from voxelocity.step import TrainingStep

PLAIN_STEPS = 250
_ROUNDS = 3
_WARM_UP_STEPS, _STEPS = 3, 20
# Of each of the largest bundles; so few, because the plain way takes a second or so for each.
_NUM_BUNDLES, _NUM_EACH = 3, 20


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One round of one way.

    Attributes:
        train_per_s: streamlines a second that a training step takes up.
        sample_s: seconds for each streamline made.
        f1: of the streamlines made, against as many that were held out.
    """

    train_per_s: float
    sample_s: float
    f1: float


def benchmark(call: Call) -> None:
    """Measures both ways in turn with the model in `call.out`; writes `benchmark.json` there."""
    trained = load_tracts(call.out)
    config = trained.config
    bundles = open_bundles(call.data, num_points=config.network.num_points, image=config.image_path)
    chosen, held = split(bundles, by=config.split.by, held_out=config.split.held_out, seed=trained.seed)
    training, real = bundles.part(chosen), bundles.part(held)
    ways: dict[str, Callable[[int], Measured]] = {
        "plain": lambda seed: Measured(
            train_per_s=_plain_training(call, config, training),
            **_judged(lambda counts: _plain_samples(trained, counts, seed, call.device), trained, real),
        ),
        "Voxelocity": lambda seed: Measured(
            train_per_s=_our_training(call, config, training),
            **_judged(lambda counts: _our_samples(trained, counts, seed, call), trained, real),
        ),
    }
    found: dict[str, list[Measured]] = {name: [] for name in ways}
    for number in range(_ROUNDS):
        for name in sorted(ways, reverse=number % 2 == 1):
            found[name].append(ways[name](call.seed + number))
            call.console.print(f"round {number + 1}, {name}: {asdict(found[name][-1])}", highlight=False)
    call.console.print(TableView(_table(found)))
    record = {
        "benchmark": "tractography",
        "environment": environment(),
        "plain_steps": PLAIN_STEPS,
        "steps": config.sample.num_steps,
        "found": {name: [asdict(one) for one in each] for name, each in found.items()},
    }
    put_in_place(call.out / "benchmark.json", (json.dumps(record, indent=1) + "\n").encode())


def _table(found: dict[str, list[Measured]]) -> Table:
    rows = []
    for name, each in found.items():
        factors = [
            (one.train_per_s / plain.train_per_s, plain.sample_s / one.sample_s)
            for one, plain in zip(each, found["plain"], strict=True)
        ]
        rows.append(
            (
                name,
                _spread([one.train_per_s for one in each], 0),
                f"{median(one for one, _ in factors):.1f}x",
                _spread([1000.0 * one.sample_s for one in each], 1),
                f"{median(one for _, one in factors):.1f}x",
                _spread([one.f1 for one in each], 2),
            )
        )
    heads = ("way", "trained a second", "times the plain way", "s for 1,000", "times the plain way", "F1 at 2 mm")
    return Table(caption=f"Medians of {_ROUNDS} alternating rounds, with least and most", heads=heads, rows=rows)


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _judged(make: Callable[[list[int]], Points], trained: TrainedTracts, real: Bundles) -> dict[str, float]:
    largest = np.argsort(trained.num_held)[::-1][:_NUM_BUNDLES]
    counts = [min(_NUM_EACH, held) if number in largest else 0 for number, held in enumerate(trained.num_held)]
    watch = Stopwatch()
    made = make(counts)
    seconds = watch.elapsed_s
    bundle = np.repeat(np.arange(len(counts)), counts)
    scores = [
        space_shared(made[bundle == number], real.of(number)[: counts[number]])[2] for number in np.unique(bundle)
    ]
    return {"sample_s": seconds / len(bundle), "f1": float(np.mean(scores))}


def _our_samples(trained: TrainedTracts, counts: list[int], seed: int, call: Call) -> Points:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.trx"
        return generate(trained, path, seed=seed, device=call.device, counts=counts, warn=print).streamlines


def _plain_samples(trained: TrainedTracts, counts: list[int], seed: int, device: torch.device) -> Points:
    """One streamline after another, in float32; each step's result goes to NumPy and back."""
    network = trained.network.to(device).eval()
    numbers = np.random.default_rng(seed)
    factors = signal_and_noise().float().to(device)
    weights = weights_of(PLAIN_STEPS, "ddim")
    made = []
    with torch.no_grad():
        for number in np.repeat(np.arange(len(counts)), counts):
            bundle = torch.tensor([number], device=device)
            current = numbers.standard_normal((1, trained.config.network.num_points, 3)).astype(np.float32)
            for time, of_current, of_clean, _ in weights:
                noisy = torch.from_numpy(current).to(device)
                times = torch.tensor([time], device=device)
                answer = network(pack(noisy, times, bundle)).transpose(1, 2)
                clean = clean_of(answer, noisy, factors[:, times], trained.config.prediction).cpu().numpy()
                current = (of_current * current + of_clean * clean).astype(np.float32)
            scale, mean = network.scale_mm[number].item(), network.mean_mm[number].cpu().numpy()
            made.append(current[0] * scale + mean)
    return np.stack(made).astype(np.float32)


def _our_training(call: Call, config: TractographyConfig, training: Bundles) -> float:
    frame, device = Frame.of(training), call.device
    torch.manual_seed(call.seed)
    network = Denoiser(config.network, frame).to(device)
    step = TrainingStep(
        network,
        TractLoss(config, frame, device, ALONE),
        optimizer=config.fit.optimizer,
        precision=config.precision,
        device=device,
    )
    batches = Batches(training, frame, config.fit.batch_size, seed=call.seed, share=slice(None))
    return _timed(lambda number: step(batches(number), 1e-4), config.fit.batch_size, device)


class _PlainStreamlines(torch.utils.data.Dataset[Any]):
    """As scripts read them: raw points, resampled and noised when an item is asked for."""

    def __init__(self, call: Call, config: TractographyConfig, training: Bundles) -> None:
        tracts = read_tracts(tract_files(call.data))
        self._raw = [
            tracts.points[first:last] for first, last in zip(tracts.offsets[:-1], tracts.offsets[1:], strict=True)
        ]
        self._bundle, self._num_points = tracts.bundle, config.network.num_points
        self._frame = Frame.of(training)
        self._factors = signal_and_noise().numpy().astype(np.float32)

    def __len__(self) -> int:
        return len(self._raw)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        points, number = self._raw[index], int(self._bundle[index])
        line = resample(points, np.array([0, len(points)]), self._num_points)[0]
        clean = ((line - self._frame.mean_mm[number]) / self._frame.scale_mm[number]).astype(np.float32)
        time = int(np.random.randint(NUM_TIMES))  # noqa: NPY002 - as scripts do it
        signal, sigma = self._factors[:, time]
        noise = np.random.standard_normal(clean.shape).astype(np.float32)  # noqa: NPY002
        return signal * clean + sigma * noise, signal * noise - sigma * clean, time, number


def _plain_training(call: Call, config: TractographyConfig, training: Bundles) -> float:
    """A loop as scripts have it: a DataLoader of single streamlines, float32, AdamW, the loss read in each step."""
    torch.manual_seed(call.seed)
    device = call.device
    network = Denoiser(config.network, Frame.of(training)).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    items = _PlainStreamlines(call, config, training)
    loader = iter(torch.utils.data.DataLoader(items, batch_size=config.fit.batch_size, shuffle=True))

    def one(_: int) -> None:
        nonlocal loader
        try:
            noisy, wanted, time, bundle = next(loader)
        except StopIteration:
            loader = iter(torch.utils.data.DataLoader(items, batch_size=config.fit.batch_size, shuffle=True))
            noisy, wanted, time, bundle = next(loader)
        optimizer.zero_grad()
        answer = network(pack(noisy.to(device), time.to(device), bundle.to(device))).transpose(1, 2)
        loss = torch.nn.functional.mse_loss(answer, wanted.to(device))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()

    return _timed(one, config.fit.batch_size, device)


def _timed(one: Callable[[int], Any], batch_size: int, device: torch.device) -> float:
    """Streamlines a second."""
    seconds = []
    for number in range(_WARM_UP_STEPS + _STEPS):
        watch = Stopwatch()
        one(number)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(watch.elapsed_s)
    return batch_size / median(seconds[_WARM_UP_STEPS:])
