"""The preprocessing of a MONAI bundle as one stage, made from transforms whose effect is known here."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.contracts import DeterministicStage, StageEffect
from voxelocity.core.region import Index3
from voxelocity.core.volume import Grid, Spacing, Volume, VolumeSpec
from voxelocity.data.prepare import CropToNonzero, OrientToRAS, first_positions, resize_record
from voxelocity.data.prepare.resample import interpolate
from voxelocity.infer.models.bundle_config import Component
from voxelocity_observe.core.errors import ScanError

_SAME_SPACING_MM = 1e-3
"""MONAI's AFFINE_TOL."""
_MAX_VOXELS = 2**31 - 1

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BundlePreparation:
    """Stage: the image in float32 after all stages, its label dropped."""

    stages: tuple[DeterministicStage, ...]

    @property
    def moves_voxels(self) -> bool:
        """Whether a prediction has to be brought back to the scan's grid."""
        return any(not isinstance(stage, _Intensity) for stage in self.stages)

    @property
    def resamples(self) -> bool:
        return any(isinstance(stage, _Spacing) for stage in self.stages)

    def describe(self, spec: VolumeSpec) -> StageEffect:
        """The effect on a scan of this spec; with cropping, an upper bound.

        Raises:
            ScanError: the scan's spacing is not a positive number, or the result would have too many voxels.
        """
        spec, scratch_bytes = replace(spec, dtype="float32"), 0
        for stage in self.stages:
            effect = stage.describe(spec)
            spec, scratch_bytes = effect.spec, max(scratch_bytes, spec.image_bytes + effect.scratch_bytes)
        return StageEffect(spec=spec, scratch_bytes=scratch_bytes)

    def fingerprint(self) -> str:
        content = "+".join(stage.fingerprint() for stage in self.stages)
        return f"bundle-v1-{hashlib.blake2b(content.encode(), digest_size=12).hexdigest()}"

    def __call__(self, volume: Volume) -> Volume:
        """The prepared volume.

        Raises:
            ScanError: as `describe`.
        """
        volume = volume.with_(image=volume.intensities(), scaling=(), label=None)
        for stage in self.stages:
            volume = stage(volume)
        return volume.with_(image=np.ascontiguousarray(volume.image, dtype=np.float32))


def preparation_of(transforms: Sequence[Component]) -> BundlePreparation:
    """The stages that these transforms describe.

    Raises:
        InputError: a transform, or one of its arguments, is not known here; or the scan is cropped after its spacing
            was changed.
    """
    stages: list[DeterministicStage] = []
    for transform in transforms:
        if transform.name not in _STAGES:
            raise transform.error(f"is not among the transforms that are known here: {', '.join(_STAGES)}")
        stage = _STAGES[transform.name](transform)
        if stage is None:
            continue
        if any(isinstance(other, _Spacing) for other in stages) and not isinstance(stage, _Intensity):
            raise transform.error("comes after Spacingd, which is not supported")
        stages.append(stage)
    return BundlePreparation(tuple(stages))


def check_keys(transform: Component, value: Any, wanted: str) -> None:
    """Returns if a transform applies to this key alone.

    Raises:
        InputError: it applies to another key, or to several.
    """
    if value not in (wanted, [wanted]):
        raise transform.error(f"has the keys {value!r}; only '{wanted}' is supported")


@dataclass(frozen=True)
class _Intensity:
    """Stage: values changed in place, voxels not moved. `name` and `options` describe `change`."""

    name: str
    options: tuple[tuple[str, Any], ...]
    change: Callable[[Float32], None]

    def describe(self, spec: VolumeSpec) -> StageEffect:
        return StageEffect(spec=spec, scratch_bytes=spec.image_bytes)

    def fingerprint(self) -> str:
        return f"{self.name}{self.options}"

    def __call__(self, volume: Volume) -> Volume:
        image = np.array(volume.image, dtype=np.float32, order="C")
        self.change(image)
        return volume.with_(image=image)


