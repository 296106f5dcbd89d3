"""The request of `nnunet preprocess`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from voxelocity_observe.core.request import Option, UserRequest


@dataclass(frozen=True, kw_only=True)
class PreprocessRequest(UserRequest):
    """What `voxelocity nnunet preprocess` takes."""

    dataset: str
    """Folder of a raw data set, its name in nnUNet_raw, or its number."""
    configurations: Annotated[tuple[str, ...], Option(flags=("-c", "--configuration"))] = ()
    """Make the cases of this configuration; give it again for several.

    By default 2d, 3d_fullres and 3d_lowres, as far as the plans have them.
    """
    plans: Annotated[str, Option(flags=("-p", "--plans"))] = "nnUNetPlans"
    """Name of the plans in nnUNet_preprocessed; nnU-Net's planner makes them if they are missing."""
    planner: Annotated[str, Option()] = "ExperimentPlanner"
    """The planner of nnU-Net that makes missing plans."""
    clean: Annotated[bool, Option()] = False
    """Take the fingerprint and plan again, though both are there."""
    overwrite: Annotated[bool, Option()] = False
    """Make cases again that are there already."""
    verify: Annotated[int, Option(least=0)] = 0
    """Make this many cases with nnU-Net too, and print the largest differences."""
    threads: Annotated[int, Option(least=0)] = 0
    """Cases made at once, if memory allows; 0 takes all cores."""

    def _check(self) -> None:
        self.check_number("verify", "give a whole number from 0", is_whole=True)
        self.check_number("threads", "give a whole number from 0", is_whole=True)
