"""DiNTS, the network whose architecture MONAI's search finds (He et al. 2021, 10.1109/CVPR46437.2021.00578).

A block connects n resolutions by 3n - 2 paths, each of which keeps, halves or doubles a resolution. A table with one
row per block lists the paths: 0 for a path that is left out, else 1 + its operation.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

Paths = Sequence[Sequence[int]]
_FIRST_WIDTH = 32
"""First width of MONAI's class, which takes other widths as a multiple of it."""


def why_not_paths(paths: Paths, num_resolutions: int) -> str:
    """Why these paths do not make a valid network, in words; "" if they do."""
    count = 3 * num_resolutions - 2
    if not paths or any(len(row) != count for row in paths):
        return (
            f"DiNTS with {num_resolutions} strides needs network.paths, the architecture that MONAI's search found, "
            f"with {count} numbers in each row; docs/plan.md shows how to make them from its file"
        )
    nodes = _nodes(paths)
    for number, row in enumerate(paths):
        begins = {_begin(path) for path, code in enumerate(row) if code}
        if not begins or not all(nodes[number, begin] for begin in begins):
            return (
                f"row {number + 1} of network.paths has no path, or one that begins at a resolution where no path of "
                "the row before ends; leave it out, or take the whole architecture of one search"
            )
    return ""


def build_dints(
    *, paths: Paths, num_channels: int, num_classes: int, width: int, num_resolutions: int, norm: str
) -> torch.nn.Module:
    """MONAI's DiNTS, with a finest resolution half that of the image.

    Args:
        paths: valid according to `why_not_paths`.
        num_channels: of the image.
        num_classes: of the logits.
        width: features at the image's own resolution, doubled at each coarser one.
        num_resolutions: number of resolutions in the searched part.
        norm: "instance" or "batch".
    """
    from monai.networks.nets import DiNTS, TopologyInstance

    codes = np.array(paths)
    norm_name = (norm.upper(), {"affine": True})
    # MONAI prints a recommendation for the size of patches.
    with contextlib.redirect_stdout(io.StringIO()):
        space = TopologyInstance(
            arch_code=[(codes > 0).astype(int), np.maximum(codes - 1, 0)],
            channel_mul=width / _FIRST_WIDTH,
            num_blocks=len(codes),
            num_depths=num_resolutions,
            norm_name=norm_name,
        )
    network = DiNTS(space, num_channels, num_classes, norm_name=norm_name, node_a=torch.from_numpy(_nodes(paths)))
    assert isinstance(network, torch.nn.Module)
    return network


def _nodes(paths: Paths) -> npt.NDArray[np.int64]:
    """(blocks + 1, resolutions), 1 where a path arrives: MONAI's `node_a`."""
    kept = np.array(paths) > 0
    nodes = np.zeros((len(kept) + 1, (kept.shape[1] + 2) // 3), np.int64)
    nodes[0, [_begin(path) for path in np.flatnonzero(kept[0]).tolist()]] = 1
    for number, row in enumerate(kept):
        nodes[number + 1, (np.flatnonzero(row) + 1) // 3] = 1
    return nodes


def _begin(path: int) -> int:
    """The resolution, finest first, at which a path begins, in MONAI's order; it ends at `(path + 1) // 3`."""
    return (path + 1) // 3 - 1 + (path + 1) % 3