@dataclass(frozen=True)
class _Spacing:
    """Stage: as MONAI's `Spacing`, linear: the first voxel stays in place, and the last samples repeat the border."""

    spacing_mm: Spacing

    def describe(self, spec: VolumeSpec) -> StageEffect:
        shape, steps = self._plan(spec.grid, who="the scan")
        new = replace(spec, grid=_stepped(spec.grid, shape, steps), dtype="float32")
        return StageEffect(spec=new, scratch_bytes=2 * max(spec.image_bytes, new.image_bytes))

    def fingerprint(self) -> str:
        return f"Spacing{self.spacing_mm}"

    def __call__(self, volume: Volume) -> Volume:
        shape, steps = self._plan(volume.grid, who=f"case '{volume.case_id}'")
        if steps == (1.0, 1.0, 1.0):
            return volume
        before = volume.grid.shape
        positions = tuple(first_positions(*along_axis) for along_axis in zip(before, shape, steps, strict=True))
        record = {**resize_record(before, shape), "step_voxel": list(steps), "first_stays": True}
        return volume.with_(
            image=interpolate(volume.image, positions),
            grid=_stepped(volume.grid, shape, steps),
            trace=(*volume.trace, record),
        )

    def _plan(self, grid: Grid, *, who: str) -> tuple[Index3, Spacing]:
        steps, shape = [1.0, 1.0, 1.0], list(grid.shape)
        for axis, (old, new) in enumerate(zip(grid.spacing_mm, self.spacing_mm, strict=True)):
            if not (math.isfinite(old) and old > 0.0):
                raise ScanError(f"infer: {who} has the spacing {grid.spacing_mm} mm; fix its header, or leave it out")
            if abs(old - new) > _SAME_SPACING_MM:
                steps[axis] = new / old
                shape[axis] = round((grid.shape[axis] - 1) * old / new + 1)
        if math.prod(shape) > _MAX_VOXELS:
            raise ScanError(
                f"infer: {who} would have {' x '.join(map(str, shape))} voxels at the spacing of the network, "
                f"{self.spacing_mm} mm, more than the supported {_MAX_VOXELS:,}; check the spacing {grid.spacing_mm} "
                "mm in its header, or crop it"
            )
        return (shape[0], shape[1], shape[2]), (steps[0], steps[1], steps[2])


def _stepped(grid: Grid, shape: Index3, steps: Spacing) -> Grid:
    affine = grid.matrix
    affine[:3, :3] *= steps
    return Grid.of(shape, affine)


def _nothing(*without_effect: str) -> Callable[[Component], None]:
    def check(transform: Component) -> None:
        taken = transform.take({"keys": "image"}, without_effect=without_effect)
        check_keys(transform, taken["keys"], "image")

    return check


def _orientation(transform: Component) -> DeterministicStage:
    taken = transform.take({"keys": "image", "axcodes": None}, without_effect=("lazy",))
    check_keys(transform, taken["keys"], "image")
    if taken["axcodes"] != "RAS":
        raise transform.error(f"has the axcodes {taken['axcodes']!r}; only 'RAS' is supported")
    return OrientToRAS()


def _spacing(transform: Component) -> DeterministicStage:
    defaults = {"keys": "image", "pixdim": None, "mode": "bilinear", "padding_mode": "border", "diagonal": False}
    taken = transform.take(defaults, without_effect=("align_corners", "dtype", "lazy", "ensure_same_shape"))
    check_keys(transform, taken["keys"], "image")
    pixdim = taken["pixdim"]
    if not (isinstance(pixdim, list) and [isinstance(n, int | float) and n > 0 for n in pixdim] == [True] * 3):
        raise transform.error(f"has the pixdim {pixdim!r}; only three positive numbers are supported")
    for key, wanted in (("mode", "bilinear"), ("padding_mode", "border"), ("diagonal", False)):
        if taken[key] not in (wanted, [wanted]):
            raise transform.error(f"has {key} {taken[key]!r}; only {wanted!r} is supported")
    x, y, z = map(float, pixdim)
    return _Spacing((x, y, z))


