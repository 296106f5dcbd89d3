"""How volumes are covered with windows, as data. Needs no torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from voxelocity.core.config import Config
from voxelocity.core.region import Index3
from voxelocity.data.patch import Spread

Blend = Literal["gaussian", "uniform", "nnunet", "nnunet float16"]
FLOAT16_SUMS: Blend = "nnunet float16"
"""Windows are weighted and added as nnU-Net does it, in float16."""
_Edge = Annotated[int, Field(ge=0, le=2048)]


class WindowConfig(Config):
    """How volumes are covered with windows."""

    shape_voxel: tuple[_Edge, _Edge, _Edge]
    """Voxels of a window along (x, y, z); smaller volumes are padded to it with zeros on both sides. 0: the length of
    each volume, only for models of other toolkits."""
    overlap: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Share of a window that the next one covers too, on each axis."""
    spread: Spread = "monai"
    """Where windows are: a fixed step apart with the last one moved back, or at equal distances as in nnU-Net."""
    blend: Blend = "gaussian"
    """Weight of a window's voxels: falling from the center to the edges, the same everywhere, or exactly as in nnU-Net,
    whose Gaussian lies half a voxel off the center of an even edge. With "nnunet float16", sums
    are rounded to float16 after each window too, in nnU-Net's order."""
    sigma_scale: float = Field(default=0.125, gt=0.0)
    """Standard deviation of the Gaussian as a share of the window's edge (nnU-Net's and MONAI's 1/8)."""
    batch_size: int = Field(default=1, ge=1, le=4096)
    """Windows in one forward pass, from one volume or several."""
    mirror_axes: tuple[Annotated[int, Field(ge=0, le=2)], ...] = ()
    """Axes (0 for x) that predictions are averaged over: n axes cost 2**n forward passes."""
    swap_pairs: tuple[tuple[str, str], ...] = ()
    """Names of classes whose channels swap places in windows mirrored along x, as in `data.augment.swap_pairs`."""
    sum_on: Literal["auto", "memory"] = "auto"
    """Where the sum of a volume's scores is kept: on the device as long as it has room, or always in main memory. Does
    not change results."""
    reuse_constant: bool = True
    """Whether the network runs only once on windows that hold the same constant value, such as clipped air or padding.
    Its output for them is the same, so results do not change."""

    @property
    def is_of_volume(self) -> bool:
        """Whether windows of different volumes have different shapes, and cannot share a forward pass."""
        return 0 in self.shape_voxel

    def within(self, shape: Index3) -> Self:
        """The same for a volume of this shape, without edges of 0."""
        if not self.is_of_volume:
            return self
        edges = [edge or length for edge, length in zip(self.shape_voxel, shape, strict=True)]
        return self.model_copy(update={"shape_voxel": tuple(edges)})
