"""A model in parts: several networks, each for classes of its own, one after the other on each scan.

So the scores of one part at a time are in memory; a network of TotalSegmentator's 117 classes would take five times as
much. Later parts are laid over earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from voxelocity.core.volume import VolumeRef
from voxelocity.infer.pending import Failed, Loaded, OnFailure, Prediction
from voxelocity.infer.predictor import Predictor
from voxelocity_observe.core.errors import ScanError

MOST_CLASSES = 256
"""Of all parts together, as an index is a byte."""


class PartsPredictor(Predictor):
    """Predicts with each part, and lays the classes of later parts over those of earlier ones.

    The classes of a part are counted on from those of the parts before it; 0 is the background of all.

    Args:
        parts: on one device; their models take the same channels.
        num_classes: of each part, its background among them.
    """

    def __init__(self, parts: Sequence[Predictor], num_classes: Sequence[int]) -> None:
        self._parts, self.device = tuple(parts), parts[0].device
        firsts = np.cumsum([0, *(num - 1 for num in num_classes[:-1])])
        self._indices = [
            np.concatenate([[0], first + np.arange(1, num)]).astype(np.uint8)
            for first, num in zip(firsts, num_classes, strict=True)
        ]

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
                prediction = self._predict_parts(case, num_threads)
            except ScanError as error:
                if on_failure is None:
                    raise
                on_failure(case.case_id if isinstance(case, Failed) else case.scan.case_id, error)
                continue
            yield prediction

    def _predict_parts(self, case: Loaded, num_threads: int) -> Prediction:
        found: Prediction | None = None
        for part, indices in zip(self._parts, self._indices, strict=True):
            # Parts differ in their intensities.
            loaded = case if found is None else part.prepare(case.scan)
            prediction = next(part.predict_loaded(iter([loaded]), on_failure=None, num_threads=num_threads))
            if found is None:
                found = prediction
                continue
            np.copyto(found.classes, indices[prediction.classes], where=prediction.classes > 0)
            seconds = {stage: found.seconds[stage] + added for stage, added in prediction.seconds.items()}
            found = found._replace(seconds=seconds)
        assert found is not None
        return found
