"""The real streamlines that generated ones are variations of, and the numbers a network sees of a variation.

Bundles hold tens to hundreds of streamlines, too few for a network to learn where in a bundle streamlines run. So it
learns how a streamline differs from its neighbors, which all bundles have in common, and is given one of them and the
streamlines around that. Source: Blattmann et al., "Semi-parametric neural image synthesis" (2022).

A variation is smooth: it is a sum of few cosine waves along the streamline, as in Chung et al., "Cosine series
representation of 3D curves and its application to white matter fiber bundles" (2010).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from voxelocity.core.rng import generator
from voxelocity_lab.recipes.tractography.bundles import Bundles
from voxelocity_lab.recipes.tractography.shapes import Numbers, Points, cosine_basis, nearest
from voxelocity_observe.core.errors import InputError

# Of fewer streamlines, distances are not known well.
_FEWEST_FOR_SCALE = 8
_LEAST_SCALE_MM = 1.0
# Of the distance around an exemplar, as a factor of that in its bundle.
_MOST_FACTOR = 4.0
# Of a wave, in which streamlines of straight lines do not differ.
_LEAST_SIZE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Exemplars:
    """Real streamlines that generated ones are variations of.

    Attributes:
        streamlines: (m, p, 3) float32 in RAS mm.
        bundle: (m), the index of each one's bundle.
        around: (m, k + 1), the nearest other exemplars of each one, nearest first; itself where it is alone.
        nearest: (n, q), the exemplars of each streamline trained on.
    """

    streamlines: Points
    bundle: Numbers
    around: Numbers
    nearest: Numbers

    def draw(self, bundle: Numbers, *, seed: int) -> Numbers:
        """The index of an exemplar for each streamline that is to be generated: (n).

        Each is one that a streamline of the training was learned as a variation of. Those of a bundle come in a random
        order before one comes again, so exemplars are as frequent as they were in the training. A bundle without any
        takes the exemplars of all.

        Args:
            bundle: (n), the index of each one's bundle.
            seed: of the order.
        """
        chosen = np.empty(len(bundle), np.int64)
        paired = self.bundle[self.nearest[:, 0]]
        for number in np.unique(bundle):
            wanted = np.flatnonzero(bundle == number)
            known = self.nearest[paired == number]
            if not len(known):
                members = np.flatnonzero(self.bundle == number)
                known = (members if len(members) else np.arange(len(self.bundle)))[:, None]
            numbers = generator(seed, stage="exemplar", draw=int(number))
            rounds = []
            for _ in range(-(-len(wanted) // len(known))):
                order = numbers.permutation(len(known))
                rounds.append(known[order, numbers.integers(known.shape[1], size=len(known))])
            chosen[wanted] = np.concatenate(rounds)[: len(wanted)]
        return chosen

    def with_neighbors(self, index: Numbers, *, without: Numbers | None = None) -> Points:
        """Exemplars and what is around each: (n, 1 + k, p, 3) in RAS mm.

        Args:
            index: (n), of the exemplars.
            without: (n), the exemplar that each is to be learned as, which must not be seen; -1 for none.
        """
        around = self.around[index]
        if without is not None:
            around = np.take_along_axis(around, np.argsort(around == without[:, None], axis=1, kind="stable"), axis=1)
        found: Points = self.streamlines[np.concatenate([index[:, None], around[:, :-1]], axis=1)]
        return found


@dataclass(frozen=True, kw_only=True)
class ExemplarPairs:
    """Streamlines to train on, each with its nearest exemplars.

    Attributes:
        exemplars: of all bundles.
        index: (n), of each streamline that has an exemplar, in `Bundles`.
        own: (n), the exemplar that each streamline is; -1 where it is none.
    """

    exemplars: Exemplars
    index: Numbers
    own: Numbers

    @property
    def nearest(self) -> Numbers:
        """(n, q), the exemplars of each streamline; none is the streamline itself."""
        return self.exemplars.nearest

    @classmethod
    def of(
        cls, bundles: Bundles, *, num_nearest: int, num_per_bundle: int, num_around: int, seed: int
    ) -> ExemplarPairs:
        """Those of the streamlines trained on.

        Args:
            bundles: to train on.
            num_nearest: exemplars of each streamline, at most.
            num_per_bundle: exemplars of each bundle, at most; a random choice of its streamlines.
            num_around: other exemplars that are seen with each.
            seed: of the choice.

        Raises:
            InputError: no bundle has two streamlines.
        """
        numbers = generator(seed, stage="exemplars")
        kept, index, near, around, owns, num_kept = [], [], [], [], [], 0
        for number in range(len(bundles.names)):
            members = np.flatnonzero(bundles.bundle == number)
            chosen = np.sort(numbers.permutation(len(members))[:num_per_bundle])
            own = np.full(len(members), -1)
            own[chosen] = np.arange(len(chosen))
            # One more than is shown, because the streamline to be learned may be among them.
            found = nearest(
                bundles.streamlines[members],
                bundles.streamlines[members[chosen]],
                num=max(num_nearest, num_around + 1),
                own=own,
            )[1]
            has_one = found[:, 0] >= 0
            beside = found[chosen, : num_around + 1]
            around.append(np.where(beside >= 0, beside, np.arange(len(chosen))[:, None]) + num_kept)
            # A bundle of few streamlines repeats its nearest ones.
            found = np.where(found >= 0, found, found[:, :1])[has_one, :num_nearest] + num_kept
            kept.append(members[chosen])
            index.append(members[has_one])
            near.append(found)
            owns.append(np.where(own >= 0, own + num_kept, -1)[has_one])
            num_kept += len(chosen)
        where = np.concatenate(kept)
        exemplars = Exemplars(
            streamlines=bundles.streamlines[where],
            bundle=bundles.bundle[where],
            around=np.concatenate(around),
            nearest=np.concatenate(near),
        )
        pairs = cls(exemplars=exemplars, index=np.concatenate(index), own=np.concatenate(owns))
        if not len(pairs.index):
            raise InputError(
                f"tractography: no bundle has two of the {len(bundles)} streamlines left to train on; give more, or "
                "hold out fewer (split.held_out)"
            )
        return pairs


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What a network sees of streamlines: the waves by which each differs from its exemplar, as neighbors of that do.

    So all bundles are learned at once, dense parts and sparse ones; noise of one size is as hard in each, and smooth.

    Attributes:
        mean_mm: (k, p, 3), mean shape of each bundle; that of all streamlines for a bundle without any.
        spread_mm: (k), root mean square distance of a coordinate to it.
        scale_mm: (k), root mean square distance of a coordinate to the nearest exemplars.
        sizes: (c), root mean square of each wave of these differences, in units of `scales`.
    """

    mean_mm: Points
    spread_mm: Points
    scale_mm: Points
    sizes: Points

    @classmethod
    def of(cls, bundles: Bundles, pairs: ExemplarPairs, *, num_waves: int) -> Frame:
        """That of the streamlines trained on, in their first `num_waves` cosine waves."""
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
        scale_mm = np.array(scales, np.float32)
        frame = cls(
            mean_mm=np.stack(means).astype(np.float32),
            spread_mm=np.array(spreads, np.float32),
            scale_mm=scale_mm,
            sizes=np.ones(num_waves, np.float32),
        )
        powers: list[Numbers] = []
        for column in pairs.nearest.T:
            shown = pairs.exemplars.with_neighbors(column, without=pairs.own)
            waves = frame.seen(paired, shown[:, 0], frame.scales(shown, bundle))
            powers.append(np.square(waves).mean(axis=(0, 2)))
        sizes = np.maximum(np.sqrt(np.mean(powers, axis=0)), _LEAST_SIZE)
        return replace(frame, sizes=sizes.astype(np.float32))

    @property
    def basis(self) -> Points:
        """(c, p), the waves."""
        return cosine_basis(len(self.sizes), self.mean_mm.shape[1])

    def scales(self, exemplars: Points, bundle: Numbers) -> Points:
        """(n) in mm: root mean square distance of a coordinate of exemplars to what is around, of (n, 1 + k, p, 3)."""
        usual = self.scale_mm[bundle]
        powers = np.square(exemplars[:, 1:] - exemplars[:, :1]).mean(axis=(2, 3))
        # A bundle of few streamlines shows an exemplar itself in place of others.
        num = (powers > 0.0).sum(axis=1)
        around = np.where(num > 0, np.sqrt(powers.sum(axis=1) / np.maximum(num, 1)), usual)
        result: Points = np.clip(around, usual / _MOST_FACTOR, usual * _MOST_FACTOR).astype(np.float32)
        return result

    def seen(self, streamlines: Points, exemplars: Points, scales: Points) -> Points:
        """(n, c, 3) without unit, of streamlines and exemplars (n, p, 3) in mm, by these scales (n)."""
        return self._waves(streamlines - exemplars, scales)

    def placed(self, seen: Points, exemplars: Points, scales: Points) -> Points:
        """(n, p, 3) in mm, the inverse of `seen`."""
        changes = self.basis.T @ (seen * self.sizes[:, None]) * scales[:, None, None]
        result: Points = (exemplars + changes).astype(np.float32)
        return result

    def context(self, exemplars: Points, bundle: Numbers) -> Points:
        """What a network is given of exemplars and what is around them, (n, 1 + k, p, 3) in mm.

        Returns:
            (n, 4 + 3 k, c): the exemplar, the others, and the logarithm of its scale as a factor of the bundle's.
        """
        first, others, scales = exemplars[:, 0], exemplars[:, 1:], self.scales(exemplars, bundle)
        parts = [self._waves(first - self.mean_mm[bundle], self.spread_mm[bundle])]
        parts += [self.seen(others[:, number], first, scales) for number in range(others.shape[1])]
        factors = np.log(scales / self.scale_mm[bundle])[:, None, None]
        parts.append(np.broadcast_to(factors, (len(bundle), len(self.sizes), 1)))
        found: Points = np.concatenate(parts, axis=2).transpose(0, 2, 1).astype(np.float32)
        return found

    def _waves(self, changes_mm: Points, scale_mm: Points) -> Points:
        waves = self.basis @ (changes_mm / scale_mm[:, None, None]) / self.sizes[:, None]
        result: Points = waves.astype(np.float32)
        return result


def _root_mean_square(values: Points) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
