"""nnU-Net's plans and `dataset.json`, read as data: the keys that predictions and preprocessed cases depend on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, ConfigDict, Field

from voxelocity.core.config import Config
from voxelocity.core.region import Index3
from voxelocity.infer.models.nnunet_prepare import Normalization, Scheme
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.plain import shortened

DATASET = "dataset.json"
PREDICT_THERE = "Voxelocity cannot run this model: predict with nnU-Net itself"
Length = Annotated[float, Field(gt=0.0)]
_Keys = TypeVar("_Keys", bound=Config)


class KnownKeys(Config):
    """Keys of nnU-Net's files that something here depends on; others are left out."""

    model_config = ConfigDict(extra="ignore")


class Plans(KnownKeys):
    """What holds for all configurations."""

    image_reader_writer: Literal["SimpleITKIO", "NibabelIO", "NibabelIOWithReorient", "SimpleITKIOWithReorient"] = (
        "SimpleITKIO"
    )
    transpose_forward: Index3
    configurations: dict[str, dict[str, Any]]
    label_manager: Literal["LabelManager"] = "LabelManager"
    foreground_intensities: dict[str, dict[str, float]] = Field(
        default={},
        validation_alias=AliasChoices(
            "foreground_intensity_properties_per_channel", "foreground_intensity_properties_by_modality"
        ),
    )


class ResampleImage(KnownKeys):
    """Arguments of nnU-Net's function for images."""

    order: Annotated[int, Field(ge=0, le=5)] = 3
    order_z: Annotated[int, Field(ge=0, le=5)] = 0
    force_separate_z: bool | None = False


class ResampleLabels(KnownKeys):
    """Arguments of nnU-Net's function for labels."""

    is_seg: Literal[True]
    order: Literal[1] = 1
    order_z: Literal[0] = 0
    force_separate_z: bool | None = False


class Configuration(KnownKeys):
    """How cases are prepared for one network, 3-D or 2-D."""

    preprocessor_name: Literal["DefaultPreprocessor"] = "DefaultPreprocessor"
    patch_size: Annotated[tuple[int, ...], Field(min_length=2, max_length=3)]
    spacing: Annotated[tuple[Length, ...], Field(min_length=2, max_length=3)]
    normalization_schemes: tuple[Scheme, ...]
    use_mask_for_norm: tuple[bool, ...]
    resampling_fn_data: Literal["resample_data_or_seg_to_shape"]
    resampling_fn_data_kwargs: ResampleImage


class DatasetKeys(KnownKeys):
    """`dataset.json`."""

    channels: dict[str, Any] = Field(validation_alias=AliasChoices("channel_names", "modality"))
    labels: dict[str, int | tuple[int, ...]]
    regions_class_order: tuple[int, ...] = ()


def parse_keys(
    kind: type[_Keys], values: Mapping[str, Any], where: Path | str, *, room: str = "infer", cure: str = PREDICT_THERE
) -> _Keys:
    """The known keys among those of a file.

    Args:
        kind: which.
        values: of the file.
        where: it is, for messages.
        room: with which messages begin.
        cure: what to do if a value is one that is not supported here.

    Raises:
        InputError: a key is missing or has another value than those that are known here.
    """
    try:
        return kind.parse(values, where=str(where))
    except ConfigError as error:
        raise InputError(f"{room}: {error}; {cure}") from None


def inherited_keys(plans: Plans, name: str, where: str, *, room: str = "infer") -> dict[str, Any]:
    """The keys of a configuration with those that it inherits.

    Raises:
        InputError: it is missing or inherits from itself.
    """
    values: dict[str, Any] = {}
    left: Any = name
    seen = set[str]()
    while left:
        if not isinstance(left, str) or left in seen or left not in plans.configurations:
            raise damaged(where, f": the configuration {shortened(left)} is missing or inherits from itself", room=room)
        seen.add(left)
        values = {**plans.configurations[left], **values}
        left = plans.configurations[left].get("inherits_from", "")
    return values


def normalizations(
    plans: Plans, configuration: Configuration, num_channels: int, where: str, *, room: str = "infer"
) -> tuple[Normalization, ...]:
    """How each channel is normalized.

    Raises:
        InputError: the configuration has another number of channels, or the plans lack their intensities or axes.
    """
    schemes, masks = configuration.normalization_schemes, configuration.use_mask_for_norm
    if not len(schemes) == len(masks) == num_channels or sorted(plans.transpose_forward) != [0, 1, 2]:
        raise damaged(
            where,
            f" has {len(schemes)} normalization_schemes and {len(masks)} use_mask_for_norm for {num_channels} "
            f"channels, and the axes {plans.transpose_forward}",
            room=room,
        )
    return tuple(
        _normalization(plans, index, scheme, is_masked, where, room)
        for index, (scheme, is_masked) in enumerate(zip(schemes, masks, strict=True))
    )


def damaged(where: Path | str, why: str, *, room: str = "infer") -> InputError:
    """The error for a file that contradicts itself."""
    return InputError(f"{room}: {where}{why}; copy the file again")


def _normalization(plans: Plans, index: int, scheme: Scheme, is_masked: bool, where: str, room: str) -> Normalization:
    if scheme != "CTNormalization":
        return Normalization(scheme=scheme, inside_only=is_masked)
    facts = plans.foreground_intensities.get(str(index), {})
    try:
        low, high, mean, std = (facts[key] for key in ("percentile_00_5", "percentile_99_5", "mean", "std"))
    except KeyError as error:
        raise damaged(where, f": the intensities of channel {index} lack {error}", room=room) from None
    return Normalization(scheme=scheme, low=low, high=high, mean=mean, std=std)
