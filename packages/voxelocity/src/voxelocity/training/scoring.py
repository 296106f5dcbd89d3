"""Scores of a network: quick ones on prepared volumes while training, and those on each scan's own grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from voxelocity.core.batch import label_tensor
from voxelocity.core.records import CaseScore
from voxelocity.core.volume import ClassIndices, Volume, VolumeRef
from voxelocity.data.pipeline import PreparedCases
from voxelocity.infer import ModelSpec, Predictor
from voxelocity.infer.resident import HeldOutVolume, Residents
from voxelocity.metrics import NSD_TOLERANCE_MM, DiceCounts, case_score, summarize


def score_prepared(
    network: torch.nn.Module,
    prepared: PreparedCases,
    spec: ModelSpec,
    *,
    device: torch.device,
    on_windows: Callable[[], None] | None = None,
    residents: Residents | None = None,
) -> list[CaseScore]:
    """Dice of each case on the prepared grid, with windows mirrored as in `score_cases`.

    Quicker than `score_cases`, with slightly different results: for curves, targets and "best", not for publication.

    Args:
        network: keeps its mode (training or evaluation).
        prepared: the cases.
        spec: what the network expects.
        device: where it runs.
        on_windows: called before each forward pass; what it raises ends the validation.
        residents: where cases stay between validations.
    """
    was_training = network.training
    predictor = Predictor(network, spec, spec.preparation(), device=device, on_windows=on_windows)
    scored = spec.scored

    def volume_of(index: int) -> Volume | HeldOutVolume:
        load = prepared[index].load
        return load() if residents is None else residents.volume(prepared.refs[index].case_id, load)

    volumes = map(volume_of, range(len(prepared)))
    counted: list[tuple[str, DiceCounts]] = []
    for volume, prediction in predictor.predict_prepared(volumes):
        label = volume.label
        assert label is not None, "validation cases have labels"
        truth = label if isinstance(label, torch.Tensor) else label_tensor(label).to(device)
        counts = DiceCounts(num_classes=len(spec.labels), ignored=spec.ignored is not None)
        counts.add(prediction, truth)
        counted.append((volume.case_id, counts))
    # Read only now, because reading waits for the device.
    scores = [
        CaseScore(case_id=case_id, dice=dict(zip(scored, counts.dice_of([*scored.values()]), strict=True)))
        for case_id, counts in counted
    ]
    network.train(was_training)
    return scores


def mean_dice(scores: Sequence[CaseScore]) -> tuple[float, dict[str, float]]:
    """Mean foreground Dice and Dice per class over the cases.

    A class that is in no case, neither in truth nor in prediction, has NaN and is left out of the mean.
    """
    summary = summarize(scores)
    dice = {name: math.nan if value is None else value for name, value in summary.dice.items()}
    return math.nan if summary.mean_dice is None else summary.mean_dice, dice


def score_cases(
    predictor: Predictor,
    refs: Sequence[VolumeRef],
    spec: ModelSpec,
    *,
    num_threads: int,
    may_measure_surface: Callable[[], bool] = lambda: True,
) -> Iterator[tuple[CaseScore, Volume, ClassIndices]]:
    """Dice and surface distance of each case on the scan's own grid, against the label file itself.

    Args:
        predictor: of the trained network.
        refs: the cases.
        spec: what the network expects.
        num_threads: that load cases.
        may_measure_surface: called after each prediction; if it returns False, the score has no surface distances.

    Yields:
        The score, the scan as decoded, and the predicted class indices (x, y, z).
    """
    for scan, prediction, *_ in predictor.stream(refs, num_threads=num_threads):
        assert scan.label is not None, "validation cases have labels"
        score = case_score(
            scan.case_id,
            prediction,
            scan.label,
            class_names=spec.class_names,
            steps_mm=scan.grid.steps_mm,
            regions=spec.regions,
            ignored=spec.ignored,
            tolerance_mm=NSD_TOLERANCE_MM if may_measure_surface() else None,
        )
        yield score, scan, prediction
