"""Training a diffusion model of streamlines: numbered batches, the loss, and the model on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import load, save

from voxelocity.core.batch import Batch
from voxelocity.core.errors import InputError
from voxelocity.core.rng import generator
from voxelocity.core.whole_file import put_in_place
from voxelocity.infer import SPEC_NAME, WEIGHTS_NAME
from voxelocity.observe import Stopwatch, cpu_budget
from voxelocity.observe.sinks import Sink
from voxelocity.parallel import World
from voxelocity.recipes.fit import fit, open_run, shares_of
from voxelocity.recipes.tractography.bundles import Bundles, Frame, open_bundles, split
from voxelocity.recipes.tractography.diffusion import NUM_TIMES, clean_of, signal_and_noise, target_of
from voxelocity.recipes.tractography.files import Space
from voxelocity.recipes.tractography.model import Denoiser, pack
from voxelocity.recipes.tractography.settings import ShapeLossConfig, TractographyConfig
from voxelocity.recipes.tractography.volume import Volume, distance_to, read_volume
from voxelocity.step import TrainingStep

_FORMAT = 1
_RESERVE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class TrainedTracts:
    """A trained model.

    Attributes:
        network: with the averaged weights, in evaluation mode on the CPU.
        config: it was trained with.
        names: of the bundles.
        num_held: streamlines of each bundle that were held out.
        space: of the data.
        seed: of the training, which also chose what was held out.
    """

    network: Denoiser
    config: TractographyConfig
    names: tuple[str, ...]
    num_held: tuple[int, ...]
    space: Space
    seed: int


def train_tracts(
    data: Path,
    out: Path,
    config: TractographyConfig,
    *,
    seed: int = 0,
    device: torch.device,
    console: Console,
    resume: bool = False,
    overwrite: bool = False,
    sinks: Sequence[Sink] = (),
    spent_s: float = 0.0,
) -> TrainedTracts:
    """Trains on the streamlines of `data` and writes the model into `out`.

    Args:
        data: as for `open_bundles`.
        out: the run's folder.
        config: of the recipe.
        seed: of weights, order, noise and the choice of what is held out.
        device: to train on.
        console: for progress.
        resume: continue an interrupted run there.
        overwrite: replace a run there.
        sinks: also receive every event.
        spent_s: seconds of the time budget that have gone by before.

    Raises:
        InputError: the data cannot be used, or the folder.
        InterruptedRunError: a stop was asked for; the state is saved.
    """
    watch = Stopwatch()
    bundles = open_bundles(data, num_points=config.network.num_points, image=config.image_path)
    chosen, held = split(bundles, by=config.split.by, held_out=config.split.held_out, seed=seed)
    training = bundles.part(chosen)
    frame = Frame.of(training)
    record = {"recipe": "tractography", "data": str(data.absolute()), "seed": seed, "config": config.to_plain()}
    with open_run(
        out, record, resume=resume, overwrite=overwrite, device=device, console=console, sinks=sinks,
        spent_s=spent_s + watch.elapsed_s,
    ) as run:  # fmt: skip
        if bundles.left_out:
            run.warn(f"tractography: {bundles.left_out}")
        torch.manual_seed(seed)
        network = Denoiser(config.network, frame, read_volume(_path(config.image), _path(config.direction)))
        network.to(device)
        step = TrainingStep(
            network,
            TractLoss(config, frame, device, run.world),
            optimizer=config.fit.optimizer,
            precision=config.precision,
            device=device,
            seed=seed,
            warn=run.warn,
            world=run.world,
        )
        batches = Batches(training, frame, config.fit.batch_size, seed=seed, share=shares_of(config.fit, run.world))
        threads = max(1, min(2, cpu_budget() - 1))
        # Streamlines are made and judged afterwards.
        reserve_s = min(_RESERVE_S, 0.1 * config.fit.time_budget_s)
        state = fit(run, step, batches, config.fit, num_items=len(training), num_threads=threads, reserve_s=reserve_s)
        num_held = np.bincount(bundles.bundle[held], minlength=len(bundles.names))
        averaged = step.averaged()
        assert isinstance(averaged, Denoiser)
        image = config.image_path
        trained = TrainedTracts(
            network=averaged.cpu().eval(),
            config=config,
            names=bundles.names,
            num_held=tuple(map(int, num_held)),
            space=Space.around(bundles.streamlines.reshape(-1, 3)) if image is None else Space.of_image(image),
            seed=seed,
        )
        if run.world.is_leader:
            _save(out, trained)
        run.log.write("run_finished", step=state.step, seconds=run.log.elapsed_s(), trained_s=state.trained_s)
    return trained


class Batches:
    """Batch `n` as a function of the seed and `n`: streamlines in an order that changes with each epoch, and noise.

    Its image is what `pack` makes, (b, 5, p); its label is (b, 9, p): the clean streamline, the noisy one, the factors
    of both, and the bundle.

    Args:
        bundles: to train on.
        frame: of them.
        batch_size: of all ranks.
        seed: of order, times and noise.
        share: the streamlines of each batch that this rank makes.
    """

    def __init__(self, bundles: Bundles, frame: Frame, batch_size: int, *, seed: int, share: slice) -> None:
        self._clean = frame.seen(bundles.streamlines, bundles.bundle)
        self._bundle = bundles.bundle
        self._batch_size, self._seed, self._share = batch_size, seed, share
        self._factors = signal_and_noise().numpy().astype(np.float32)

    def __call__(self, step: int) -> Batch:
        """The share of batch `step`. Safe from several threads."""
        index = self._drawn(step)
        numbers = generator(self._seed, stage="noise", draw=step)
        # One time in each of as many equal intervals as there are streamlines: less chance in the loss.
        times = (numbers.permutation(self._batch_size) + numbers.random(self._batch_size)) / self._batch_size
        time = (times * NUM_TIMES).astype(np.int64)
        noise = numbers.standard_normal((self._batch_size, *self._clean.shape[1:]), dtype=np.float32)
        index, time, noise = index[self._share], time[self._share], noise[self._share]
        clean, (signal, sigma) = self._clean[index], self._factors[:, time]
        noisy = torch.from_numpy(signal[:, None, None] * clean + sigma[:, None, None] * noise)
        bundle = torch.from_numpy(self._bundle[index])
        shown = torch.from_numpy(np.stack([signal, sigma, self._bundle[index].astype(np.float32)], axis=1))
        parts = [torch.from_numpy(clean).transpose(1, 2), noisy.transpose(1, 2)]
        label = torch.cat([*parts, shown[..., None].expand(-1, -1, clean.shape[1])], dim=1)
        return Batch(image=pack(noisy, torch.from_numpy(time), bundle), label=label, draws=(), regions=(), step=step)

    def _drawn(self, step: int) -> np.ndarray[Any, Any]:
        """The streamlines of a batch, which may begin in one epoch and end in a later one."""
        first, num = step * self._batch_size, len(self._clean)
        places = np.arange(first, first + self._batch_size)
        index = np.empty(self._batch_size, np.int64)
        for epoch in range(first // num, (first + self._batch_size - 1) // num + 1):
            within = places // num == epoch
            index[within] = self._order(epoch)[places[within] % num]
        return index

    def _order(self, epoch: int) -> np.ndarray[Any, Any]:
        return generator(self._seed, stage="order", epoch=epoch).permutation(len(self._clean))


class TractLoss:
    """The squared error of the answer, and of the shape it means, as a mean over the batch of all ranks."""

    def __init__(self, config: TractographyConfig, frame: Frame, device: torch.device, world: World) -> None:
        self._config, self._world = config, world
        self._scale_mm = torch.from_numpy(frame.scale_mm).to(device)
        self._mean_mm = torch.from_numpy(frame.mean_mm).to(device)
        self._mask = distance_to(Path(config.mask)).to(device) if config.loss.mask else None

    def __call__(self, answer: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        answer = answer.float().transpose(1, 2)
        clean, noisy = label[:, :3].transpose(1, 2), label[:, 3:6].transpose(1, 2)
        factors, bundle = label[:, 6:8, 0].T, label[:, 8, 0].long()
        signal, sigma = factors[..., None, None]
        noise = (noisy - signal * clean) / sigma
        wanted = target_of(clean, noise, factors, self._config.prediction)
        each = (answer - wanted).square().mean(dim=(1, 2))
        shape = self._config.loss
        if shape.flip or shape.bend or shape.mask:
            found = clean_of(answer, noisy, factors, self._config.prediction)
            each = each + factors[0].square() * self._of_shape(found, clean, bundle, shape)
        total = self._world.total(each.sum().reshape(1))[0]
        return total / self._config.fit.batch_size

    def _of_shape(
        self, found: torch.Tensor, clean: torch.Tensor, bundle: torch.Tensor, shape: ShapeLossConfig
    ) -> torch.Tensor:
        scale, mean = self._scale_mm[bundle, None, None], self._mean_mm[bundle]
        found_mm, clean_mm = found * scale + mean, clean * scale + mean
        result = torch.zeros_like(bundle, dtype=found.dtype)
        if shape.flip:
            ways = [(found_mm - one).norm(dim=2).mean(dim=1) for one in (clean_mm, clean_mm.flip(1))]
            result = result + shape.flip * torch.minimum(*ways)
        if shape.bend:
            change = (found_mm - clean_mm).diff(n=2, dim=1)
            result = result + shape.bend * change.square().sum(dim=2).mean(dim=1)
        if shape.mask and self._mask is not None:
            result = result + shape.mask * self._mask(found_mm.transpose(1, 2)).mean(dim=(1, 2))
        return result


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _save(out: Path, trained: TrainedTracts) -> None:
    put_in_place(
        out / WEIGHTS_NAME, save({name: one.contiguous() for name, one in trained.network.state_dict().items()})
    )
    description = {
        "format": _FORMAT,
        "recipe": "tractography",
        "config": trained.config.to_plain(),
        "names": trained.names,
        "num_held": trained.num_held,
        "space": asdict(trained.space),
        "seed": trained.seed,
    }
    put_in_place(out / SPEC_NAME, (json.dumps(description, indent=1) + "\n").encode())


def load_tracts(folder: Path) -> TrainedTracts:
    """The model of a finished run.

    Raises:
        InputError: the folder holds none, or one of another recipe or a later version.
    """
    try:
        found = json.loads((folder / SPEC_NAME).read_text())
        weights = load((folder / WEIGHTS_NAME).read_bytes())
    except FileNotFoundError:
        raise InputError(
            f"tractography: {folder} holds no finished run ({SPEC_NAME}, {WEIGHTS_NAME}); train one first"
        ) from None
    if found.get("recipe") != "tractography" or found.get("format") != _FORMAT:
        raise InputError(
            f"tractography: the model in {folder} is not one of this recipe, or of another version; train it again"
        )
    config = TractographyConfig.parse(found["config"], where=str(folder / SPEC_NAME))
    frame = Frame(mean_mm=weights["mean_mm"].numpy(), scale_mm=weights["scale_mm"].numpy())
    network = Denoiser(config.network, frame, _blank_volume(weights))
    network.load_state_dict(weights)
    return TrainedTracts(
        network=network.eval(),
        config=config,
        names=tuple(found["names"]),
        num_held=tuple(found["num_held"]),
        space=Space(affine=tuple(map(tuple, found["space"]["affine"])), shape=tuple(found["space"]["shape"])),
        seed=int(found["seed"]),
    )


def _blank_volume(weights: Mapping[str, torch.Tensor]) -> Volume | None:
    channels = weights.get("volume.channels")
    return None if channels is None else Volume(torch.zeros_like(channels[0]), np.eye(4))
