"""How much windows overlap, by the variables of the functions that cut them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.judging import diagnose
from voxelocity_observe.diagnose.recorder.networks import windows_around

WINDOW = (4, 1, 16, 16, 8)


class GridSampler:
    patch_overlap = np.array([8, 8, 4])


class Predictor:
    tile_step_size = 0.25

    def ask(self) -> float:
        return asked()


def asked() -> float:
    found = windows_around(sys._getframe(1), WINDOW)
    return 0.0 if found is None else found.overlap


def by_overlap(overlap: Any) -> float:
    return asked()


def by_stride(stride: Any) -> float:
    return asked()


def by_grid(sampler: Any) -> float:
    return asked()


@pytest.mark.parametrize(
    ("overlap", "ask"),
    [
        (0.75, lambda: by_overlap(0.75)),
        (0.5, lambda: by_overlap((0.5, 0.25, 0.5))),
        (0.0, lambda: by_overlap("some text")),
        (0.0, lambda: by_overlap(8)),
        (0.75, lambda: by_stride((8, 8, 2))),
        (0.5, lambda: by_stride(8)),
        (0.0, lambda: by_stride(64)),
        (0.5, lambda: by_grid(GridSampler())),
        (0.75, lambda: Predictor().ask()),
        (0.0, lambda: asked()),
    ],
)
def test_the_overlap_is_read_from_the_variables_that_people_and_libraries_use(
    overlap: float, ask: Callable[[], float]
) -> None:
    assert ask() == overlap


def test_a_program_that_only_predicts_is_told_that_its_windows_overlap(recorded: Callable[..., Facts]) -> None:
    net = nn.Conv1d(1, 2, 3).eval()

    def predict(scan: torch.Tensor, roi: int, overlap: float) -> None:
        step = int(roi * (1 - overlap))
        for start in range(0, scan.shape[-1] - roi + 1, step):
            net(scan[..., start : start + roi])

    def program() -> None:
        with torch.inference_mode():
            for _ in range(20):
                predict(torch.zeros(1, 1, 4000), roi=400, overlap=0.75)

    facts = recorded(program)
    assert facts.passes[-1].overlap == 0.75
    assert facts.passes[-1].windows_line == "net(scan[..., start : start + roi])"
    assert list(facts.passes[-1].volume) == [4000]
    diagnosis = diagnose(facts)
    (found,) = [finding for finding in diagnosis.causes if finding.code == "VX406"]
    assert found.cause.startswith("Predicting takes ")
    # 37 windows in steps of 100 voxels, 19 in steps of 200.
    assert found.saves_s == pytest.approx(found.of_s * (1 - 19 / 37), rel=0.02)
    assert "windows overlap more than they need" in diagnosis.verdict
    assert diagnosis.verdict.startswith("No training step was seen; the network only predicted, for ")
