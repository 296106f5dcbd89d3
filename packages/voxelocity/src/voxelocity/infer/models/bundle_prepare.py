"""The preprocessing of a MONAI bundle as one stage, made from transforms whose effect is known here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.contracts import DeterministicStage, StageEffect
from voxelocity.core.volume import Volume, VolumeSpec
from voxelocity.data.prepare import CropToNonzero, OrientToRAS, labels_record
from voxelocity.infer.models.bundle_config import Component
from voxelocity.infer.models.bundle_grid import Back, ResampleAsMonai, resampling_last
from voxelocity_observe.core.plain import shortened

# All read the same voxels, and `data.decode` reads them too.
_READERS = ("none", "itkreader", "nibabelreader", "nibabelgpureader", "nrrdreader", "pydicomreader", "pilreader")

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BundlePreparation:
    """Stage: the image in float32 after all stages, its label dropped.

    Attributes:
        stages: in order.
        back: what is brought back to the scan's grid.
        kept_largest: class indices of which only the largest component is brought back, if classes are.
    """

    stages: tuple[DeterministicStage, ...]
    back: Back = "scores"
    kept_largest: tuple[int, ...] = ()

    @property
    def moves_voxels(self) -> bool:
        """Whether a prediction has to be brought back to the scan's grid."""
        return any(not isinstance(stage, _Intensity) for stage in self.stages)

    @property
    def resamples(self) -> bool:
        return any(isinstance(stage, ResampleAsMonai) for stage in self.stages)

    @property
    def crops_resampled(self) -> bool:
        """Whether voxels are cut off after the resampling."""
        kinds = [type(stage) for stage in self.stages]
        return ResampleAsMonai in kinds and CropToNonzero in kinds[kinds.index(ResampleAsMonai) :]

    def bringing_back(self, back: Back, kept_largest: tuple[int, ...], *later: DeterministicStage) -> BundlePreparation:
        """The same, with another way back, and with stages after the others."""
        stages = (replace(stage, back=back) if isinstance(stage, ResampleAsMonai) else stage for stage in self.stages)
        return BundlePreparation((*stages, *later), back, kept_largest)

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
        content += f"{self.back}{self.kept_largest}"
        return f"bundle-v2-{hashlib.blake2b(content.encode(), digest_size=12).hexdigest()}"

    def __call__(self, volume: Volume) -> Volume:
        """The prepared volume.

        Raises:
            ScanError: as `describe`.
        """
        volume = volume.with_(image=volume.intensities(), scaling=(), label=None)
        for stage in self.stages:
            volume = stage(volume)
            volume = volume.with_(trace=tuple(resampling_last(volume.trace, volume.grid.shape)))
        if self.back != "scores":
            volume = volume.with_(trace=(*volume.trace, labels_record(self.kept_largest)))
        return volume.with_(image=np.ascontiguousarray(volume.image, dtype=np.float32))


def preparation_of(transforms: Sequence[Component]) -> BundlePreparation:
    """The stages that these transforms describe.

    Raises:
        InputError: a transform, or one of its arguments, is not known here; or the spacing is changed twice.
    """
    stages: list[DeterministicStage] = []
    for transform in transforms:
        if transform.name not in _STAGES:
            raise transform.error(f"is not among the supported transforms: {', '.join(_STAGES)}")
        stage = _STAGES[transform.name](transform)
        if stage is None:
            continue
        if isinstance(stage, ResampleAsMonai) and any(isinstance(other, ResampleAsMonai) for other in stages):
            raise transform.error("is the second of its kind; only one is supported")
        stages.append(stage)
    takes_zeros_apart = [_takes_zeros_apart(stage) for stage in stages]
    return BundlePreparation(
        tuple(
            replace(stage, is_exact=any(takes_zeros_apart[number:])) if isinstance(stage, ResampleAsMonai) else stage
            for number, stage in enumerate(stages)
        )
    )


def _takes_zeros_apart(stage: DeterministicStage) -> bool:
    """Whether it makes a difference to a stage if a value is 0 or nearly 0."""
    is_of_others = isinstance(stage, _Intensity) and dict(stage.options).get("nonzero")
    return bool(is_of_others) or isinstance(stage, CropToNonzero)


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


def _nothing(*without_effect: str) -> Callable[[Component], None]:
    def check(transform: Component) -> None:
        taken = transform.take({"keys": "image"}, without_effect=without_effect)
        check_keys(transform, taken["keys"], "image")

    return check


def _load(transform: Component) -> None:
    without_effect = ("image_only", "ensure_channel_first", "dtype", "meta_keys", "meta_key_postfix", "simple_keys")
    taken = transform.take({"keys": "image", "reader": None}, without_effect=without_effect)
    check_keys(transform, taken["keys"], "image")
    if str(taken["reader"]).lower() not in _READERS:
        raise transform.error(f"has the reader {shortened(taken['reader'])}; only readers of MONAI are supported")


def _cast(transform: Component) -> None:
    taken = transform.take({"keys": "image", "dtype": "float32"}, without_effect=("allow_missing_keys",))
    check_keys(transform, taken["keys"], "image")
    if taken["dtype"] != "float32":
        raise transform.error(f"has the dtype {shortened(taken['dtype'])}; only float32 is supported")


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
    return ResampleAsMonai((x, y, z))


def _foreground(transform: Component) -> DeterministicStage:
    defaults = {"keys": "image", "source_key": "image", "margin": 0, "k_divisible": 1, "select_fn": "positive"}
    # The mode is that of a box that reaches beyond the scan.
    taken = transform.take({**defaults, "allow_smaller": False}, without_effect=("mode", "lazy"))
    check_keys(transform, taken["keys"], "image")
    margin, is_within = taken["margin"], taken["allow_smaller"] is True
    if isinstance(margin, int) and not isinstance(margin, bool) and margin >= 0 and (is_within or margin == 0):
        defaults["margin"] = margin
    for key, wanted in defaults.items():
        if key != "keys" and taken[key] != wanted:
            raise transform.error(f"has {key} {taken[key]!r}, which is not supported")
    return CropToNonzero(positive_only=True, margin_voxel=margin)


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
    "LoadImaged": _load,
    "EnsureChannelFirstd": _nothing("channel_dim", "strict_check"),
    "EnsureTyped": _nothing("data_type", "dtype", "device", "wrap_sequence", "track_meta"),
    "ToTensord": _nothing("dtype", "device", "wrap_sequence", "track_meta"),
    "CastToTyped": _cast,
    "Orientationd": _orientation,
    "Spacingd": _spacing,
    "CropForegroundd": _foreground,
    # It changes what a user asks VISTA3D for, which is everything here.
    "VistaPreTransformd": _nothing("allow_missing_keys", "special_index", "labels_dict", "subclass"),
    "ScaleIntensityRanged": _scale_range,
    "ScaleIntensityd": _scale,
    "NormalizeIntensityd": _normalize,
}
