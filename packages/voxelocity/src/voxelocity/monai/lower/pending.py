"""A tensor of an item whose changes are drawn but not yet made, and how it is made: what lowered transforms pass on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.data.meta_obj import MetaObj, get_track_meta
from monai.data.meta_tensor import MetaTensor, get_spatial_ndim
from monai.data.utils import affine_to_spacing
from monai.utils import TraceKeys, convert_to_tensor

# Imported as a module, whose files a chain's fingerprint reads: the thread behind the function cannot be read.
from voxelocity.core.region import Index3
from voxelocity.monai.items.kept import deep_copy
from voxelocity.monai.lower import on_device
from voxelocity.monai.steps import (
    Crop,
    Flip,
    IntensityStep,
    PatchTask,
    Resize,
    SpatialStep,
    Step,
    Turn,
    Warp,
    run,
)

_NO_IMAGE = "it was not a dense array of channels and two or three spatial axes"
_REFUSAL = (
    "made by voxelocity.monai, which stores no inverse; for inverses use voxelocity.monai.compile(chain, "
    "lower=False), also in a data set"
)


class PendingTensor:
    """The voxels of an image and the steps that will be applied to them.

    A lowered transform draws its random numbers as MONAI's does, from the same generator and in the same order, and
    adds steps; nothing is computed before `piece`. The source is only read, so it may be a cache's own memory.

    Attributes:
        source: (c, *spatial) plain tensor of two or three spatial axes, on any device, only read.
        steps: what will be applied to it, in this order; on three spatial axes, a plane being (c, x, y, 1).
        dtype: of the result.
        kept: the value itself, if the result is to be a copy of it, of its own type; None once there is a step.
        is_tracked: whether the result is a MetaTensor, as MONAI's `get_track_meta` was when this was made.
        meta: of that MetaTensor, except its affine; a dictionary of its own.
        spatial_ndim: how many spatial axes MONAI takes the image to have, which it may remember from before an axis was
            added.
        applied_operations: of the source. Of the drawn changes it holds only the last, as one that MONAI cannot
            invert.
    """

    def __init__(self, value: torch.Tensor) -> None:
        self.is_tracked = bool(get_track_meta())
        self.meta: dict[str, Any] = dict(value.meta) if isinstance(value, MetaTensor) else {}
        self.applied_operations = list(value.applied_operations) if isinstance(value, MetaTensor) else []
        self.spatial_ndim = int(get_spatial_ndim(value))
        self._affine = value.affine if isinstance(value, MetaTensor) else None
        self.source = value.as_tensor() if isinstance(value, MetaTensor) else value
        self.dtype = self.source.dtype
        self.kept: Any = None
        self.steps: list[Step] = []
        self._to_source: npt.NDArray[np.float64] = np.eye(4)
        self._shape3 = lifted_shape(self.source.shape[1:])
        self._is_moved = False

    @classmethod
    def of(cls, value: Any) -> PendingTensor:
        """The pending tensor itself, or a new one of a tensor, an array, or what a pending tensor keeps.

        Raises:
            TypeError: it is none of these.
        """
        if isinstance(value, PendingTensor):
            return value if value.kept is None else cls.of(value.kept)
        if isinstance(value, np.ndarray):
            value = convert_to_tensor(value)
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"a transform of voxels was given a {type(value).__name__}, not a tensor or an array")
        return cls(value)

    @classmethod
    def keeping(cls, value: torch.Tensor | npt.NDArray[Any]) -> PendingTensor:
        """A pending tensor that becomes a copy of the value when it is needed."""
        pending = cls.of(value)
        pending.kept = value
        return pending

    @property
    def num_spatial(self) -> int:
        """2 or 3 axes."""
        return self.source.ndim - 1

    @property
    def ndim(self) -> int:
        """With the channels, as MONAI's draws ask an image."""
        return self.source.ndim

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """After all steps so far: (x, y) or (x, y, z)."""
        return self._shape3[: self.num_spatial]

    @property
    def shape(self) -> tuple[int, ...]:
        """After all steps so far, with the channels."""
        return (self.source.shape[0], *self.spatial_shape)

    @property
    def is_untouched(self) -> bool:
        """Whether there is no step yet, so that `source` is what the transform would see."""
        return not self.steps

    @property
    def filled_dtype(self) -> torch.dtype:
        """The type that the steps can fill: `dtype`, or otherwise one that is cast to it afterwards."""
        return torch.float32 if self.dtype == torch.float32 else self.held_dtype

    @property
    def held_dtype(self) -> torch.dtype:
        """The type of the voxels after the steps so far, before any cast to `dtype`."""
        is_moved_only = all(isinstance(step, Crop | Flip | Turn) for step in self.steps)
        return self.source.dtype if is_moved_only else torch.float32

    def add(self, step: Step, *, updates_affine: bool = True) -> None:
        """Adds a step.

        Args:
            step: on three spatial axes.
            updates_affine: whether MONAI updates the affine and the spacing of the result for a spatial one.
        """
        self.kept = None
        if isinstance(step, SpatialStep):
            self._is_moved |= updates_affine
            self._to_source = self._to_source @ step.to_source(self._shape3)
            self._shape3 = step.shape_after(self._shape3)
            if isinstance(step, Warp | Resize):
                self.dtype = torch.float32
        elif isinstance(step, IntensityStep):
            self.dtype = torch.float32
        self.steps.append(step)

    def relocate(self, matrix: npt.NDArray[np.float64]) -> None:
        """Moves the result in the world without touching a voxel: `matrix` (4, 4) as a step's `to_source`.

        Updates the spacing in the metadata even if nothing moves, as MONAI does.
        """
        self._is_moved = True
        self._to_source = self._to_source @ matrix

    def refuse_inverse(self, name: str) -> None:
        """Notes in the history, whose last entry is in MONAI's error, why this transform cannot be inverted."""
        if self.applied_operations and _REFUSAL in self.applied_operations[-1].get(TraceKeys.CLASS_NAME, ""):
            self.applied_operations.pop()
        self.applied_operations.append({TraceKeys.CLASS_NAME: f"{name} ({_REFUSAL})"})

    def branch(self) -> PendingTensor:
        """Another pending tensor of the same source with the same steps so far, to be continued separately."""
        twin = object.__new__(PendingTensor)
        twin.__dict__ |= self.__dict__
        twin.steps, twin.meta = list(self.steps), dict(self.meta)
        twin.applied_operations = list(self.applied_operations)
        return twin

    def piece(self, out: torch.Tensor) -> PatchTask:
        """The work of filling `out`, of this `shape` and `filled_dtype`; on a device, by the current stream."""
        on_device.record_read(self.source)
        source, out = (value.unsqueeze(-1) if self.num_spatial == 2 else value for value in (self.source, out))
        return PatchTask(source=source, steps=tuple(self.steps), out=out)

    def with_metadata(self, out: torch.Tensor) -> torch.Tensor:
        """The filled `out` with affine and metadata where they are tracked, as MONAI returns it.

        Arrays in the metadata may be the source's own: only read them.
        """
        if not self.is_tracked:
            return out
        affine = self._affine if self._affine is not None else torch.eye(4, dtype=torch.float64)
        meta = {name: value for name, value in self.meta.items() if name != "affine"}
        if self._is_moved:
            affine = affine @ self._moved(affine)
            if "pixdim" in meta:
                spacing = affine_to_spacing(affine)
                meta["pixdim"] = MetaObj.copy_items(meta["pixdim"])
                meta["pixdim"][1 : 1 + len(spacing)] = spacing
        dressed = MetaTensor(out, affine=affine, meta=meta, applied_operations=self.applied_operations)
        dressed.spatial_ndim = self.spatial_ndim
        tracked: torch.Tensor = dressed
        return tracked

    def kept_copy(self) -> Any:
        """A copy of the value that is kept, with this pending tensor's history where it has one."""
        copied = deep_copy(self.kept)
        if isinstance(copied, MetaTensor):
            copied.applied_operations = self.applied_operations
        return copied

    def _moved(self, affine: torch.Tensor) -> torch.Tensor:
        """The matrix to the source for an affine of this size."""
        size = len(affine)
        matrix = np.eye(size)
        axes = min(size - 1, 3)
        matrix[:axes, :axes], matrix[:axes, -1] = self._to_source[:axes, :axes], self._to_source[:axes, 3]
        return torch.from_numpy(matrix).to(affine)


