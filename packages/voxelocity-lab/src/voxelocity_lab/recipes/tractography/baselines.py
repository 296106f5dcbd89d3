"""What needs no training, judged as generated streamlines are: an untrained network, and real streamlines made over.

Generated streamlines begin at exemplars of the training, so they fill much of the right space whatever the network has
learned. These show how much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from voxelocity.core.rng import generator
from voxelocity_lab.recipes.tractography.bundles import Bundles
from voxelocity_lab.recipes.tractography.generate import untrained_streamlines
from voxelocity_lab.recipes.tractography.judge import VOXEL_MM
from voxelocity_lab.recipes.tractography.shapes import Numbers, Points, as_ragged, resample
from voxelocity_lab.recipes.tractography.train import TrainedTracts

UNTRAINED = "untrained"
NOISY = "training with noise"
MOVED = "training, each moved"
SAME = "training, unchanged"
TRIVIAL = (NOISY, MOVED)
"""Real streamlines of the training that are made over by chance alone; a model must be better than these."""


def baseline_streamlines(
    trained: TrainedTracts, bundle: Numbers, training: Bundles, *, seed: int
) -> Mapping[str, Points]:
    """Streamlines (n, p, 3) in RAS mm of each baseline, as many as were generated; no network is called.

    Args:
        trained: the model.
        bundle: (n), the index of each generated streamline's bundle.
        training: streamlines that it was trained on; there may be none in other data, whose place exemplars take.
        seed: of choice, noise and moves.
    """
    real = _drawn(trained, bundle, training, seed)
    numbers = generator(seed, stage="moved")
    # By the distance of neighbors, which the network has to learn.
    steps = numbers.standard_normal((len(bundle), 1, 3), dtype=np.float32)
    noise = numbers.standard_normal(real.shape, dtype=np.float32)
    made: dict[str, Callable[[], Points]] = {
        UNTRAINED: lambda: untrained_streamlines(trained, bundle, seed=seed),
        NOISY: lambda: real + VOXEL_MM * noise,
        MOVED: lambda: real + trained.frame.scale_mm[bundle, None, None] * steps,
        SAME: lambda: real,
    }
    return {name: _at_equal_distances(make()) for name, make in made.items()}


def _drawn(trained: TrainedTracts, bundle: Numbers, training: Bundles, seed: int) -> Points:
    """Streamlines of the training, each once before one comes again."""
    found = trained.exemplars.streamlines[trained.exemplars.draw(bundle, seed=seed)]
    for number in np.unique(bundle):
        members, wanted = training.of(number), np.flatnonzero(bundle == number)
        if len(members):
            order = generator(seed, stage="baseline", draw=int(number)).permutation(len(members))
            found[wanted] = members[np.resize(order, len(wanted))]
    return found


def _at_equal_distances(streamlines: Points) -> Points:
    return resample(*as_ragged(streamlines), streamlines.shape[1])
