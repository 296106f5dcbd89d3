"""MONAI's DiNTS, of an architecture that MONAI's search found. Importing it imports no torch."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from voxelocity.step.network_config import NetworkConfig

# MONAI takes other widths as a multiple of this first one.
_USUAL_WIDTH = 32


def build(config: NetworkConfig, num_channels: int, num_classes: int) -> torch.nn.Module:
    """The network whose architecture MONAI's search finds (He et al. 2021, 10.1109/CVPR46437.2021.00578).

    Its finest resolution is half that of the image; `widths[0]` is doubled at each coarser one.
    """
    import torch
    from monai.networks.nets import DiNTS, TopologyInstance

    codes = np.array(config.paths)
    norm_name = (config.norm.upper(), {"affine": True})
    # MONAI prints a recommendation for the size of patches.
    with contextlib.redirect_stdout(io.StringIO()):
        space = TopologyInstance(
            arch_code=[(codes > 0).astype(int), np.maximum(codes - 1, 0)],
            channel_mul=config.widths[0] / _USUAL_WIDTH,
            num_blocks=len(codes),
            num_depths=len(config.strides),
            norm_name=norm_name,
        )
    nodes = torch.from_numpy(_arriving_paths(config.paths))
    network: torch.nn.Module = DiNTS(space, num_channels, num_classes, norm_name=norm_name, node_a=nodes)
    return network


def why_not(config: NetworkConfig) -> str:
    """Why these settings do not make a valid one, in words; "" if they do."""
    if any(stride != (2, 2, 2) for stride in config.strides):
        return "DiNTS halves every axis between levels; use dynunet for other strides"
    return _why_not_paths(config.paths, len(config.strides))


def _why_not_paths(paths: Sequence[Sequence[int]], num_resolutions: int) -> str:
    """Why these paths do not make a valid DiNTS, in words; "" if they do.

    A block connects n resolutions by 3n - 2 paths, each of which keeps, halves or doubles a resolution.
    """
    count = 3 * num_resolutions - 2
    if not paths or any(len(row) != count for row in paths):
        return (
            f"DiNTS with {num_resolutions} strides needs network.paths, the architecture that MONAI's search found, "
            f"with {count} numbers in each row; docs/plan.md shows how to make them from its file"
        )
    nodes = _arriving_paths(paths)
    for number, row in enumerate(paths):
        begins = {_begin(path) for path, code in enumerate(row) if code}
        if not begins or not all(nodes[number, begin] for begin in begins):
            return (
                f"row {number + 1} of network.paths has no path, or one that begins at a resolution where no path of "
                "the row before ends; leave it out, or take the whole architecture of one search"
            )
    return ""


def _arriving_paths(paths: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
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
