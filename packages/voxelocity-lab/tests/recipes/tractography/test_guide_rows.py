from __future__ import annotations

import torch

from voxelocity_lab.bench.comparison import Comparison, Figure
from voxelocity_lab.recipes.tractography.guide_rows import OURS, PLAIN, guide_rows, largest_batch

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def _comparison(title: str, **medians: float) -> Comparison:
    figures = tuple(Figure(name=name, note="", values=(value,)) for name, value in medians.items())
    return Comparison(title=title, unit="s", better="smaller", figures=figures)


def test_four_rows_come_from_the_comparisons() -> None:
    training = _comparison("Training", **{OURS: 500.0, f"{PLAIN} of 8": 100.0, "one": 1.0})
    sampling = _comparison("Sampling", **{OURS: 2.0, "250 steps": 30.0})

    rows = guide_rows({OURS: lambda *_: 1.0, PLAIN: lambda *_: 1.0}, (training, sampling), 8, 1000, CPU)

    assert rows["epoch_s"] == {OURS: 2.0, PLAIN: 10.0}
    assert rows["streamline_ms"] == {OURS: 2.0, PLAIN: 30.0}
    assert rows["largest_batch"] == {OURS: None, PLAIN: None}
    assert all(share is None or 0.0 <= share <= 1.0 for share in rows["device_use"].values())


def test_the_largest_batch_is_the_last_that_fits() -> None:
    tried = []

    def train(batch_size: int, num_steps: int) -> float:
        tried.append((batch_size, num_steps))
        if batch_size > 300:
            raise torch.OutOfMemoryError
        return 1.0

    assert largest_batch(train, 64, 100_000, GPU) == 256
    assert tried == [(64, 1), (128, 1), (256, 1), (512, 1)]


def test_streamlines_limit_the_search() -> None:
    assert largest_batch(lambda *_: 1.0, 64, 1000, GPU) == 128


def test_no_batch_may_fit() -> None:
    def train(batch_size: int, num_steps: int) -> float:
        raise torch.OutOfMemoryError

    assert largest_batch(train, 64, 1000, GPU) is None
