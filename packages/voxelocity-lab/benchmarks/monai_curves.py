"""Is it the same training? The same small network trained under MONAI and under `voxelocity.monai`, loss by loss.

    python benchmarks/monai_curves.py [--quick] [--out benchmarks/results]

Every data set with every loader, from the same seeds: MONAI's randomness is kept, so the losses are expected to be
equal except for the rounding of float32 (`TOLERANCE`). Where the engine draws its own noise, final losses of many seeds
are compared as two samples. Writes `monai_curves.json`.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import Compose, RandGaussianNoised
from scipy import stats

from harness import head, parser_of, write_record
from voxelocity.core.region import Index3
from voxelocity_lab.bench.peers import monai_scripts as scripts
from voxelocity_lab.bench.phantom import PhantomSet, make_phantoms
from voxelocity_lab.bench.streams import passes_of
from voxelocity_observe.core.first_use import value_of

TOLERANCE = 1e-3
"""Of two losses of one step, as a share of their value: float32's rounding, grown by the steps before."""
KINDS = ("Dataset", "CacheDataset", "PersistentDataset", "CacheNTransDataset", "LMDBDataset", "SmartCacheDataset")
LOADERS = ("DataLoader", "ThreadDataLoader")
CONFIDENCE = 0.95
_ABDOMENS = PhantomSet(kind="ct", shape=(48, 52, 32), num_cases=5, spacing_mm=(1.4, 1.4, 2.4))


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A training small enough to be repeated a hundred times: what differs is where its batches come from."""

    cases: PhantomSet = _ABDOMENS
    # Of the cases; the others are trained on, two per batch, four patches of each.
    num_held_out: int = 1
    patch: Index3 = (16, 16, 16)
    num_epochs: int = 10
    # On each side, none of them on both: two independent samples.
    num_seeds: int = 60
    num_epochs_of_a_seed: int = 4
    noise_std: float = 0.1
    # Settled before anything is run: means that differ by less than this share of MONAI's are called equivalent.
    equivalence_margin: float = 0.02


_THEIRS: scripts.Names = "monai.data"
_OURS: scripts.Names = "voxelocity.monai"


def named(module: scripts.Names, name: str) -> Any:
    """A class or function of one package: all of ours are in one module."""
    where = {"sliding_window_inference": "monai.inferers", "Novograd": "monai.optimizers"}
    return value_of(_OURS if module == _OURS else where.get(name, module), name)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A loss for each step, and the loss over the held-out cases at the end."""

    losses: tuple[float, ...]
    held_out: float


