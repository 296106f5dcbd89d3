"""Several models as one whose networks predict one after the other on each scan, from its voxels to its classes.

So the scores of one network at a time are in memory; one of TotalSegmentator's 117 classes would take five times as
much as its parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from voxelocity.core.cases import index_dtype
from voxelocity.core.volume import ClassIndices, Volume, VolumeRef
from voxelocity.infer.model import PredictionSpec
from voxelocity.infer.pending import STAGES, Failed, Loaded, OnFailure, Prediction, Scratch, about_case
from voxelocity.infer.predictor import Predictor
from voxelocity.infer.probabilities import MeanProbabilities, Scores, file_of_scores
from voxelocity_observe.core.errors import ScanError

MOST_CLASSES = 256
"""Of all parts together, as an index is a byte."""


class InTurnPredictor(Predictor, ABC):
    """Predicts with each of several models, and makes one prediction of theirs.

    Args:
        parts: on one device; their models take the same channels.
    """

    def __init__(self, parts: Sequence[Predictor]) -> None:
        self._parts, self.device = tuple(parts), parts[0].device

    @abstractmethod
    def _merge(self, predictions: Iterator[Prediction], scan: Volume) -> Prediction:
        """One prediction of a scan from those of all parts, in order."""

    def load(self, ref: VolumeRef) -> Loaded:
        """As decoded, and as prepared for the first part."""
        return self._parts[0].load(ref)

    def predict_loaded(
        self, cases: Iterable[Loaded | Failed], *, on_failure: OnFailure | None, num_threads: int
    ) -> Iterator[Prediction]:
        """As `Predictor.predict_loaded`."""
        for case in cases:
            try:
                if isinstance(case, Failed):
                    raise case.error
                prediction = self._predict_in_turn(case, num_threads)
            except ScanError as error:
                if on_failure is None:
                    raise
                on_failure(case.case_id if isinstance(case, Failed) else case.scan.case_id, error)
                continue
            yield prediction

    def _predict_in_turn(self, case: Loaded, num_threads: int) -> Prediction:
        seconds = dict.fromkeys(STAGES, 0.0)

        def predict() -> Iterator[Prediction]:
            for number, part in enumerate(self._parts):
                # Parts differ at least in their intensities.
                loaded = part.prepare(case.scan) if number else case
                prediction = next(part.predict_loaded(iter([loaded]), on_failure=None, num_threads=num_threads))
                for stage, added_s in prediction.seconds.items():
                    seconds[stage] += added_s
                yield prediction

        return self._merge(predict(), case.scan)._replace(seconds=seconds)


class PartsPredictor(InTurnPredictor):
    """Lays the classes of later parts over those of earlier ones.

    The classes of a part are counted on from those of the parts before it; 0 is the background of all.

    Args:
        parts: as in `InTurnPredictor`.
        num_classes: of each part, its background among them.
    """

    def __init__(self, parts: Sequence[Predictor], num_classes: Sequence[int]) -> None:
        super().__init__(parts)
        firsts = np.cumsum([0, *(num - 1 for num in num_classes[:-1])])
        self._indices = [
            np.concatenate([[0], first + np.arange(1, num)]).astype(np.uint8)
            for first, num in zip(firsts, num_classes, strict=True)
        ]

    def _merge(self, predictions: Iterator[Prediction], scan: Volume) -> Prediction:
        found = next(predictions)
        for prediction, indices in zip(predictions, self._indices[1:], strict=True):
            np.copyto(found.classes, indices[prediction.classes], where=prediction.classes > 0)
        return found


class AveragePredictor(InTurnPredictor):
    """Averages the probabilities of all parts on the grid of the scan, as `nnUNetv2_ensemble` does with configurations.

    A value for each class and voxel of the scan is kept twice, in files.

    Args:
        parts: as in `InTurnPredictor`; their predictions have `Scores`.
        spec: of the average.
        scratch: where files go, and whether predictions have probabilities.
    """

    def __init__(self, parts: Sequence[Predictor], spec: PredictionSpec, scratch: Scratch) -> None:
        super().__init__(parts)
        self._average_spec, self._scratch = spec, scratch

    def _merge(self, predictions: Iterator[Prediction], scan: Volume) -> Prediction:
        spec, num = self._average_spec, len(self._parts)
        with about_case(scan.case_id):
            mean = file_of_scores((spec.num_outputs, *scan.grid.shape), np.float32, self._scratch.folder)
        for prediction in predictions:
            scores, found = prediction.probabilities, prediction._replace(probabilities=None)
            assert isinstance(scores, Scores), "a predictor keeps them if its scratch says so"
            with about_case(scan.case_id):
                scores.add_to(mean)
            # Their file goes before the next part makes its own.
            del prediction, scores
        classes: ClassIndices = np.zeros(scan.grid.shape, index_dtype(len(spec.labels)))
        for planes, target in zip(mean.swapaxes(0, 1), classes, strict=True):
            planes /= num
            if not spec.region_order:
                target[...] = planes.argmax(axis=0)
                continue
            for index, plane in zip(spec.region_order, planes, strict=True):
                target[plane > 0.5] = index
        probabilities = MeanProbabilities(mean) if self._scratch.keeps_probabilities else None
        return found._replace(classes=classes, probabilities=probabilities)
