"""Training a diffusion model of streamlines: numbered batches, the loss, and the model on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voxelocity.core.batch import Batch
from voxelocity.core.learning import UNLEARNED
from voxelocity.core.rng import generator
from voxelocity.data.decode import read_header
from voxelocity.infer import SPEC_NAME
from voxelocity.parallel import World
from voxelocity.step import TrainingStep
from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.fit import FitJob, fit
from voxelocity_lab.recipes.run import Run, open_run
from voxelocity_lab.recipes.tractography.bundles import Bundles, TractDivision, open_bundles, split
from voxelocity_lab.recipes.tractography.diffusion import NUM_TIMES, clean_of, signal_and_noise, target_of
from voxelocity_lab.recipes.tractography.exemplars import ExemplarPairs, Exemplars, Frame
from voxelocity_lab.recipes.tractography.model import Denoiser, WaveDecoder, pack
from voxelocity_lab.recipes.tractography.settings import TractographyConfig
from voxelocity_lab.recipes.tractography.volume import ImageSampler, read_distance, read_volume
from voxelocity_lab.recipes.tractography.write import Space
from voxelocity_lab.recipes.trained import read_trained, write_trained
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.host import cpu_budget
from voxelocity_observe.core.quantities import listed

# Since 4, in waves, and with what is around exemplars.
_FORMAT = 4
_SIDES = {"trained": "division.trained", "held_out": "division.held_out"}
# Of what the file of weights holds besides the network.
_EXEMPLARS = "exemplars."
_RESERVE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class TrainedTracts:
    """A trained model.

    Attributes:
        network: with the averaged weights, in evaluation mode on the CPU.
        config: it was trained with.
        names: of the bundles.
        num_held: streamlines of each bundle that were held out.
        frame: of the bundles.
        exemplars: that generated streamlines are variations of.
        space: of the data.
        seed: of the training, which also chose what was held out.
        division: what it was trained on, and what was held out.
        unlearned: why that was too short to be scored; "" where it was not.
    """

    network: Denoiser
    config: TractographyConfig
    names: tuple[str, ...]
    num_held: tuple[int, ...]
    frame: Frame
    exemplars: Exemplars
    space: Space
    seed: int
    division: TractDivision
    unlearned: str = ""


def train_tracts(call: Call, config: TractographyConfig) -> TrainedTracts:
    """Trains on the streamlines of `call.data` and writes the model into `call.out`.

    The seed is that of weights, order, noise and the choice of what is held out.

    Raises:
        InputError: the data cannot be used, or the folder.
        InterruptedRunError: a stop was asked for; the state is saved.
    """
    watch, seed = Stopwatch(), call.seed
    # The mask may only be needed when the training is over.
    for name in filter(None, (config.image, config.direction, config.mask)):
        read_header(Path(name))
    volume = read_volume(_path(config.image), _path(config.direction))
    bundles = open_bundles(call.data, num_points=config.network.num_points, image=config.image_path)
    chosen, held = split(bundles, by=config.split.by, held_out=config.split.held_out, seed=seed)
    division = TractDivision.of(bundles, (chosen, held), by=config.split.by, data=call.data)
    training = bundles.part(chosen)
    pairs = ExemplarPairs.of(training, **dict(config.exemplar), seed=seed)
    frame = Frame.of(training, pairs, num_waves=config.network.num_waves)
    record = {
        "recipe": "tractography", "data": str(call.data.absolute()), "seed": seed, "config": config.to_plain(),
        "division": division.to_plain(),
    }  # fmt: skip
    with open_run(call, call.out, record, spent_s=call.spent_s + watch.elapsed_s) as run:
        if bundles.left_out:
            run.warn(f"tractography: {bundles.left_out}")
        torch.manual_seed(seed)
        network = Denoiser(config.network, frame, config.exemplar.num_around, volume)
        step = _make_step(run, config, network.to(call.device), frame, seed)
        job = FitJob(
            step=step,
            make_batch=StreamlineBatches(training, pairs, frame, config.fit.batch_size, seed=seed),
            config=config.fit,
            num_items=len(pairs.index),
            num_threads=max(1, min(2, cpu_budget() - 1)),
            unit="streamlines",
            # Streamlines are made and judged afterwards.
            reserve_s=min(_RESERVE_S, 0.1 * config.fit.time_budget_s),
        )
        fitted = fit(run, job)
        averaged, image = step.averaged(), config.image_path
        assert isinstance(averaged, Denoiser)
        trained = TrainedTracts(
            network=averaged.cpu().eval(),
            config=config,
            names=bundles.names,
            num_held=tuple(np.bincount(bundles.bundle[held], minlength=len(bundles.names)).tolist()),
            frame=frame,
            exemplars=pairs.exemplars,
            space=Space.enclosing(bundles.streamlines.reshape(-1, 3)) if image is None else Space.of_image(image),
            seed=seed,
            division=division,
            unlearned=fitted.unlearned,
        )
        if run.world.is_leader:
            _save(call.out, trained)
        fitted.log_end(run)
    return trained


def _make_step(run: Run, config: TractographyConfig, network: Denoiser, frame: Frame, seed: int) -> TrainingStep:
    device = next(network.parameters()).device
    return TrainingStep(
        network,
        TractLoss(config, frame, device, run.world),
        optimizer=config.fit.optimizer,
        precision=config.precision,
        device=device,
        seed=seed,
        warn=run.warn,
        world=run.world,
    )


class StreamlineBatches:
    """Batch `n` as a function of the seed and `n`: streamlines in an order that changes with each epoch, and noise.

    Its image is what `pack` makes, (b, 9 + 3 k, c); its label is (b, 13, c): the clean streamline, the noisy one, the
    exemplar and its scale, the factors of streamline and noise, and the bundle.

    Args:
        bundles: to train on.
        pairs: of them.
        frame: of them.
        batch_size: of all ranks.
        seed: of order, times and noise.
    """

    def __init__(self, bundles: Bundles, pairs: ExemplarPairs, frame: Frame, batch_size: int, *, seed: int) -> None:
        self._pairs, self._frame = pairs, frame
        self._streamlines, self._bundle = bundles.streamlines[pairs.index], bundles.bundle[pairs.index]
        self._batch_size, self._seed = batch_size, seed
        self._factors = signal_and_noise().numpy().astype(np.float32)

    def __call__(self, step: int, share: slice = slice(None)) -> Batch:
        """The streamlines `share` of batch `step`. Safe from several threads."""
        index = self._draw_batch(step)
        numbers = generator(self._seed, stage="noise", draw=step)
        # One time in each of as many equal intervals as there are streamlines: less chance in the loss.
        times = (numbers.permutation(self._batch_size) + numbers.random(self._batch_size)) / self._batch_size
        time = (times * NUM_TIMES).astype(np.int64)
        noise = numbers.standard_normal((self._batch_size, len(self._frame.sizes), 3), dtype=np.float32)
        column = numbers.integers(self._pairs.nearest.shape[1], size=self._batch_size)
        index, time, noise, column = index[share], time[share], noise[share], column[share]
        bundle = self._bundle[index]
        exemplars_mm = self._pairs.exemplars.with_neighbors(
            self._pairs.nearest[index, column], without=self._pairs.own[index]
        )
        scales = self._frame.scales(exemplars_mm, bundle)
        clean = self._frame.seen(self._streamlines[index], exemplars_mm[:, 0], scales)
        signal, sigma = self._factors[:, time]
        noisy = torch.from_numpy(signal[:, None, None] * clean + sigma[:, None, None] * noise)
        context = torch.from_numpy(self._frame.context(exemplars_mm, bundle))
        shown = torch.from_numpy(np.stack([signal, sigma, bundle.astype(np.float32)], axis=1))
        parts = [torch.from_numpy(clean).transpose(1, 2), noisy.transpose(1, 2), context[:, :3], context[:, -1:]]
        label = torch.cat([*parts, shown[..., None].expand(-1, -1, clean.shape[1])], dim=1)
        image = pack(noisy, context, torch.from_numpy(time), torch.from_numpy(bundle))
        return Batch(image=image, label=label, draws=(), regions=(), step=step)

    def _draw_batch(self, step: int) -> np.ndarray[Any, Any]:
        """The streamlines of a batch, which may begin in one epoch and end in a later one."""
        first, num = step * self._batch_size, len(self._streamlines)
        numbers = np.arange(first, first + self._batch_size)
        index = np.empty(self._batch_size, np.int64)
        for epoch in range(first // num, (first + self._batch_size - 1) // num + 1):
            within = numbers // num == epoch
            index[within] = self._order(epoch)[numbers[within] % num]
        return index

    def _order(self, epoch: int) -> np.ndarray[Any, Any]:
        return generator(self._seed, stage="order", epoch=epoch).permutation(len(self._streamlines))


class TractLoss:
    """The squared error of the output, and of the shape it means, as a mean over the batch of all ranks."""

    def __init__(self, config: TractographyConfig, frame: Frame, device: torch.device, world: World) -> None:
        self._config, self._world = config, world
        self._decoder = WaveDecoder(frame).to(device)
        self._mask = read_distance(Path(config.mask)).to(device) if config.loss.mask else None

    def __call__(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        output = output.float().transpose(1, 2)
        clean, noisy = label[:, :3].transpose(1, 2), label[:, 3:6].transpose(1, 2)
        factors, bundle = label[:, 10:12, 0].T, label[:, 12, 0].long()
        signal, sigma = factors[..., None, None]
        noise = (noisy - signal * clean) / sigma
        wanted = target_of(clean, noise, factors, self._config.prediction)
        each = (output - wanted).square().mean(dim=(1, 2))
        shape = self._config.loss
        if shape.flip or shape.bend or shape.mask:
            found = clean_of(output, noisy, factors, self._config.prediction)
            each = each + factors[0].square() * self._of_shape(found, clean, label[:, 6:10], bundle)
        total = self._world.total(each.sum().reshape(1))[0]
        return total / self._config.fit.batch_size

    def _of_shape(
        self, found: torch.Tensor, clean: torch.Tensor, context: torch.Tensor, bundle: torch.Tensor
    ) -> torch.Tensor:
        shape, place = self._config.loss, self._decoder
        exemplar_mm = place.exemplar_mm(context, bundle)
        found_mm, clean_mm = (
            (place.changes_mm(part.transpose(1, 2), context, bundle) + exemplar_mm).transpose(1, 2)
            for part in (found, clean)
        )
        result = torch.zeros_like(bundle, dtype=found.dtype)
        if shape.flip:
            ways = [(found_mm - direction).norm(dim=2).mean(dim=1) for direction in (clean_mm, clean_mm.flip(1))]
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
    kept = {_EXEMPLARS + name: torch.from_numpy(values) for name, values in vars(trained.exemplars).items()}
    description = {
        "config": trained.config.to_plain(),
        "names": trained.names,
        "num_held": trained.num_held,
        "space": asdict(trained.space),
        "seed": trained.seed,
        "division": trained.division.to_plain(),
        UNLEARNED: trained.unlearned,
    }
    # There may be millions, and tensors have no unsigned numbers everywhere.
    sides = {key: torch.from_numpy(getattr(trained.division, side).view(np.int64)) for side, key in _SIDES.items()}
    write_trained(out, "tractography", _FORMAT, trained.network.state_dict() | kept | sides, description)


def load_tracts(folder: Path) -> TrainedTracts:
    """The model of a finished run.

    Raises:
        InputError: the folder holds none, a damaged one, or one of another recipe or version.
    """
    found, weights = read_trained(folder, "tractography", _FORMAT)
    config = TractographyConfig.parse(found["config"], where=str(folder / SPEC_NAME))
    frame = Frame(**{part.name: weights[f"decoder.{part.name}"].numpy() for part in fields(Frame)})
    exemplars = Exemplars(**{part.name: weights.pop(_EXEMPLARS + part.name).numpy() for part in fields(Exemplars)})
    division = TractDivision(
        by=found["division"]["by"],
        groups=tuple(found["division"]["groups"]),
        files=found["division"]["files"],
        **{side: weights.pop(key).numpy().view(np.uint64) for side, key in _SIDES.items()},
    )
    network = Denoiser(config.network, frame, config.exemplar.num_around, _blank_volume(weights))
    network.load_state_dict(weights)
    return TrainedTracts(
        network=network.eval(),
        config=config,
        names=tuple(found["names"]),
        num_held=tuple(found["num_held"]),
        frame=frame,
        exemplars=exemplars,
        space=Space(affine=tuple(map(tuple, found["space"]["affine"])), shape=tuple(found["space"]["shape"])),
        seed=int(found["seed"]),
        division=division,
        unlearned=str(found.get(UNLEARNED, "")),
    )


def change_sampling(call: Call, trained: TrainedTracts) -> TrainedTracts:
    """The model with the settings by which streamlines are made and judged as the call has them.

    Raises:
        ConfigError: a value cannot be used, or the call sets what the training decided.
    """
    # A file may have moved; the network of a model without an image cannot be given one.
    moved = [name for name in ("image", "direction") if getattr(trained.config, name)]
    config = call.change_settings(trained.config, ("sample", "mask", *moved), where="tractography")
    return replace(trained, config=config)


def _blank_volume(weights: Mapping[str, torch.Tensor]) -> ImageSampler | None:
    channels = weights.get("volume.channels")
    return None if channels is None else ImageSampler(torch.zeros_like(channels[0]), np.eye(4))


def divide(trained: TrainedTracts, data: Path) -> tuple[Bundles, Bundles, list[str]]:
    """The streamlines of `data` that the model was trained on, those it has not seen, and what to know about that.

    Both have the bundles of the model, which are found by their names.

    Raises:
        InputError: `data` has none of these.
        ScanError: a file cannot be used.
    """
    config, division = trained.config, trained.division
    found = open_bundles(data, num_points=config.network.num_points, image=config.image_path)
    bundles = found.named(trained.names, where=data)
    notices = division.notices(bundles, data)
    if others := [name for name in found.names if name not in trained.names]:
        notices.append(f"The model does not know these bundles of {data}, which are left out: {listed(others)}.")
    chosen, held = division.sides(bundles)
    return bundles.part(chosen), bundles.part(held), notices
