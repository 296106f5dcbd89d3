"""Dice of what a side of a race has learned, found alike for all: from its weights, or from its predictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from voxelocity.core.records import CaseScore
from voxelocity.data.decode import read_case
from voxelocity.infer import SPEC_NAME, Predictor, load_model
from voxelocity.infer.switches import switches_of
from voxelocity.metrics import case_score
from voxelocity.planning import Planned, model_spec
from voxelocity.step import build_network
from voxelocity.training.scoring import score_cases


def judge(planned: Planned, weights: Path) -> tuple[CaseScore, ...]:
    """Dice of every held-out case on the scan's own grid, alike for all sides, with the windows of the plan.

    Args:
        planned: whose network the weights are for; MONAI's class of that name has the same.
        weights: a folder of `voxelocity train`, a file with the state of a module, or a folder of predictions.
    """
    holds_predictions = weights.is_dir() and not (weights / SPEC_NAME).exists()
    return tuple(_of_predictions(planned, weights) if holds_predictions else _of_weights(planned, weights))


def _of_predictions(planned: Planned, folder: Path) -> Iterator[CaseScore]:
    """Scores of label files that are named by the place of their case among the held-out ones."""
    cases = planned.cases
    for number, ref in enumerate(cases.split(planned.fold).validation):
        (path,) = folder.glob(f"{number:03d}.nii*")
        both = read_case(replace(ref, images=(path,)), label_values=cases.label_values)
        assert both.label is not None, "held-out cases have labels"
        yield case_score(
            ref.case_id,
            both.image[0].astype(both.label.dtype),
            both.label,
            class_names=cases.class_names,
            steps_mm=both.grid.steps_mm,
            tolerance_mm=None,
        )


def _of_weights(planned: Planned, weights: Path) -> Iterator[CaseScore]:
    spec = model_spec(planned)
    if weights.is_dir():
        network, _ = load_model(weights, factory=spec.network.factory)
    else:
        network = build_network(spec.network, num_channels=len(spec.channels), num_classes=spec.num_outputs, seed=0)
        state = torch.load(weights, map_location="cpu", weights_only=True)
        # MONAI's DynUNet registers its blocks twice.
        network.load_state_dict({name: state[name] for name in network.state_dict()})
    machine = planned.machine
    predictor = Predictor(network.eval(), spec, spec.preparation(), device=machine.torch_device)
    held_out = planned.cases.split(planned.fold).validation
    with switches_of(spec, [machine.torch_device]):
        scores = score_cases(predictor, held_out, spec, num_threads=machine.num_cpus, may_measure_surface=lambda: False)
        yield from (score for score, _, _ in scores)
