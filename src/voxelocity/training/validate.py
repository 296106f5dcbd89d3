"""Two ways to score a network: quickly on prepared volumes while training, and at the end on each scan's own grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from voxelocity.core.records import CaseScore
from voxelocity.core.volume import Array, Volume, VolumeRef
from voxelocity.data.pipeline import PreparedCases
from voxelocity.data.prepare import restore_probabilities
from voxelocity.infer import ClassIndices, ModelSpec, Predictor
from voxelocity.metrics import DiceCounts, case_score, summarize
from voxelocity.observe import Clock
from voxelocity.training.final_size import ValidationCost

# Large enough for several organs; a larger box would not fit a twentieth of a short budget on a busy machine.
_SCORED_VOXEL = 96
_LONG_WORK_S = 2.0


def validate_prepared(
    network: torch.nn.Module,
    prepared: PreparedCases,
    spec: ModelSpec,
    *,
    device: torch.device,
    on_windows: Callable[[], None] | None = None,
) -> tuple[float, dict[str, float]]:
    """Mean foreground Dice and Dice per class over the cases, on the prepared grid, mirrored as in `score_cases`.

    A class that is in no case, neither in truth nor in prediction, has NaN and is left out of the mean. Quicker than
    `score_cases`, with slightly different results: for curves, targets and "best", not for publication.

    Args:
        network: keeps its mode (training or evaluation).
        prepared: the cases.
        spec: what the network expects.
        device: where it runs.
        on_windows: called before each forward pass; what it raises ends the validation.
    """
    was_training = network.training
    predictor = Predictor(network, spec, device=device, on_windows=on_windows)
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
    for scan, prediction in predictor.stream(refs, num_threads=num_threads):
        assert scan.label is not None, "validation cases have labels"
        score = case_score(
            scan.case_id,
            prediction,
            scan.label,
            class_names=spec.class_names,
            spacing_mm=scan.grid.spacing_mm,
            surface=may_measure_surface(),
        )
        yield score, scan, prediction


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def rehearse(
    predictor: Predictor,
    cases: PreparedCases,
    spec: ModelSpec,
    *,
    limit_s: float,
    load_s: float | None,
    clock: Clock,
) -> ValidationCost:
    """How long validating the cases will take, from a few windows of the smallest one; needs no trained network.

    Windows are timed, and the windows of all cases counted. Surface distances are timed between the truth and the truth
    moved by a voxel: those of an untrained network are not representative, because its surfaces are noise.

    Args:
        predictor: of the network before its first step.
        cases: the cases to be validated.
        spec: what the network expects.
        limit_s: seconds for everything. If `load_s` is not given, one case is loaded; two batches of windows are always
            predicted, even if that takes longer.
        load_s: seconds to decode and prepare one case; measured if not given.
        clock: returns seconds.

    Raises:
        ScanError: a case cannot be used.
    """
    begin_s = clock()
    shapes = [cases.shape(index) for index in range(len(cases))]
    sizes = [shape[0] * shape[1] * shape[2] for shape in shapes]
    smallest = int(np.argmin(sizes))
    if load_s is None:
        _, volume = predictor.load(cases.refs[smallest])
        load_s = (clock() - begin_s) * sum(sizes) / len(sizes) / sizes[smallest]
    else:
        volume = cases[smallest].load()
    window_s = predictor.window_seconds(volume, limit_s=limit_s - (clock() - begin_s), clock=clock)
    finish_s, surface_s = (_score_seconds(volume, spec, surface=surface, clock=clock) for surface in (False, True))
    if clock() - begin_s < limit_s:
        finish_s += _restore_seconds(volume, len(spec.labels), clock=clock)
    larger = sum(sizes) / sizes[smallest]
    return ValidationCost(
        shapes, window_s=window_s, other_s=load_s * len(shapes) + finish_s * larger, surface_s=surface_s * larger
    )


def _score_seconds(volume: Volume, spec: ModelSpec, *, surface: bool, clock: Clock) -> float:
    """Seconds to score a case, with or without surfaces, from the part around the middle of its foreground."""
    assert volume.label is not None, "validation cases have labels"
    label = np.asarray(volume.label)
    part = _around_the_middle(label)
    moved = np.roll(part, 1, axis=0)

    def score() -> None:
        case_score("", moved, part, class_names=spec.class_names, spacing_mm=volume.grid.spacing_mm, surface=surface)

    return _seconds_again(score, clock) * int(np.count_nonzero(label)) / max(1, int(np.count_nonzero(part)))


def _restore_seconds(volume: Volume, num_classes: int, *, clock: Clock) -> float:
    """Seconds to bring a prediction back onto the scan's grid, measured with two classes."""
    probabilities = np.zeros((2, *volume.grid.shape), np.float32)
    return _seconds_again(lambda: restore_probabilities(probabilities, volume.trace), clock) * num_classes / 2


def _seconds_again(work: Callable[[], object], clock: Clock) -> float:
    """Seconds of the work once its libraries are imported; long work runs only once, because imports hardly count."""
    for _ in range(2):
        start_s = clock()
        work()
        seconds = clock() - start_s
        if seconds > _LONG_WORK_S:
            break
    return seconds


def _around_the_middle(label: Array) -> Array:
    """A part of a label with the middle of its foreground, no larger than `_SCORED_VOXEL` along each axis."""
    places = [np.flatnonzero(label.any(axis=tuple(a for a in range(3) if a != axis))) for axis in range(3)]
    starts = [
        max(0, min(n - _SCORED_VOXEL, int(place[len(place) // 2]) - _SCORED_VOXEL // 2)) if len(place) else 0
        for n, place in zip(label.shape, places, strict=True)
    ]
    return label[tuple(slice(start, start + _SCORED_VOXEL) for start in starts)]
