"""The borders of a mask as closed polygons along the edges of its pixels, for RTSTRUCT.

A reader that fills such polygons at the centers of pixels gets the mask back exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from voxelocity.core.volume import Array

# Directions of an edge: along x, along y, and back; a turn to the left is the next one.
_ALONG_X, _ALONG_Y, _BACK_X, _BACK_Y = range(4)

# By the direction in which a corner is reached, and the bits of those that leave it: left, straight on, else right.
_NEXT = [
    [next((turn % 4 for turn in (now + 1, now, now + 3) if leaving >> turn % 4 & 1), 0) for leaving in range(16)]
    for now in range(4)
]

Edges = Mapping[int, int]
"""By number of a corner, a bit for each direction in which an edge leaves it, with pixels of the mask on its left."""
Steps = tuple[int, int, int, int]
"""From a corner to the next one in each direction."""
Walk = list[tuple[int, int]]
"""Corners, each with the direction in which its edge leaves it."""


def contours_of(mask_xy: Array) -> list[npt.NDArray[np.float64]]:
    """Closed polygons (n, 2) in pixels around the parts of a mask; the center of pixel (i, j) is at (i, j).

    Pixels of a part share edges. A hole is joined to the border around it by a line that the polygon passes in both
    directions, the keyhole of DICOM PS3.3, C.8.8.6.3: readers that count crossings, windings or unions of polygons all
    leave it out. Only points at which the border turns are given.

    Args:
        mask_xy: (x, y) bool.
    """
    inside_x, inside_y = np.flatnonzero(mask_xy.any(axis=1)), np.flatnonzero(mask_xy.any(axis=0))
    if not inside_x.size:
        return []
    first = np.array([inside_x[0], inside_y[0]])
    box = np.pad(mask_xy[first[0] : inside_x[-1] + 1, first[1] : inside_y[-1] + 1].astype(bool), 1)
    num_y = box.shape[1] + 1
    steps = (num_y, 1, -num_y, -1)
    edges = _edges_of(box)
    walks = list(_walks(edges, steps))
    # Around a hole, the mask on the left means clockwise.
    if holes := [walk for walk in walks if _area(walk, num_y) < 0]:
        for walk in holes:
            _join(walk, edges, steps)
        walks = list(_walks(edges, steps))
    return [_points(walk, num_y) + first - 1.5 for walk in walks]


def _edges_of(box: npt.NDArray[np.bool_]) -> dict[int, int]:
    """Of a mask with an empty border; corner (i, j) is at the low sides of pixel (i, j)."""
    corners = np.zeros((box.shape[0] + 1, box.shape[1] + 1), dtype=np.uint8)
    low_y, high_y = box[:, 1:] & ~box[:, :-1], box[:, :-1] & ~box[:, 1:]
    low_x, high_x = box[1:] & ~box[:-1], box[:-1] & ~box[1:]
    corners[:-1, 1:-1] |= low_y.astype(np.uint8) << _ALONG_X
    corners[1:-1, :-1] |= high_x.astype(np.uint8) << _ALONG_Y
    corners[1:, 1:-1] |= high_y.astype(np.uint8) << _BACK_X
    corners[1:-1, 1:] |= low_x.astype(np.uint8) << _BACK_Y
    line = corners.reshape(-1)
    found = np.flatnonzero(line)
    return dict(zip(found.tolist(), line[found].tolist(), strict=True))


def _walks(edges: Edges, steps: Steps) -> Iterator[Walk]:
    """Every edge once, in closed walks that keep the mask on their left: each turns left as soon as it can."""
    unseen = dict(edges)
    while unseen:
        start = next(iter(unseen))
        begin = (unseen[start] & -unseen[start]).bit_length() - 1
        walk, corner, direction = Walk(), start, begin
        while not walk or (corner, direction) != (start, begin):
            walk.append((corner, direction))
            unseen[corner] &= ~(1 << direction)
            if not unseen[corner]:
                del unseen[corner]
            corner += steps[direction]
            direction = _NEXT[direction][edges[corner]]
        yield walk


def _area(walk: Walk, num_y: int) -> int:
    """Pixels that a walk surrounds, negative if clockwise."""
    sign = {_ALONG_Y: 1, _BACK_Y: -1}
    return sum(sign.get(direction, 0) * (corner // num_y) for corner, direction in walk)


def _join(walk: Walk, edges: dict[int, int], steps: Steps) -> None:
    """Adds a line, in both directions, from the low end of a hole along x to the next border."""
    corner = min(corner for corner, direction in walk if direction == _ALONG_Y)
    while True:
        before = corner + steps[_BACK_X]
        is_border = before in edges
        edges[corner] = edges.get(corner, 0) | 1 << _BACK_X
        edges[before] = edges.get(before, 0) | 1 << _ALONG_X
        if is_border:
            return
        corner = before


def _points(walk: Walk, num_y: int) -> npt.NDArray[np.float64]:
    """The corners (n, 2) at which a walk turns."""
    turns = [
        corner
        for (corner, direction), (_, before) in zip(walk, [walk[-1], *walk[:-1]], strict=True)
        if direction != before
    ]
    return np.array(np.divmod(turns, num_y), dtype=np.float64).T
