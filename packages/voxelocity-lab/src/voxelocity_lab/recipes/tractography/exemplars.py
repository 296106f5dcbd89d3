"""The real streamlines that generated ones are variations of, and the numbers a network sees of a variation.

Bundles hold tens to hundreds of streamlines, too few for a network to learn where in a bundle streamlines run. So it
learns how a streamline differs from its neighbors, which all bundles have in common, and is given one of them. Source:
Blattmann et al., "Semi-parametric neural image synthesis" (2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voxelocity.core.rng import generator
from voxelocity_lab.recipes.tractography.bundles import Bundles
from voxelocity_lab.recipes.tractography.shapes import Numbers, Points, nearest
from voxelocity_observe.core.errors import InputError

# Of fewer streamlines, distances are not known well.
_FEWEST_FOR_SCALE = 8
_LEAST_SCALE_MM = 1.0


@dataclass(frozen=True, kw_only=True)
class Exemplars:
    """Real streamlines that generated ones are variations of.

    Attributes:
        streamlines: (m, p, 3) float32 in RAS mm.
        bundle: (m), the index of each one's bundle.
    """

    streamlines: Points
    bundle: Numbers

    def draw(self, bundle: Numbers, *, seed: int) -> Points:
        """An exemplar (n, p, 3) for each streamline that is to be generated.

        Those of a bundle come in a random order before one comes again. A bundle without any takes those of all.

        Args:
            bundle: (n), the index of each one's bundle.
            seed: of the order.
        """
        chosen = np.empty(len(bundle), np.int64)
        for number in np.unique(bundle):
            wanted = np.flatnonzero(bundle == number)
            members = np.flatnonzero(self.bundle == number)
            members = members if len(members) else np.arange(len(self.bundle))
            order = generator(seed, stage="exemplar", draw=int(number)).permutation(members)
            chosen[wanted] = np.resize(order, len(wanted))
        drawn: Points = self.streamlines[chosen]
        return drawn


@dataclass(frozen=True, kw_only=True)
class ExemplarPairs:
    """Streamlines to train on, each with its nearest exemplars.

    Attributes:
        exemplars: of all bundles.
        index: (n), of each streamline that has an exemplar, in `Bundles`.
        nearest: (n, k), its exemplars; none is the streamline itself.
    """

    exemplars: Exemplars
    index: Numbers
    nearest: Numbers

    @classmethod
    def of(cls, bundles: Bundles, *, num_nearest: int, num_per_bundle: int, seed: int) -> ExemplarPairs:
        """Those of the streamlines trained on.

        Args:
            bundles: to train on.
            num_nearest: exemplars of each streamline, at most.
            num_per_bundle: exemplars of each bundle, at most; a random choice of its streamlines.
            seed: of the choice.

        Raises:
            InputError: no bundle has two streamlines.
        """
        numbers = generator(seed, stage="exemplars")
        kept, index, near, num_kept = [], [], [], 0
        for number in range(len(bundles.names)):
            members = np.flatnonzero(bundles.bundle == number)
            chosen = np.sort(numbers.permutation(len(members))[:num_per_bundle])
            own = np.full(len(members), -1)
            own[chosen] = np.arange(len(chosen))
            lines = bundles.streamlines[members]
            found = nearest(lines, lines[chosen], num=num_nearest, own=own)[1]
            has_one = found[:, 0] >= 0
            # A bundle of few streamlines repeats its nearest ones.
            found = np.where(found >= 0, found, found[:, :1])[has_one] + num_kept
            kept.append(members[chosen])
            index.append(members[has_one])
            near.append(found)
            num_kept += len(chosen)
        where = np.concatenate(kept)
        pairs = cls(
            exemplars=Exemplars(streamlines=bundles.streamlines[where], bundle=bundles.bundle[where]),
            index=np.concatenate(index),
            nearest=np.concatenate(near),
        )
        if not len(pairs.index):
            raise InputError(
                f"tractography: no bundle has two of the {len(bundles)} streamlines left to train on; give more, or "
                "hold out fewer (split.held_out)"
            )
        return pairs


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What a network sees of streamlines: how far each lies from its exemplar, by the distance of neighbors.

    So all bundles are learned at once, and noise of one size is as hard in each of them.

    Attributes:
        mean_mm: (k, p, 3), mean shape of each bundle; that of all streamlines for a bundle without any.
        spread_mm: (k), root mean square distance of a coordinate to it.
        scale_mm: (k), root mean square distance of a coordinate to the nearest exemplars.
    """

    mean_mm: Points
    spread_mm: Points
    scale_mm: Points

    @classmethod
    def of(cls, bundles: Bundles, pairs: ExemplarPairs) -> Frame:
        """That of the streamlines trained on."""
        overall = bundles.streamlines.mean(axis=0)
        shared = max(_LEAST_SCALE_MM, _root_mean_square(bundles.streamlines - overall))
        paired = bundles.streamlines[pairs.index]
        steps = paired[:, None] - pairs.exemplars.streamlines[pairs.nearest]
        bundle = bundles.bundle[pairs.index]
        typical = max(_LEAST_SCALE_MM, _root_mean_square(steps))
        means, spreads, scales = [], [], []
        for number in range(len(bundles.names)):
            members, changes = bundles.of(number), steps[bundle == number]
            means.append(members.mean(axis=0) if len(members) else overall)
            spread = _root_mean_square(members - means[-1]) if len(members) else shared
            spreads.append(max(_LEAST_SCALE_MM, spread))
            scale = max(_LEAST_SCALE_MM, _root_mean_square(changes)) if len(changes) else typical
            scales.append(max(scale, typical) if len(members) < _FEWEST_FOR_SCALE else scale)
        return cls(
            mean_mm=np.stack(means).astype(np.float32),
            spread_mm=np.array(spreads, np.float32),
            scale_mm=np.array(scales, np.float32),
        )

    def seen(self, streamlines: Points, exemplars: Points, bundle: Numbers) -> Points:
        """(n, p, 3) without unit, of streamlines and exemplars (n, p, 3) in mm of these bundles."""
        result: Points = (streamlines - exemplars) / self.scale_mm[bundle, None, None]
        return result


def _root_mean_square(values: Points) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
