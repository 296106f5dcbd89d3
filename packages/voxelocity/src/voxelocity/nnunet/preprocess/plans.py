"""What nnU-Net's plans ask of preprocessed cases, read as data; its own planner makes them where they are missing."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from voxelocity.core.region import Index3
from voxelocity.infer.models.foreign_files import read_json
from voxelocity.infer.models.nnunet_plans import (
    Configuration,
    Plans,
    ResampleLabels,
    inherited_keys,
    normalizations,
    parse_keys,
)
from voxelocity.infer.models.nnunet_prepare import Normalization
from voxelocity.nnunet.preprocess.raw import PREPROCESSED, RAW, RawDataset
from voxelocity.nnunet.preprocess.read import Reader
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.quantities import count_text

CONFIGURATIONS = ("2d", "3d_fullres", "3d_lowres")
"""Those that nnU-Net makes cases for, if nothing else is asked for."""
_PREPROCESS_THERE = "Voxelocity cannot make these cases: preprocess with nnU-Net itself"


class _CaseKeys(Configuration):
    data_identifier: Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]
    resampling_fn_seg: Literal["resample_data_or_seg_to_shape"]
    resampling_fn_seg_kwargs: ResampleLabels


class _CasePlans(Plans):
    image_reader_writer: Reader = "SimpleITKIO"
    dataset_name: str = ""


@dataclass(frozen=True, kw_only=True)
class CasePlan:
    """How cases are made for a configuration.

    Attributes:
        name: of the configuration.
        folder: name of the one that its cases are in.
        reader: which of nnU-Net's readers gives the scans.
        axes: new axis i is axis `axes[i]` of (z, y, x).
        channels: how each is normalized.
        keys: the configuration's own.
    """

    name: str
    folder: str
    reader: Reader
    axes: Index3
    channels: tuple[Normalization, ...]
    keys: Configuration

    @property
    def labels(self) -> ResampleLabels:
        assert isinstance(self.keys, _CaseKeys)
        return self.keys.resampling_fn_seg_kwargs


def read_plans(path: Path, raw: RawDataset, wanted: Sequence[str]) -> list[CasePlan]:
    """The wanted configurations of a plans file; of the default ones, those that it has.

    Raises:
        InputError: the file cannot be read, lacks a configuration that was named, or asks for something that is not
            done here as nnU-Net does it.
    """
    values = read_json(path)
    plans = parse_keys(_CasePlans, values, path, room="nnunet", cure=_PREPROCESS_THERE)
    if plans.dataset_name not in ("", raw.name):
        raise InputError(
            f"nnunet: {path} is of {plans.dataset_name}, on whose cases nnU-Net would train; plan {raw.name} again "
            "with --clean, or take the plans over with nnUNetv2_move_plans_between_datasets"
        )
    names = wanted or [name for name in CONFIGURATIONS if name in plans.configurations]
    if not names:
        raise InputError(f"nnunet: {path} has none of {', '.join(CONFIGURATIONS)}; name one of its own with -c")
    return [_case_plan(plans, name, raw, path) for name in names]


def _case_plan(plans: _CasePlans, name: str, raw: RawDataset, path: Path) -> CasePlan:
    where = f"{path}: {name}"
    if name not in plans.configurations:
        known = ", ".join(plans.configurations)
        raise InputError(f"nnunet: {path} has no configuration {name!r}; choose with -c among {known}")
    values = inherited_keys(plans, name, where, room="nnunet")
    keys = parse_keys(_CaseKeys, values, where, room="nnunet", cure=_PREPROCESS_THERE)
    if len(keys.normalization_schemes) != len(raw.channels):
        raise InputError(
            f"nnunet: {where} is for {count_text(len(keys.normalization_schemes), 'channel')}, and {raw.name} has "
            f"{len(raw.channels)}; plan it again with --clean"
        )
    return CasePlan(
        name=name,
        folder=keys.data_identifier,
        reader=plans.image_reader_writer,
        axes=plans.transpose_forward,
        channels=normalizations(plans, keys, len(raw.channels), where, room="nnunet"),
        keys=keys,
    )


def make_plans(raw: RawDataset, preprocessed: Path, *, planner: str, name: str) -> str:
    """Lets nnU-Net's own planner write a plans file for a data set with a fingerprint; returns what it printed.

    Args:
        raw: the data set.
        preprocessed: nnU-Net's folder of preprocessed data sets.
        planner: name of a class of nnU-Net.
        name: of the plans; "" for the planner's own.

    Raises:
        ConfigError: nnU-Net is not installed, has no such planner, or knows other folders.
    """
    if importlib.util.find_spec("nnunetv2") is None:
        raise ConfigError(
            f"nnunet: {preprocessed / raw.name} has no plans, which nnU-Net's own planner makes, and nnunetv2 is not "
            "installed in this Python; install Voxelocity where nnU-Net is, or copy the plans of "
            "nnUNetv2_plan_experiment there"
        )
    for variable, folder in ((RAW, raw.folder.parent), (PREPROCESSED, preprocessed)):
        if not os.environ.get(variable) or not os.path.samefile(os.environ[variable], folder):
            raise ConfigError(
                f"nnunet: nnU-Net's planner reads the folder that {variable} names, which is "
                f"{os.environ.get(variable) or 'not set'}; export {variable}={folder}"
            )
    from nnunetv2.experiment_planning import plan_and_preprocess_api as api

    said = io.StringIO()
    options: dict[str, Any] = {"overwrite_plans_name": name} if name else {}
    with contextlib.redirect_stdout(said):
        try:
            # Planners also take a name.
            ids: list[Any] = [raw.name]
            api.plan_experiments(ids, experiment_planner_class_name=planner, **options)
        # Of a name that no class has, nnU-Net makes None.
        except TypeError as error:
            if "NoneType" not in str(error):
                raise
            raise ConfigError(f"nnunet: nnU-Net has no planner {planner!r}; name one with --planner") from None
    return said.getvalue()
