"""Two ways to judge a network: quickly on prepared volumes while training, and at the end on each scan's own grid."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from voxelocity.core.records import CaseScore
from voxelocity.core.volume import Volume, VolumeRef
from voxelocity.data.pipeline import PreparedCases
from voxelocity.infer import ModelSpec, Predictor
from voxelocity.metrics import DiceCounts, case_score


def validate_prepared(
    network: torch.nn.Module, prepared: PreparedCases, spec: ModelSpec, *, device: torch.device
) -> tuple[float, dict[str, float]]:
    """Mean foreground Dice and Dice per class over the cases, on the prepared grid, without test-time mirroring.

    Quicker than `score_cases` and a little different from it: for curves, targets and "best", not for publication.
    """
    was_training = network.training
    predictor = Predictor(network, spec, device=device)
    window = spec.window.model_copy(update={"mirror_axes": ()})
    names = spec.class_names[1:]
    totals = np.zeros(len(names))
    for index in range(len(prepared)):
        volume = prepared[index]
        assert volume.label is not None, "validation cases have labels"
        counts = DiceCounts(num_classes=len(spec.labels))
        truth = torch.from_numpy(np.array(volume.label)).to(device)
        counts.add(predictor.predict_prepared(volume, window=window), truth)
        totals += np.asarray(counts.dice())[1:]
    network.train(was_training)
    per_class = totals / len(prepared)
    return float(per_class.mean()), dict(zip(names, per_class.tolist(), strict=True))


def score_cases(
    predictor: Predictor, refs: Sequence[VolumeRef], spec: ModelSpec, *, num_threads: int
) -> Iterator[tuple[CaseScore, Volume, np.ndarray]]:
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
    """Seconds that scoring all cases is expected to take, from scoring three of them now."""
    chosen = [refs[i] for i in sorted({0, len(refs) // 2, len(refs) - 1})]
    # The first call pays for kernels and buffers that the others find ready.
    for _ in score_cases(predictor, chosen[:1], spec, num_threads=0):
        pass
    start = time.perf_counter()
    for _ in score_cases(predictor, chosen, spec, num_threads=num_threads):
        pass
    return (time.perf_counter() - start) / len(chosen) * len(refs)


class SlicePictures:
    """Keeps one telling slice of a few scored cases: worst, middle and best, for the report."""

    def __init__(self, *, limit: int = 4) -> None:
        self._limit = limit
        self._kept: list[tuple[float, str, np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, score: CaseScore, scan: Volume, prediction: np.ndarray) -> None:
        """Takes the slice of a case that shows most foreground."""
        assert scan.label is not None
        # Axial slices: the scan axis nearest to head-foot, shown with the patient's right on the left.
        axis = int(np.argmax(np.abs(scan.grid.matrix[2, :3])))
        foreground = (scan.label > 0) | (prediction > 0)
        per_slice = foreground.sum(axis=tuple(a for a in range(3) if a != axis))
        index = int(per_slice.argmax())
        image = _to_uint8(np.take(scan.image[0], index, axis=axis))
        shown = [
            _upright(plane, scan, axis)
            for plane in (image, np.take(scan.label, index, axis=axis), np.take(prediction, index, axis=axis))
        ]
        self._kept.append((score.mean_dice, f"{score.case_id}, Dice {score.mean_dice:.3f}", *shown))
        if len(self._kept) > 4 * self._limit:
            self._kept = self._spread()

    def save(self, path: Path) -> None:
        """Writes `slices.npz`: arrays `<i>_image`, `<i>_truth`, `<i>_prediction` (h, w) uint8 and `<i>_title`."""
        arrays: dict[str, np.ndarray] = {}
        for i, (_, title, image, truth, prediction) in enumerate(self._spread()):
            arrays |= {f"{i}_image": image, f"{i}_truth": truth, f"{i}_prediction": prediction}
            arrays[f"{i}_title"] = np.array(title)
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]

    def _spread(self) -> list[tuple[float, str, np.ndarray, np.ndarray, np.ndarray]]:
        ordered = sorted(self._kept, key=lambda kept: kept[:2])
        if len(ordered) <= self._limit:
            return ordered
        picks = np.linspace(0, len(ordered) - 1, self._limit).round().astype(int)
        return [ordered[i] for i in picks]


def _to_uint8(plane: np.ndarray) -> np.ndarray:
    low, high = np.percentile(plane, [1.0, 99.0])
    scaled = (plane.astype(np.float32) - low) / max(float(high - low), 1e-6)
    return (scaled.clip(0.0, 1.0) * 255.0).astype(np.uint8)


def _upright(plane: np.ndarray, scan: Volume, axis: int) -> np.ndarray:
    """Rows from front to back, columns from the patient's right to left: the way radiologists look at a slice."""
    rest = [a for a in range(3) if a != axis]
    directions = scan.grid.matrix[:3, rest]
    if abs(directions[0, 0]) < abs(directions[0, 1]):
        plane, directions = plane.T, directions[:, ::-1]
    columns, rows = directions[0, 0], directions[1, 1]
    # RAS+: x grows to the patient's left-hand side of the picture when flipped; y grows to the front.
    plane = plane if columns < 0 else plane[::-1]
    plane = plane if rows < 0 else plane[:, ::-1]
    return np.ascontiguousarray(plane.T)
