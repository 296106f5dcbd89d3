"""Two ways to judge a network: quickly on prepared volumes while training, and at the end on each scan's own grid."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from voxelocity.core.records import CaseScore
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.pipeline import PreparedCases
from voxelocity.infer import ClassIndices, ModelSpec, Predictor
from voxelocity.metrics import DiceCounts, case_score

NUM_REHEARSED = 3
"""Cases that `rehearse` scores: the first, the middle and the last one."""


def validate_prepared(
    network: torch.nn.Module, prepared: PreparedCases, spec: ModelSpec, *, device: torch.device
) -> tuple[float, dict[str, float]]:
    """Mean foreground Dice and Dice per class over the cases, on the prepared grid, mirrored as in `score_cases`.

    Quicker than that and a little different from it: for curves, targets and "best", not for publication.
    """
    was_training = network.training
    predictor = Predictor(network, spec, device=device)
    names = spec.class_names[1:]
    totals = np.zeros(len(names))
    volumes = (prepared[index].load() for index in range(len(prepared)))
    for volume, prediction in predictor.predict_prepared(volumes):
        assert volume.label is not None, "validation cases have labels"
        counts = DiceCounts(num_classes=len(spec.labels))
        counts.add(prediction, torch.from_numpy(np.array(volume.label)).to(device))
        totals += np.asarray(counts.dice())[1:]
    network.train(was_training)
    per_class = totals / len(prepared)
    return float(per_class.mean()), dict(zip(names, per_class.tolist(), strict=True))


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
