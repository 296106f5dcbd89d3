"""Streamlines from a trained model: all bundles in large batches, written while the next ones are made."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from voxelocity.core.rng import generator
from voxelocity.data.feed import ThreadBuffer
from voxelocity.step.precision import autocast, compiled
from voxelocity_lab.recipes.tractography.diffusion import clean_of, sample_streamlines, signal_and_noise
from voxelocity_lab.recipes.tractography.model import Denoiser, pack
from voxelocity_lab.recipes.tractography.shapes import Numbers, Points, as_ragged, resample
from voxelocity_lab.recipes.tractography.train import TrainedTracts
from voxelocity_lab.recipes.tractography.write import write_tracts
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.device import is_out_of_memory
from voxelocity_observe.core.errors import DeviceMemoryError
from voxelocity_observe.core.progress_bar import WorkProgress

# Noise is drawn for this many streamlines at once, so that it does not depend on the size of batches.
_BLOCK = 64


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What was made.

    Attributes:
        path: of the file.
        streamlines: (n, p, 3) float32 in RAS mm.
        bundle: (n), the index of each one's bundle.
        seconds: from the first noise to the whole file.
    """

    path: Path
    streamlines: Points
    bundle: Numbers
    seconds: float


def generate(
    trained: TrainedTracts,
    path: Path,
    *,
    seed: int,
    device: torch.device,
    counts: Sequence[int] | None = None,
    warn: Callable[[str], None],
    progress: WorkProgress | None = None,
) -> Generated:
    """Makes streamlines of all bundles and writes them to `path`.

    Args:
        trained: the model.
        path: of a .trx, .trk or .tck file.
        seed: of the noise.
        device: to compute on.
        counts: streamlines of each bundle; those of the settings if not given.
        warn: called when batches must be smaller.
        progress: shows how many are made, if given.

    Raises:
        DeviceMemoryError: not even one streamline fits into the memory.
        OSError: the file cannot be written.
    """
    wanted = wanted_counts(trained) if counts is None else counts
    bundle = np.repeat(np.arange(len(wanted)), wanted)
    watch = Stopwatch()
    made: list[Points] = []

    def keep_batches() -> Iterator[tuple[Points, str]]:
        # The next batch is made in a thread while this one is written.
        for start, streamlines in ThreadBuffer(generate_batches(trained, bundle, seed=seed, device=device, warn=warn)):
            made.append(streamlines)
            members = bundle[start : start + len(streamlines)]
            if progress is not None:
                share = (start + len(members)) / len(bundle)
                progress.update(
                    share, f"made {start + len(members):,} of {len(bundle):,} streamlines{progress.left_text(share)}"
                )
            for number, group in itertools.groupby(range(len(members)), key=members.__getitem__):
                chosen = list(group)
                yield streamlines[chosen[0] : chosen[-1] + 1], trained.names[number]

    write_tracts(path, keep_batches(), space=trained.space)
    num_points = trained.config.network.num_points
    return Generated(
        path=path,
        streamlines=np.concatenate(made) if made else np.empty((0, num_points, 3), np.float32),
        bundle=bundle,
        seconds=watch.elapsed_s,
    )


def wanted_counts(trained: TrainedTracts, num_real: Sequence[int] | None = None) -> list[int]:
    """Streamlines of each bundle, as the settings say; with 0 as many as real ones, or as were held out."""
    each = trained.config.sample.num_per_bundle
    return [each or max(1, int(num)) for num in (trained.num_held if num_real is None else num_real)]


def untrained_streamlines(trained: TrainedTracts, bundle: Numbers, *, seed: int) -> Points:
    """What the network would have made of these bundles before its first step, (n, p, 3) in RAS mm.

    Its answers are zero then, so no network is called.
    """
    noise = trained.config.sample.spread * _noise(trained.network, 0, len(bundle), seed)
    chosen = trained.exemplars.draw(bundle, seed=seed)
    return _make(trained, lambda packed: torch.zeros_like(packed[:, :3]), noise, bundle, chosen, torch.device("cpu"))


def generate_batches(
    trained: TrainedTracts, bundle: Numbers, *, seed: int, device: torch.device, warn: Callable[[str], None]
) -> Iterator[tuple[int, Points]]:
    """Streamlines of these bundles batch by batch, each with the index at which it begins.

    Streamline `n` depends on the seed, `n`, its bundle and how many of that come before; the size of batches changes
    only roundings.
    """
    config = trained.config
    network = trained.network.to(device).eval()
    chosen = trained.exemplars.draw(bundle, seed=seed)
    forward = compiled(network, config.precision.compile, device)
    size = min(config.sample.batch_size, max(1, len(bundle)))
    start = 0
    while start < len(bundle):
        members = bundle[start : start + size]
        try:
            noise = config.sample.spread * _noise(network, start, len(members), seed)
            made = _make(trained, forward, noise, members, chosen[start : start + size], device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if size == 1:
                raise DeviceMemoryError(
                    f"tractography: not even one streamline fits into the memory of {device}; free memory that other "
                    "programs hold, or use --device cpu"
                ) from None
            size //= 2
            warn(
                f"tractography: the memory of {device} is too small for batches of {2 * size}; {size} are made at once"
            )
            continue
        yield start, made
        start += len(members)


def _noise(network: Denoiser, start: int, num: int, seed: int) -> torch.Tensor:
    first, last = start // _BLOCK, (start + num - 1) // _BLOCK
    shape = (_BLOCK, network.config.num_waves, 3)
    blocks = [
        generator(seed, stage="sample", draw=block).standard_normal(shape, dtype=np.float32)
        for block in range(first, last + 1)
    ]
    return torch.from_numpy(np.concatenate(blocks)[start - first * _BLOCK :][:num])


def _make(
    trained: TrainedTracts,
    forward: Callable[[torch.Tensor], torch.Tensor],
    noise: torch.Tensor,
    bundle: Numbers,
    chosen: Numbers,
    device: torch.device,
) -> Points:
    """Streamlines (n, p, 3) in RAS mm, with points at equal distances, as variations of these exemplars."""
    config, frame = trained.config, trained.frame
    exemplars_mm = trained.exemplars.with_neighbors(chosen)
    numbers = torch.from_numpy(np.ascontiguousarray(bundle)).to(device)
    context = torch.from_numpy(frame.context(exemplars_mm, bundle)).to(device)
    factors = signal_and_noise().float().to(device)

    def clean_at(current: torch.Tensor, time: int) -> torch.Tensor:
        times = torch.full((len(current),), time, device=device)
        with autocast(config.precision, device):
            output = forward(pack(current, context, times, numbers))
        return clean_of(output.float().transpose(1, 2), current, factors[:, times], config.prediction)

    with torch.inference_mode():
        found = sample_streamlines(
            clean_at, noise.to(device), num_steps=config.sample.num_steps, sampler=config.sample.sampler
        )
    made = frame.placed(found.cpu().numpy(), exemplars_mm[:, 0], frame.scales(exemplars_mm, bundle))
    return resample(*as_ragged(made), made.shape[1])
