"""What a predictor knows about a model, no matter which toolkit trained it: `PredictionSpec`, and `Model` with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, Self, runtime_checkable

import numpy as np
from pydantic import Field, model_validator

from voxelocity.core.cases import MAX_BYTE_CLASSES, MAX_CLASSES, MAX_LABEL_VALUE, scored_classes, stored_values
from voxelocity.core.config import Config
from voxelocity.core.contracts import DeterministicStage
from voxelocity.core.laterality import swapped_classes
from voxelocity.core.volume import Grid, VolumeSpec
from voxelocity.infer.arrays import Values
from voxelocity.infer.division import CaseDivision
from voxelocity.infer.window_config import WindowConfig
from voxelocity.step import BackendConfig, PrecisionConfig
from voxelocity_observe.core.device import Device
from voxelocity_observe.core.errors import ConfigError, ScanError

if TYPE_CHECKING:
    import torch

_Range = tuple[float, float]
_Value = Annotated[int, Field(ge=0, le=MAX_LABEL_VALUE)]
Kept = str | Annotated[tuple[str, ...], Field(min_length=1)]
"""A class, or several that are taken as one."""


class TrainedOn(Config):
    """Properties of the training scans, used to notice a scan that differs from them. Axes in RAS order.

    Measured by the plan: spacing and extent on all cases, intensities on a few.
    """

    num_cases: int = Field(ge=1)
    """Number of training scans."""
    spacing_mm: tuple[_Range, _Range, _Range]
    """Smallest and largest, along (x, y, z)."""
    extent_mm: tuple[_Range, _Range, _Range]
    """Smallest and largest field of view, along (x, y, z)."""
    intensity: tuple[_Range, ...]
    """For each channel: lowest and highest of all voxels."""
    foreground_median: tuple[float, ...]
    """For each channel: median inside the labeled structures."""


class PredictionSpec(Config):
    """What a network takes, how a volume is covered with windows, and what the output means."""

    channels: tuple[str, ...] = Field(min_length=1)
    """Names of the image channels, in order."""
    labels: dict[_Value, str] = Field(min_length=1, max_length=MAX_CLASSES)
    """File value to class name; class indices follow the sorted file values."""
    window: WindowConfig
    """How a prepared volume is covered with windows."""
    precision: PrecisionConfig
    """Number formats of the forward pass."""
    backend: BackendConfig | None = None
    """Switches of a GPU's libraries and of our kernels while the model predicts, those of its training; None to leave
    the process's own. cuDNN tries no algorithms then, as passes are of several sizes."""
    trained_on: TrainedOn | None = None
    """Properties of the training scans; None if they are not known."""
    division: CaseDivision | None = None
    """Which cases were trained on and which held out; None if that is not known."""
    region_order: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """For overlapping classes: the class index of each output channel, which a voxel takes where the channel's sigmoid
    exceeds 0.5; later channels overwrite earlier ones (nnU-Net's `regions_class_order`). Empty: one channel a class,
    and a voxel takes the class of the largest."""
    regions: dict[str, tuple[Annotated[int, Field(ge=0)], ...]] = Field(default_factory=dict)
    """For overlapping classes: the class indices that each output channel stands for, by name, to compare with a truth.
    Empty if they are not known, or if classes exclude each other."""
    ignore_value: Annotated[int, Field(ge=1, le=MAX_LABEL_VALUE)] | None = None
    """File value of voxels without a known class in the labels of the training, which are not scored; None without."""
    merged: dict[_Value, dict[_Value, str]] = Field(default_factory=dict)
    """Of classes that stand for several of the training labels', by their value: the values of these and their names
    (`classes.merge` of the plan)."""
    restored: Literal["probabilities", "logits"] = "probabilities"
    """What is interpolated from the prepared grid onto the scan's grid. nnU-Net interpolates logits."""
    keep_largest: tuple[Kept, ...] = ()
    """Names of the classes of which predictions keep only the largest component, because the validation cases of the
    run had a higher mean Dice that way; of several names in one entry, the largest of all of them together."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            swapped_classes(self.class_names, self.window.swap_pairs)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        unknown = [name for names in _grouped(self.keep_largest) for name in names if name not in self.class_names[1:]]
        if unknown:
            raise ValueError(
                f"keep_largest names {', '.join(unknown)}, which labels does not have as a foreground class"
            )
        named = {*self.region_order, *(index for indices in self.regions.values() for index in indices)}
        beyond = sorted(index for index in named if index >= len(self.labels))
        if beyond:
            raise ValueError(
                f"region_order and regions name the class indices {beyond}, but labels has {len(self.labels)} classes"
            )
        if self.region_order and len(self.stored_values) > MAX_BYTE_CLASSES:
            raise ValueError(f"labels has {len(self.labels)} classes; overlapping ones may have {MAX_BYTE_CLASSES}")
        if unknown_values := sorted({*self.merged} - {*self.labels}):
            raise ValueError(f"merged has the values {unknown_values[:8]}, which labels does not have")
        if self.regions and len(self.regions) != len(self.region_order):
            raise ValueError(
                f"regions names {len(self.regions)} classes, but region_order has {len(self.region_order)}"
            )
        return self

    @property
    def is_scale_free(self) -> bool:
        """Whether each scan is normalized by its own intensities, so that their scale does not matter."""
        return False

    @property
    def label_values(self) -> tuple[int, ...]:
        return tuple(sorted(self.labels))

    @property
    def stored_values(self) -> tuple[int | tuple[int, ...], ...]:
        """What label files may hold, in order of index: the values of the classes, then the ignored one."""
        return stored_values(self.labels, self.merged, self.ignore_value)

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.labels[value] for value in self.label_values)

    @property
    def kept_components(self) -> tuple[tuple[int, ...], ...]:
        """The class indices of each entry of `keep_largest`."""
        return tuple(tuple(map(self.class_names.index, names)) for names in _grouped(self.keep_largest))

    @property
    def scored(self) -> dict[str, tuple[int, ...]]:
        """Names of what is scored, with the class indices that each covers."""
        return scored_classes(self.class_names, self.regions)

    @property
    def ignored(self) -> int | None:
        """The index of ignored voxels; None if none are."""
        return None if self.ignore_value is None else len(self.labels)

    @property
    def num_outputs(self) -> int:
        """Channels of the network's output."""
        return len(self.region_order) or len(self.labels)

    def check_channels(self, num_channels: int, *, where: str) -> None:
        """Returns if a scan has as many channels as the network was trained on.

        Args:
            num_channels: of the scan.
            where: start of the error text; names the case.

        Raises:
            ScanError: it has more or fewer.
        """
        wanted = len(self.channels)
        if num_channels == wanted:
            return
        cure = (
            "give that channel alone, as a 3-D file, or choose one of several volumes by --volume"
            if wanted == 1
            else "give these in this order, in one 4-D file or as the files CASE_0000.nii.gz to "
            f"CASE_{wanted - 1:04d}.nii.gz"
        )
        raise ScanError(
            f"{where} has {num_channels} channel{'s' if num_channels != 1 else ''}, but the network was trained on "
            f"{wanted} ({', '.join(self.channels)}); {cure}"
        )