class Bench:
    """Phantoms, and the trainings over them."""

    def __init__(self, settings: Curves, work: Path) -> None:
        self.settings = settings
        self.work = work
        cases = scripts.items(make_phantoms(settings.cases, work / "phantoms"))
        self.items = cases[: -settings.num_held_out]
        prepare = Compose(scripts.preparing("spleen"))
        # Prepared by MONAI for both sides: here the windows alone are compared.
        self.held_out = [prepare(case) for case in cases[-settings.num_held_out :]]

    def chain(self, *, noise: bool = False) -> Compose:
        extra = [RandGaussianNoised(keys="image", prob=1.0, mean=0.0, std=self.settings.noise_std)] if noise else []
        chain = Compose([*scripts.whole("spleen", self.settings.patch), *extra])
        # A loader seeds the transforms of every data set but SmartCacheDataset, of which it seeds the shuffling.
        chain.set_random_state(seed=0)
        return chain

    def dataset(self, module: scripts.Names, kind: str, chain: Compose) -> Any:
        """A data set of this kind, its folder, if it has one, its own."""
        folder = self.work / module / f"{kind}-{time.monotonic_ns()}"
        options: dict[str, dict[str, Any]] = {
            "CacheDataset": {"progress": False},
            "PersistentDataset": {"cache_dir": folder},
            # With the first random transform, so that every epoch crops where the first one did.
            "CacheNTransDataset": {"cache_n_trans": len(scripts.preparing("spleen")) + 1, "cache_dir": folder},
            "LMDBDataset": {"cache_dir": folder, "progress": False, "lmdb_kwargs": {"map_size": 2**28}},
            "SmartCacheDataset": {"replace_rate": 0.5, "cache_num": len(self.items) // 2, "progress": False},
        }
        return named(module, kind)(self.items, chain, **options.get(kind, {}))

    def train(
        self, module: scripts.Names, loader: str, dataset: Any, *, seed: int, num_epochs: int, novograd: bool = False
    ) -> Outcome:
        """One training from one seed: of the network, of the order of cases and of every transform."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = UNet(3, 1, self.settings.cases.num_classes, channels=(4, 8), strides=(2,))
        optimizer = (
            named(module, "Novograd")(model.parameters(), lr=0.02)
            if novograd
            else torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        )
        loss_of = DiceCELoss(to_onehot_y=True, softmax=True, squared_pred=True, batch=True)
        generator = torch.Generator().manual_seed(seed)
        batches = named(module, loader)(dataset, batch_size=2, num_workers=0, shuffle=True, generator=generator)
        losses = []
        for batch in _epochs(batches, dataset, num_epochs):
            optimizer.zero_grad()
            loss = loss_of(model(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return Outcome(losses=tuple(losses), held_out=self._judge(module, model, loss_of))

    def _judge(self, module: scripts.Names, model: UNet, loss_of: DiceCELoss) -> float:
        model.eval()
        window = named(module, "sliding_window_inference")
        with torch.no_grad():
            losses = [
                loss_of(window(item["image"][None], self.settings.patch, 4, model, overlap=0.5), item["label"][None])
                for item in self.held_out
            ]
        return float(torch.stack(losses).mean())


def _epochs(batches: Any, dataset: Any, num_epochs: int) -> Iterator[Any]:
    rotates = hasattr(dataset, "update_cache")
    if rotates:
        dataset.start()
    try:
        for number in range(num_epochs):
            with passes_of(batches) as opened:
                yield from opened
            if rotates and number + 1 < num_epochs:
                dataset.update_cache()
    finally:
        if rotates:
            dataset.shutdown()


def curve(bench: Bench, kind: str, loader: str, *, novograd: bool = False) -> dict[str, Any]:
    """One drop-in with one loader under both packages, from one seed."""
    num_epochs = bench.settings.num_epochs
    theirs, ours = (
        bench.train(
            module, loader, bench.dataset(module, kind, bench.chain()), seed=0, num_epochs=num_epochs, novograd=novograd
        )
        for module in (_THEIRS, _OURS)
    )
    assert len(theirs.losses) == len(ours.losses), f"{kind}: {len(theirs.losses)} and {len(ours.losses)} steps"
    largest = max(
        _relative(our_loss, their_loss) for our_loss, their_loss in zip(ours.losses, theirs.losses, strict=True)
    )
    held_out = _relative(ours.held_out, theirs.held_out)
    return {
        "data_set": kind,
        "loader": loader,
        "optimizer": "Novograd" if novograd else "SGD",
        "num_steps": len(theirs.losses),
        "largest_difference": largest,
        "held_out_difference": held_out,
        "is_equal": largest <= TOLERANCE and held_out <= TOLERANCE,
        "losses": {"MONAI": theirs.losses, "Voxelocity": ours.losses},
        "held_out": {"MONAI": theirs.held_out, "Voxelocity": ours.held_out},
    }


def noisy_losses(bench: Bench, module: scripts.Names, seeds: Sequence[int]) -> list[float]:
    """Final losses of trainings whose patches are made noisy, one for each seed."""
    dataset = bench.dataset(module, "CacheDataset", bench.chain(noise=True))
    num_epochs = bench.settings.num_epochs_of_a_seed
    outcomes = [bench.train(module, "ThreadDataLoader", dataset, seed=seed, num_epochs=num_epochs) for seed in seeds]
    return [outcome.held_out for outcome in outcomes]


def two_samples(ours: Sequence[float], theirs: Sequence[float], *, margin: float) -> dict[str, Any]:
    """Whether two independent samples of losses differ, and within which bounds their means do.

    Args:
        ours: one loss a seed.
        theirs: MONAI's, of other seeds.
        margin: of the difference of the means, as a share of MONAI's mean, within which they are called equivalent.
    """
    interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(CONFIDENCE)
    mean = sum(theirs) / len(theirs)
    low, high = float(interval.low) / mean, float(interval.high) / mean
    return {
        "n": [len(ours), len(theirs)],
        "means": {"MONAI": mean, "Voxelocity": sum(ours) / len(ours)},
        "mann_whitney_p": float(stats.mannwhitneyu(ours, theirs, alternative="two-sided").pvalue),
        "kolmogorov_smirnov_p": float(stats.ks_2samp(ours, theirs).pvalue),
        "confidence": CONFIDENCE,
        "difference_of_means": [low, high],
        "margin": margin,
        "is_equivalent": -margin < low and high < margin,
        "losses": {"MONAI": list(theirs), "Voxelocity": list(ours)},
    }


def measure(settings: Curves, work: Path) -> dict[str, Any]:
    bench = Bench(settings, work)
    curves = []
    for kind, loader, novograd in (
        *((kind, loader, False) for kind in KINDS for loader in LOADERS),
        ("CacheDataset", "ThreadDataLoader", True),
    ):
        curves.append(curve(bench, kind, loader, novograd=novograd))
        print(f"{kind} + {loader}: largest difference of a loss {curves[-1]['largest_difference']:.1e}")
    count = settings.num_seeds
    ours = noisy_losses(bench, _OURS, range(count, 2 * count))
    theirs = noisy_losses(bench, _THEIRS, range(count))
    return {"tolerance": TOLERANCE, "curves": curves,
            "noise": two_samples(ours, theirs, margin=settings.equivalence_margin)}  # fmt: skip


def _relative(ours: float, theirs: float) -> float:
    # NaN losses are not equal to each other.
    return abs(ours - theirs) / abs(theirs) if math.isfinite(ours) and math.isfinite(theirs) else float("inf")


def main(words: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--quick", action="store_true", help="one epoch, few seeds: checks that it runs")
    options = parser.parse_args(words)
    settings = Curves(num_epochs=2, num_seeds=3, num_epochs_of_a_seed=1) if options.quick else Curves()
    # Handing pieces of so small a network to other threads takes longer than computing them.
    torch.set_num_threads(1)
    record = head("monai_curves", "--quick" if options.quick else "") | {"settings": asdict(settings)}
    with tempfile.TemporaryDirectory() as work:
        write_record(record | measure(settings, Path(work)), "monai_curves", out=options.out)


if __name__ == "__main__":
    main()