def _foreground(transform: Component) -> DeterministicStage:
    defaults = {"keys": "image", "source_key": "image", "margin": 0, "k_divisible": 1, "select_fn": "positive"}
    # Neither changes a box without margin.
    taken = transform.take(defaults, without_effect=("allow_smaller", "mode", "lazy"))
    check_keys(transform, taken["keys"], "image")
    for key, wanted in defaults.items():
        if key != "keys" and taken[key] != wanted:
            raise transform.error(f"has {key} {taken[key]!r}, which is not supported")
    return CropToNonzero(positive_only=True)


def _scale_range(transform: Component) -> DeterministicStage:
    defaults = {"keys": "image", "a_min": None, "a_max": None, "b_min": None, "b_max": None, "clip": False}
    taken = _numbers(transform, defaults)
    low, high, to_low, to_high = (taken[key] for key in ("a_min", "a_max", "b_min", "b_max"))
    if low is None or high is None or low == high or (to_low is None) != (to_high is None):
        raise transform.error(f"has a_min {low}, a_max {high}, b_min {to_low} and b_max {to_high}, not two ranges")

    def change(image: Float32) -> None:
        image -= np.float32(low)
        image /= np.float32(high - low)
        if to_low is not None:
            image *= np.float32(to_high - to_low)
            image += np.float32(to_low)
            if taken["clip"]:
                np.clip(image, to_low, to_high, out=image)

    return _intensity(transform, taken, change)


def _scale(transform: Component) -> DeterministicStage:
    taken = _numbers(transform, {"keys": "image", "minv": 0.0, "maxv": 1.0, "channel_wise": False})
    to_low, to_high = taken["minv"], taken["maxv"]
    if to_low is None or to_high is None:
        raise transform.error(f"has minv {to_low} and maxv {to_high}; only two numbers are supported")

    def change(image: Float32) -> None:
        for values in image if taken["channel_wise"] else [image]:
            low, high = values.min(), values.max()
            if low == high:
                values *= np.float32(to_low)
                continue
            values -= low
            values /= high - low
            values *= np.float32(to_high - to_low)
            values += np.float32(to_low)

    return _intensity(transform, taken, change)


def _normalize(transform: Component) -> DeterministicStage:
    taken = _numbers(transform, {"keys": "image", "nonzero": False, "channel_wise": False})

    def change(image: Float32) -> None:
        for values in image if taken["channel_wise"] else [image]:
            inside = values != 0 if taken["nonzero"] else np.ones(values.shape, dtype=bool)
            chosen = values[inside]
            if chosen.size:
                values[inside] = (chosen - chosen.mean()) / (chosen.std() or np.float32(1.0))

    return _intensity(transform, taken, change)


def _numbers(transform: Component, defaults: Mapping[str, Any]) -> dict[str, Any]:
    taken = transform.take(defaults, without_effect=("dtype", "allow_missing_keys"))
    check_keys(transform, taken.pop("keys"), "image")
    for key, value in taken.items():
        if not (value is None or isinstance(value, int | float)):
            raise transform.error(f"has {key} {value!r}; only numbers, true and false are supported")
    return taken


def _intensity(transform: Component, taken: Mapping[str, Any], change: Callable[[Float32], None]) -> DeterministicStage:
    return _Intensity(transform.name, tuple(sorted(taken.items())), change)


_STAGES: Mapping[str, Callable[[Component], DeterministicStage | None]] = {
    "LoadImaged": _nothing("image_only", "ensure_channel_first", "dtype", "meta_keys", "meta_key_postfix"),
    "EnsureChannelFirstd": _nothing("channel_dim", "strict_check"),
    "EnsureTyped": _nothing("data_type", "dtype", "device", "wrap_sequence", "track_meta"),
    "Orientationd": _orientation,
    "Spacingd": _spacing,
    "CropForegroundd": _foreground,
    "ScaleIntensityRanged": _scale_range,
    "ScaleIntensityd": _scale,
    "NormalizeIntensityd": _normalize,
}
