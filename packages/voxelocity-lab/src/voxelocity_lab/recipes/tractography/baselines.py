"""What needs no training, judged as generated streamlines are: an untrained network, and real streamlines made over.

Generated streamlines begin at exemplars of the training, so they fill much of the right space whatever the network has
learned. These show how much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from voxelocity.core.rng import generator
from voxelocity_lab.recipes.tractography.bundles import Bundles
from voxelocity_lab.recipes.tractography.generate import untrained_streamlines
from voxelocity_lab.recipes.tractography.judge import middle_of, space_shared
from voxelocity_lab.recipes.tractography.shapes import Numbers, Points
from voxelocity_lab.recipes.tractography.train import TrainedTracts

UNTRAINED = "untrained network"
MOVED = "training, each moved"
MEAN = "mean of each bundle"
SAME = "training, unchanged"


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Means over bundles: of the space that its streamlines fill, and of their median length and curvature."""

    f1: float
    overlap: float
    overreach: float
    length_mm: float
    curvature_per_mm: float


def baselines_of(
    trained: TrainedTracts, bundle: Numbers, training: Bundles, real: Bundles, chosen: Sequence[int], *, seed: int
) -> dict[str, Baseline]:
    """Each baseline, over the bundles and on the streamlines that generated ones are judged by; none without bundles.

    No network is called: an untrained one answers zero.

    Args:
        trained: the model.
        bundle: (n), the index of each generated streamline's bundle; each baseline makes as many.
        training: streamlines that it was trained on; there may be none in other data, which then have no mean.
        real: those to compare with.
        chosen: numbers of the bundles that count.
        seed: of noise and of moves.
    """
    bundle = bundle[np.isin(bundle, chosen)]
    if not len(bundle):
        return {}
    exemplars = trained.exemplars.draw(bundle, seed=seed)
    # By the distance of neighbors, which the network has to learn.
    steps = generator(seed, stage="moved").standard_normal((len(bundle), 1, 3), dtype=np.float32)
    scale = trained.network.scale_mm.cpu().numpy()[bundle, None, None]
    made: dict[str, Callable[[], Points]] = {
        UNTRAINED: lambda: untrained_streamlines(trained, bundle, seed=seed),
        MOVED: lambda: (exemplars + scale * steps).astype(np.float32),
        MEAN: lambda: _means(training, bundle),
        SAME: lambda: exemplars,
    }
    if not len(training):
        del made[MEAN]
    return {name: _over_bundles(make(), bundle, real) for name, make in made.items()}


def _means(training: Bundles, bundle: Numbers) -> Points:
    """The mean streamline of its bundle for each; that of all for a bundle without any."""
    means = {}
    for number in np.unique(bundle):
        members = training.of(number)
        means[number] = (members if len(members) else training.streamlines).mean(axis=0)
    return np.stack([means[number] for number in bundle]).astype(np.float32)


def _over_bundles(made: Points, bundle: Numbers, real: Bundles) -> Baseline:
    parts = {int(number): made[bundle == number] for number in np.unique(bundle)}
    shared = [space_shared(part, real.of(number)) for number, part in parts.items()]
    overlap, overreach, f1 = np.mean(shared, axis=0).tolist()
    length_mm, curvature_per_mm = np.mean([middle_of(part) for part in parts.values()], axis=0).tolist()
    return Baseline(f1=f1, overlap=overlap, overreach=overreach, length_mm=length_mm, curvature_per_mm=curvature_per_mm)
