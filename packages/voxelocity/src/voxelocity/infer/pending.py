"""A scan between the start of its first window and its prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from voxelocity.core.region import Region
from voxelocity.core.volume import ClassIndices, Volume
from voxelocity.infer.arrays import Values
from voxelocity.infer.model import PredictionSpec
from voxelocity.infer.probabilities import MeanProbabilities, Probabilities, Scores
from voxelocity.infer.sinks import ScanLabels
from voxelocity.infer.stitched import Stitched
from voxelocity_observe.core.clock import system_clock
from voxelocity_observe.core.device import Device
from voxelocity_observe.core.errors import ScanError

STAGES = ("decode", "prepare", "network", "blend", "restore")
"""What a prediction spends its time in."""

OnFailure = Callable[[str, ScanError], None]


class Prediction(NamedTuple):
    """A case as decoded, what was predicted for it, and how long each stage took.

    Attributes:
        scan: as decoded.
        classes: class indices (x, y, z) on its grid.
        seconds: of each of `STAGES`; the first two overlap with other cases.
        device: where the network ran.
        runtime: which ran it.
        probabilities: of every class, if they were asked for, or `Scores`.
    """

    scan: Volume
    classes: ClassIndices
    seconds: Mapping[str, float]
    device: Device
    runtime: str
    probabilities: Probabilities | MeanProbabilities | None


class Loaded(NamedTuple):
    """A case as decoded and as prepared, with the seconds of both."""

    scan: Volume
    volume: Volume
    seconds: Mapping[str, float]


class Failed(NamedTuple):
    """Takes the place of a case that cannot be predicted."""

    case_id: str
    error: ScanError


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """Where a predictor keeps what main memory should not hold.

    Attributes:
        folder: for the scores of a scan that is too large; the system's temporary folder if None.
        keeps_probabilities: whether predictions of scans have `probabilities`, which are kept there too.
        keeps_scores: whether these are `Scores`.
    """

    folder: Path | None = None
    keeps_probabilities: bool = False
    keeps_scores: bool = False


class PendingScan:
    """A scan from its first window to its prediction: the `TileSink` of its logits.

    Holds the scan as decoded and what its logits become, and no prepared volume: memory may have room for one only.

    Raises:
        ScanError: the disk has no room for the probabilities.
    """

    def __init__(
        self,
        case: Loaded,
        spec: PredictionSpec,
        *,
        scratch: Scratch,
        num_threads: int,
        behind: ThreadPoolExecutor | None,
    ) -> None:
        self.scan, self._seconds = case.scan, case.seconds
        shape, trace = case.volume.grid.shape, case.volume.trace
        self._labels = ScanLabels(shape, trace, spec, num_threads=num_threads, behind=behind)
        self._probabilities: Probabilities | None = None
        if scratch.keeps_probabilities or scratch.keeps_scores:
            kind = Scores if scratch.keeps_scores else Probabilities
            with about_case(self.scan.case_id):
                self._probabilities = kind(shape, trace, spec, folder=scratch.folder, labels=self._labels)

    def take(self, sums_kxyz: Values, weights_xyz: Values | None, box: Region) -> None:
        (self._probabilities or self._labels).take(sums_kxyz, weights_xyz, box)

    def finish(self, stitched: Stitched[PendingScan], *, device: Device, runtime: str) -> Prediction:
        """The prediction, once all tiles were taken.

        Raises:
            ScanError: the network returned NaN or infinity, or memory was too small.
        """
        with about_case(self.scan.case_id):
            stitched.check()
        start_s = system_clock()
        classes = self._labels.result()
        stitched.seconds["restore"] += system_clock() - start_s
        return Prediction(
            scan=self.scan,
            classes=classes,
            seconds={**self._seconds, **stitched.seconds},
            device=device,
            runtime=runtime,
            probabilities=self._probabilities,
        )


@contextmanager
def about_case(case_id: str) -> Iterator[None]:
    """Within the block, a `ScanError` gets the case that it is about."""
    try:
        yield
    except ScanError as error:
        raise ScanError(f"infer: case '{case_id}': {error}") from None
