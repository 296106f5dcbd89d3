"""Predictions of one held-out case by the weights that a run had on its way, cut alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from voxelocity.core.volume import VolumeRef
from voxelocity.infer import Predictor, load_model
from voxelocity.metrics import case_score
from voxelocity.report import RunFacts, cut_slices
from voxelocity.report.records import CheckpointRecord, SliceFigure
from voxelocity_observe.core.quantities import count_text, dice_text, duration_text

NUM_FRAMES = 6


@dataclass(frozen=True, kw_only=True)
class Film:
    """A case as it was predicted over a run.

    Attributes:
        case_id: of the case.
        class_names: by class index.
        frames: slices at each time, in order, with their titles.
        dice: mean foreground Dice of each frame.
    """

    case_id: str
    class_names: tuple[str, ...]
    frames: tuple[SliceFigure, ...]
    dice: tuple[float | None, ...]


def make_film(run: RunFacts, ref: VolumeRef) -> Film:
    """The film of a case, from the checkpoints of a finished run. About a second of a core each frame."""
    network, spec = load_model(run.folder)
    frames, scores = list[SliceFigure](), list[float | None]()
    for record in chosen(run.checkpoints, run.folder):
        state = torch.load(run.folder / record.path, map_location="cpu", weights_only=True)["training"]
        network.load_state_dict(_weights(state))
        predictor = Predictor(network.eval(), spec, spec.preparation(), device=torch.device("cpu"))
        ((scan, prediction, *_),) = predictor.stream([ref], num_threads=1)
        assert scan.label is not None, "held-out cases have labels"
        score = case_score(
            ref.case_id,
            prediction,
            scan.label,
            class_names=spec.class_names,
            steps_mm=scan.grid.steps_mm,
            tolerance_mm=None,
        )
        when = f"after {duration_text(record.time_s)}, {count_text(record.step, 'step')}"
        title = f"{when}: Dice {dice_text(score.mean_dice)}"
        stacks = cut_slices(scan, prediction, truth=scan.label, through=scan.label > 0, num_slices=1)
        frames.append(SliceFigure(title=title, stacks=stacks))
        scores.append(score.mean_dice)
    return Film(case_id=ref.case_id, class_names=tuple(spec.class_names), frames=tuple(frames), dice=tuple(scores))


def chosen(records: Sequence[CheckpointRecord], folder: Path) -> list[CheckpointRecord]:
    """At most `NUM_FRAMES` checkpoints that are still there: the first, the last, and some evenly between them."""
    kept = [record for record in records if record.step and (folder / record.path).exists()]
    if not kept:
        return []
    places = np.linspace(0, len(kept) - 1, min(NUM_FRAMES, len(kept))).round().astype(int)
    return [kept[place] for place in places]


def _weights(state: dict[str, dict[str, torch.Tensor] | None]) -> dict[str, torch.Tensor]:
    """The running average of the weights, which validations are made with, or the weights themselves."""
    average = state["average"]
    if average is None:
        assert state["network"] is not None
        return state["network"]
    return {name.removeprefix("module."): tensor for name, tensor in average.items() if name != "n_averaged"}