def lifted_shape(spatial: Sequence[int]) -> Index3:
    """(x, y, z) of (x, y) or (x, y, z)."""
    x, y, z = (*spatial, 1)[:3]
    return (x, y, z)


def to_pending(value: Any) -> PendingTensor:
    """A pending tensor that may be changed: a branch of the one given, or a new one."""
    if isinstance(value, PendingTensor) and value.kept is None:
        return value.branch()
    return PendingTensor.of(value)


def why_not_pending(value: Any) -> str:
    """Why it cannot be pending, in words; "" if it can.

    These cannot: what waits for MONAI's lazy resampling, a batch, an image with more axes than its affine, and what
    lies on a device for which nothing is lowered.
    """
    if isinstance(value, PendingTensor):
        return ""
    if isinstance(value, np.ndarray):
        is_image = value.ndim in (3, 4) and value.dtype.kind in "biuf"
        return "" if is_image else _NO_IMAGE
    if not isinstance(value, torch.Tensor) or value.ndim not in (3, 4) or value.layout != torch.strided:
        return _NO_IMAGE
    if not on_device.is_lowered_on(value.device):
        return f"it was on {value.device}, where nothing is lowered"
    if isinstance(value, MetaTensor):
        if value.pending_operations:
            return "it waits for MONAI's lazy resampling"
        return _NO_IMAGE if value.is_batch or len(value.affine) < value.ndim else ""
    return ""


def finish(data: Any, run: Callable[[Sequence[PatchTask]], None] = run) -> Any:
    """The data with a tensor in place of each pending one: of an item, of a list of items, or of one alone.

    Args:
        data: only read.
        run: makes the pieces of one sample.
    """
    if isinstance(data, PendingTensor):
        return _make([data], run)[0]
    if type(data) in (list, tuple):
        return type(data)(finish(item, run) for item in data)
    if not isinstance(data, dict):
        return data
    keys = [key for key, value in data.items() if isinstance(value, PendingTensor)]
    if not keys:
        return data
    return {**data, **dict(zip(keys, _make([data[key] for key in keys], run), strict=True))}


def _make(tensors: list[PendingTensor], run: Callable[[Sequence[PatchTask]], None]) -> list[Any]:
    drawn = [pending for pending in tensors if pending.kept is None]
    outs = [torch.empty(pending.shape, dtype=pending.filled_dtype, device=pending.source.device) for pending in drawn]
    run([pending.piece(out) for pending, out in zip(drawn, outs, strict=True)])
    made = (_apart(pending.with_metadata(out.to(pending.dtype))) for pending, out in zip(drawn, outs, strict=True))
    return [next(made) if pending.kept is None else pending.kept_copy() for pending in tensors]


def _apart(made: torch.Tensor) -> torch.Tensor:
    """The tensor with metadata of its own: MONAI's transforms write into `pixdim` in place."""
    if isinstance(made, MetaTensor):
        made.__dict__ = copy.deepcopy(made.__dict__)
    return made
