"""What the story asks for and what came out, as plain records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voxelocity.report import LabeledRun
from voxelocity_lab.bench.race.scenario import PHANTOM_KEYS
from voxelocity_lab.recipes.demo.film import Film
from voxelocity_lab.recipes.demo.parts import Spent
from voxelocity_observe.diagnose.result import Diagnosis

PLAIN, CHANGED, FAST, OURS = "plain script", "one import line changed", "MONAI's fast recipe", "voxelocity train"
IMPORT_BEFORE = "from monai.data import DataLoader, Dataset"
IMPORT_AFTER = "from voxelocity.monai import CacheDataset as Dataset, DataLoader"


@dataclass(frozen=True, kw_only=True)
class StorySettings:
    """How much of everything; the defaults take about two minutes on two idle cores.

    Attributes:
        seed: of phantoms and trainings.
        side_s: wall seconds of each script, and half of those of `voxelocity train`, start included.
        target_dice: mean foreground Dice of the held-out cases at which any side stops.
        num_cases: phantoms; a quarter is held out.
        scale: of the phantoms' grid.
        keys: of the plan that all sides train.
    """

    seed: int = 0
    side_s: float = 20.0
    target_dice: float = 0.88
    num_cases: int = 16
    # About 6 million voxels a case: a quarter of a usual abdominal CT, but made in seconds.
    scale: float = 1.25
    keys: Mapping[str, Any] = field(default_factory=lambda: PHANTOM_KEYS)


@dataclass(frozen=True, kw_only=True)
class Story:
    """All that came out.

    Attributes:
        settings: what was asked for.
        out: folder of all files.
        sides: the plain script, one import line changed, MONAI's fast recipe, `voxelocity train`.
        commands: of each side, as a reader types it.
        diagnosis: of the plain script.
        film: predictions of one case over our training.
        spent: each part's seconds.
        num_cpus: cores that this process may use.
        load: other programs' load of the machine before the first part; None where it is not known.
    """

    settings: StorySettings
    out: Path
    sides: tuple[LabeledRun, ...]
    commands: tuple[str, ...]
    diagnosis: Diagnosis
    film: Film
    spent: tuple[Spent, ...]
    num_cpus: int
    load: float | None
