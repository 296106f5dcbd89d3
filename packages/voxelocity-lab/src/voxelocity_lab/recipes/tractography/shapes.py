"""Shapes of streamlines: points at equal distances, one direction a bundle, distances between streamlines.

Arrays of streamlines are (n, p, 3) float32, in RAS millimeters: n streamlines of p points.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft
import torch

Points = npt.NDArray[np.float32]
Numbers = npt.NDArray[Any]

_ROUNDS = 5
# Distances of about this many pairs of points are in memory at once.
_PAIRS_AT_ONCE = 1 << 25


@dataclass(frozen=True, kw_only=True)
class Tracts:
    """Streamlines in RAS millimeters.

    Attributes:
        points: (m, 3) float32, all streamlines one after another.
        offsets: (n + 1), where each begins; each has at least two points.
        bundle: (n), index of each streamline's name.
        names: of the bundles; empty where a file gives none to its only one.
        left_out: for a warning, why streamlines of the files are not among them, or where their space was assumed.
    """

    points: Points
    offsets: Numbers
    bundle: Numbers
    names: tuple[str, ...] = ()
    left_out: str = ""

    def __len__(self) -> int:
        return len(self.bundle)

    @classmethod
    def of_lengths(cls, points: Any, lengths: Sequence[int] | Numbers, *, left_out: str = "") -> Tracts:
        """One bundle of streamlines with these numbers of points."""
        return cls(
            points=np.asarray(points, np.float32).reshape(-1, 3),
            offsets=np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]),
            bundle=np.zeros(len(lengths), np.int64),
            left_out=left_out,
        )


def resample(points: Points, offsets: Numbers, num_points: int) -> Points:
    """Streamlines with points at equal distances along each, its ends included.

    Args:
        points: (m, 3), all streamlines one after another.
        offsets: (n + 1), where each begins; each has at least two points.
        num_points: of each result.

    Returns:
        (n, num_points, 3).
    """
    assert num_points >= 2, f"num_points {num_points}"
    along, starts, lengths = _arc(points, offsets)
    wanted = starts[:, None] + lengths[:, None] * np.linspace(0.0, 1.0, num_points)
    # A rounding must not lead to the next streamline.
    wanted = np.minimum(wanted, (starts + lengths)[:, None])
    axes = [np.interp(wanted, along, points[:, axis].astype(np.float64)) for axis in range(3)]
    return np.stack(axes, axis=-1).astype(np.float32)


def lengths_mm(points: Points, offsets: Numbers) -> Numbers:
    """The length of each streamline along its points; arguments as for `resample`."""
    return _arc(points, offsets)[2]


def _arc(points: Points, offsets: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Distance along all streamlines put together, 1 mm apart; where each starts on it; how long each is."""
    steps = np.linalg.norm(np.diff(points.astype(np.float64), axis=0), axis=1)
    steps[offsets[1:-1] - 1] = 1.0
    along = np.concatenate([[0.0], np.cumsum(steps)])
    starts = along[offsets[:-1]]
    return along, starts, along[offsets[1:] - 1] - starts


def as_ragged(streamlines: Points) -> tuple[Points, Numbers]:
    """Points (n * p, 3) and offsets (n + 1) of streamlines (n, p, 3)."""
    num, num_points, _ = streamlines.shape
    return streamlines.reshape(-1, 3), np.arange(num + 1) * num_points


def with_one_direction(streamlines: Points, bundle: Numbers) -> Points:
    """The same streamlines, those of each bundle running the same way.

    Streamlines have no direction of their own: files hold them either way. Each is turned to the nearer one of its
    bundle's mean shape, which is computed again; the mean runs upwards along the axis on which its ends lie farthest
    apart, so that the result does not depend on the order of streamlines.

    Args:
        streamlines: (n, p, 3).
        bundle: (n), the index of each streamline's bundle.
    """
    result = streamlines.copy()
    for number in np.unique(bundle):
        chosen = np.flatnonzero(bundle == number)
        result[chosen] = _aligned(result[chosen])
    return result