def _grouped(entries: tuple[Kept, ...]) -> list[tuple[str, ...]]:
    return [(entry,) if isinstance(entry, str) else entry for entry in entries]


@runtime_checkable
class NeedsDevice(Protocol):
    """A preparation that runs a network of its own."""

    def on_device(self, device: Device, on_windows: Callable[[], None] | None = None) -> DeterministicStage:
        """The same, with its network on a device; `on_windows` is called before each of its forward passes."""
        ...

    def num_passes(self, spec: VolumeSpec) -> int:
        """Forward passes of its network for a scan of this spec."""
        ...


def placed(
    preparation: DeterministicStage, device: Device, on_windows: Callable[[], None] | None = None
) -> DeterministicStage:
    """The preparation, with its network on the device if it has one. Arguments as `NeedsDevice.on_device`."""
    return preparation.on_device(device, on_windows) if isinstance(preparation, NeedsDevice) else preparation


def passes_of(preparation: DeterministicStage, spec: VolumeSpec) -> int:
    """As `NeedsDevice.num_passes`; 0 of a preparation without a network."""
    return preparation.num_passes(spec) if isinstance(preparation, NeedsDevice) else 0


class ForeignNetwork(ABC):
    """A network that another runtime runs: on tensors, or on arrays once it was opened for `arrays.HOST`.

    Attributes:
        runtime: its name in `infer.runtimes.table`.
    """

    runtime: str

    @abstractmethod
    def open(self, device: Device) -> None:
        """Makes it ready for windows on a device.

        Raises:
            InputError: it cannot run there.
        """

    @abstractmethod
    def __call__(self, windows_bcxyz: Values) -> Values:
        """Logits (b, k, x, y, z), maybe in a buffer that the next call overwrites. Opened by the first call."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network ready to predict.

    Attributes:
        folder: where it was read from.
        network: (b, c, x, y, z) to logits (b, k, x, y, z), in evaluation mode, on the CPU.
        spec: its description.
        preparation: how a scan is prepared before the network sees it; its trace leads back to the scan's grid. Safe
            from several threads.
        doubts: about its quality, as whole sentences.
        unlearned: why its training is too short to be scored; "" where it is not, or where that is not known.
        parts: models whose classes are laid over each other, each with classes of its own (`infer.parts`); network and
            preparation are then those of the first. Empty for a single network.
        is_average: whether parts have the same classes, and their probabilities are averaged on the scan's grid.
        is_last_on_cpu: whether a CPU computes the network faster in channels_last_3d; no GPU was measured in float32.
    """

    folder: Path
    network: torch.nn.Module | ForeignNetwork
    spec: PredictionSpec
    preparation: DeterministicStage
    doubts: tuple[str, ...] = ()
    unlearned: str = ""
    parts: tuple[Model, ...] = ()
    is_average: bool = False
    is_last_on_cpu: bool = False

    def describe_prepared(self) -> VolumeSpec:
        """What a scan of 100 x 100 x 100 voxels becomes, with spacings that a model has only if it keeps the scan's."""
        grid = Grid.of((100, 100, 100), np.diag([0.69, 1.13, 1.31, 1.0]))
        scan = VolumeSpec(num_channels=len(self.spec.channels), grid=grid, dtype="float32")
        return self.preparation.describe(scan).spec
