"""The request of `evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypedDict

from voxelocity_observe.core.request import Option, UserRequest


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(UserRequest):
    """What `voxelocity.evaluate` and `voxelocity evaluate` take."""

    CALL: ClassVar[str] = "vx.evaluate"

    predictions: tuple[Path, ...]
    """A folder of them, or several, such as one per fold.

    CASE.nii.gz holds the class values of CASE, CASE.dcm its structures by name (DICOM SEG or RTSTRUCT).
    """
    truth: Path
    """A folder of label files of the same names, or a data set, as `voxelocity.open` takes it."""
    labels: Annotated[Path | None, Option(flags=("--labels", "--run"))] = None
    """What the values mean: a finished run, a dataset.json, or a JSON file of values and names.

    If it is not given, the data set says so, or the `dataset.json` next to the folder of labels; else each value or
    name found is a class.
    """
    tolerance_mm: Annotated[float | Literal["auto"], Option(flags=("--tolerance",))] = "auto"
    """Of the normalized surface distance, in mm; 3 as in TotalSegmentator."""

    def _check(self) -> None:
        if not self.predictions:
            raise self.refusal("no folder of predictions was given; name at least one, and the truth", "predictions")
        if self.tolerance_mm != "auto":
            self.check_number("tolerance_mm", "give a number of mm from 0")


class EvaluateOptions(TypedDict, total=False):
    """The fields of `EvaluateRequest` as keywords."""

    labels: Path | str | None
    tolerance: float
    tolerance_mm: float | Literal["auto"]