def _aligned(streamlines: Points) -> Points:
    # The longest one spans the bundle from end to end.
    lengths = np.linalg.norm(np.diff(streamlines, axis=1), axis=2).sum(axis=1)
    mean = streamlines[int(np.argmax(lengths))]
    for _ in range(_ROUNDS):
        turned = _mean_distance(streamlines[:, ::-1], mean) < _mean_distance(streamlines, mean)
        streamlines = np.where(turned[:, None, None], streamlines[:, ::-1], streamlines)
        mean = streamlines.mean(axis=0)
        if not turned.any():
            break
    ends = mean[-1] - mean[0]
    return streamlines if ends[int(np.argmax(np.abs(ends)))] >= 0.0 else np.ascontiguousarray(streamlines[:, ::-1])


def _mean_distance(streamlines: Points, other: Points) -> Numbers:
    distances: Numbers = np.linalg.norm(streamlines - other, axis=2).mean(axis=1)
    return distances


def nearest(
    streamlines: Points, others: Points, *, num: int = 1, own: Numbers | None = None
) -> tuple[Numbers, Numbers]:
    """The nearest of the others to each streamline by minimum average direct-flip distance (MDF).

    Source: Garyfallidis et al., "QuickBundles", Frontiers in Neuroscience 6:175 (2012).

    Args:
        streamlines: (n, p, 3).
        others: (m, p, 3).
        num: how many of them, nearest first.
        own: (n), the index among the others of the streamline itself, which is left out; -1 if it is not there.

    Returns:
        (n, num) float32 distances in mm and (n, num) indices; infinite and -1 where there are fewer others.
    """
    found = np.full((len(streamlines), num), np.inf, np.float32)
    index = np.full((len(streamlines), num), -1, np.int64)
    mine, theirs = torch.from_numpy(streamlines), torch.from_numpy(others)
    at_once = max(1, _PAIRS_AT_ONCE // max(1, theirs[..., 0].numel()))
    for start in range(0, len(mine), at_once):
        part = mine[start : start + at_once]
        both = [_average_mm(part, direction) for direction in (theirs, theirs.flip(1))]
        distances = torch.minimum(*both)
        if own is not None:
            rows = np.flatnonzero(own[start : start + len(part)] >= 0)
            distances[rows, own[start + rows]] = torch.inf
        values, indices = distances.topk(min(num, len(theirs)), dim=1, largest=False)
        found[start : start + at_once, : values.shape[1]] = values.numpy()
        index[start : start + at_once, : values.shape[1]] = np.where(values.isfinite().numpy(), indices.numpy(), -1)
    return found, index


def nearest_mm(streamlines: Points, others: Points) -> Numbers:
    """The distance of each streamline to the nearest of the others, as of `nearest`: (n) float32."""
    return nearest(streamlines, others)[0][:, 0]


def _average_mm(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """(n, m): the mean distance of points with the same number."""
    total = mine.new_zeros(len(mine), len(theirs))
    for number in range(mine.shape[1]):
        # In this mode torch subtracts, instead of a product whose roundings near zero are large.
        total += torch.cdist(mine[:, number], theirs[:, number], compute_mode="donot_use_mm_for_euclid_dist")
    return total / mine.shape[1]


def turns_rad(streamlines: Points) -> Numbers:
    """The angles by which streamlines turn at their inner points: (n, p - 2) in radians."""
    steps = np.diff(streamlines.astype(np.float64), axis=1)
    sizes = np.linalg.norm(steps, axis=2)
    cosines = (steps[:, 1:] * steps[:, :-1]).sum(axis=2) / np.maximum(sizes[:, 1:] * sizes[:, :-1], 1e-12)
    angles: Numbers = np.arccos(np.clip(cosines, -1.0, 1.0))
    return angles


def curvature_per_mm(streamlines: Points) -> Numbers:
    """The mean turning angle of each streamline in radians, divided by the distance of its points; (n)."""
    sizes = np.linalg.norm(np.diff(streamlines.astype(np.float64), axis=1), axis=2)
    curvature: Numbers = turns_rad(streamlines).mean(axis=1) / np.maximum(sizes.mean(axis=1), 1e-6)
    return curvature


@functools.cache
def cosine_basis(num: int, num_points: int) -> Points:
    """The first `num` waves of the orthonormal cosine transform (DCT-II) of `num_points` points: (num, num_points)."""
    waves: Points = scipy.fft.idct(np.eye(num, num_points), axis=1, norm="ortho").astype(np.float32)
    return waves
