"""Two ways to judge a network: quickly on prepared volumes while training, and at the end on each scan's own grid."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from voxelocity.core.records import CaseScore
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.pipeline import PreparedCases
from voxelocity.infer import ClassIndices, ModelSpec, Predictor
from voxelocity.metrics import DiceCounts, case_score, summarize

NUM_REHEARSED = 3
"""Cases that `rehearse` scores: the first, the middle and the last one."""


def validate_prepared(
    network: torch.nn.Module, prepared: PreparedCases, spec: ModelSpec, *, device: torch.device
) -> tuple[float, dict[str, float]]:
    """Mean foreground Dice and Dice per class over the cases, on the prepared grid, mirrored as in `score_cases`.

    A class that is in no case, neither in truth nor in prediction, has NaN and counts in no mean.

    Quicker than that and a little different from it: for curves, targets and "best", not for publication.
    """
    was_training = network.training
    predictor = Predictor(network, spec, device=device)
    names = spec.class_names[1:]
    scores: list[CaseScore] = []
    volumes = (prepared[index].load() for index in range(len(prepared)))
    for volume, prediction in predictor.predict_prepared(volumes):
        assert volume.label is not None, "validation cases have labels"
        counts = DiceCounts(num_classes=len(spec.labels))
        counts.add(prediction, torch.from_numpy(np.array(volume.label)).to(device))
        dice = dict(zip(names, counts.dice()[1:], strict=True))
        scores.append(CaseScore(case_id=volume.case_id, dice=dice))
    network.train(was_training)
    summary = summarize(scores)
    return _or_nan(summary.mean_dice), {name: _or_nan(dice) for name, dice in summary.dice.items()}


def score_cases(
    predictor: Predictor, refs: Sequence[VolumeRef], spec: ModelSpec, *, num_threads: int
) -> Iterator[tuple[CaseScore, Volume, ClassIndices]]:
    """Dice and surface distance of each case on the scan's own grid, against the label file itself.

    Yields:
        The score, the scan as decoded, and the predicted class indices (x, y, z).
    """
    for scan, prediction in predictor.stream(refs, num_threads=num_threads):
        assert scan.label is not None, "validation cases have labels"
        score = case_score(
            scan.case_id, prediction, scan.label, class_names=spec.class_names, spacing_mm=scan.grid.spacing_mm
        )
        yield score, scan, prediction


def rehearse(predictor: Predictor, refs: Sequence[VolumeRef], spec: ModelSpec, *, num_threads: int) -> float:
    """Seconds that scoring all cases is expected to take, from scoring `NUM_REHEARSED` of them now."""
    chosen = [refs[i] for i in sorted({0, len(refs) // 2, len(refs) - 1})]
    # The first call pays for kernels and buffers that the others find ready.
    for _ in score_cases(predictor, chosen[:1], spec, num_threads=0):
        pass
    start = time.perf_counter()
    for _ in score_cases(predictor, chosen, spec, num_threads=num_threads):
        pass
    return (time.perf_counter() - start) / len(chosen) * len(refs)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
