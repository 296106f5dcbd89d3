"""Some cases made by nnU-Net's own preprocessor too, and how the stored ones differ from these."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity.infer.models.foreign_files import read_json
from voxelocity.infer.models.nnunet_plans import DATASET
from voxelocity.nnunet.preprocess.plans import CasePlan
from voxelocity.nnunet.preprocess.raw import RawDataset
from voxelocity.nnunet.preprocess.store import ENDINGS, need_blosc2
from voxelocity_observe.core.errors import ConfigError, InputError


@dataclass(frozen=True, kw_only=True)
class CaseDifference:
    """How a stored case differs from nnU-Net's.

    Attributes:
        configuration: of the case.
        case_id: its name.
        num_voxels: of its image, over all channels.
        intensity: the largest difference of a voxel; NaN if the shapes differ.
        num_other: voxels of the image that are not equal in all bits.
        num_labels: voxels of the label that differ.
        notes: the notes of the case that differ.
    """

    configuration: str
    case_id: str
    num_voxels: int
    intensity: float
    num_other: int
    num_labels: int
    notes: tuple[str, ...]

    def in_words(self) -> str:
        """One line."""
        notes = f"; other properties: {', '.join(self.notes)}" if self.notes else "; the same properties"
        return (
            f"{self.configuration}, {self.case_id}: intensities differ by at most {self.intensity:.2g} "
            f"({self.num_other:,} of {self.num_voxels:,} voxels), {self.num_labels:,} labels differ{notes}"
        )


def verify_cases(
    raw: RawDataset, folder: Path, plans_name: str, plans: Sequence[CasePlan], *, num: int
) -> list[CaseDifference]:
    """How the stored cases differ from those that nnU-Net's preprocessor makes now, one after the other.

    Args:
        raw: the data set.
        folder: of its preprocessed cases.
        plans_name: name of the file in it.
        plans: the configurations.
        num: cases of each, evenly chosen.

    Raises:
        ConfigError: nnU-Net is not installed.
    """
    if importlib.util.find_spec("nnunetv2") is None:
        raise ConfigError(
            "nnunet: --verify makes cases with nnU-Net, and nnunetv2 is not installed in this Python; leave it out, or "
            "install Voxelocity where nnU-Net is"
        )
    from nnunetv2.preprocessing.preprocessors.default_preprocessor import DefaultPreprocessor
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    manager, description = PlansManager(str(folder / plans_name)), read_json(folder / DATASET)
    num = min(num, len(raw.refs))
    found = []
    for ref in (raw.refs[number * len(raw.refs) // num] for number in range(num)):
        for plan in plans:
            theirs = DefaultPreprocessor(verbose=False).run_case(
                [str(path) for path in ref.images],
                str(ref.label),
                manager,
                manager.get_configuration(plan.name),
                description,
            )
            found.append(_compare(plan, ref.case_id, folder / plan.folder, theirs))
    return found


def _compare(plan: CasePlan, case_id: str, folder: Path, theirs: tuple[Any, Any, Any]) -> CaseDifference:
    image, label, notes = (_read(folder / f"{case_id}{ending}") for ending in ENDINGS)
    is_same_shape = image.shape == theirs[0].shape and label.shape == theirs[1].shape
    difference = np.abs(image - theirs[0]) if is_same_shape else np.full(1, np.nan)
    return CaseDifference(
        configuration=plan.name,
        case_id=case_id,
        num_voxels=int(image.size),
        intensity=float(difference.max()),
        num_other=int(np.count_nonzero(difference)),
        num_labels=int(np.count_nonzero(label != theirs[1])) if is_same_shape else int(label.size),
        notes=tuple(sorted(_other_notes(notes, theirs[2]))),
    )


def _other_notes(ours: dict[str, Any], theirs: dict[str, Any]) -> set[str]:
    return {key for key in ours.keys() | theirs.keys() if not _is_equal(ours.get(key), theirs.get(key))}


def _is_equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(_is_equal(ours[key], theirs[key]) for key in ours)
    return np.array_equal(ours, theirs)


class _Notes(pickle.Unpickler):
    """Reads numbers, texts, arrays and containers of these; anything else could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in (
            "_reconstruct",
            "_frombuffer",
            "ndarray",
            "dtype",
            "scalar",
        ):
            return super().find_class(module, name)
        raise InputError(
            f"nnunet: the properties of a case contain {module}.{name}, which may run code; preprocess the cases again"
        )


def _read(path: Path) -> Any:
    if path.suffix == ENDINGS[0]:
        return need_blosc2().open(urlpath=str(path), mode="r")[:]
    with path.open("rb") as file:
        return _Notes(file).load()
