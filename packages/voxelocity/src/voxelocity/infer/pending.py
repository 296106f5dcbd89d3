"""Cases between the start of their first window and their prediction."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from voxelocity.core.volume import Volume
from voxelocity.infer.arrays import Values
from voxelocity.infer.probabilities import Probabilities
from voxelocity.infer.sinks import ClassIndices, ScanLabels
from voxelocity.infer.stitched import Stitched, TileSink
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
        probabilities: of every class, if they were asked for.
    """

    scan: Volume
    classes: ClassIndices
    seconds: Mapping[str, float]
    device: Device
    runtime: str
    probabilities: Probabilities | None


class Loaded(NamedTuple):
    """A case as decoded and as prepared, with the seconds of both."""

    scan: Volume
    volume: Volume
    seconds: Mapping[str, float]


class Failed(NamedTuple):
    """Takes the place of a case that cannot be predicted."""

    case_id: str
    error: ScanError


class _Case(NamedTuple):
    scan: Volume
    seconds: Mapping[str, float]
    labels: ScanLabels
    probabilities: Probabilities | None


class Pending:
    """Cases whose windows are queued or run, in order.

    Keeps what the prediction of a case needs until that is given away, and no prepared volume: memory may have room for
    one only.

    Args:
        begin: `(prepared volume)` to its image (c, x, y, z) for the network, and what its logits become.
        device: where the network runs.
        runtime: which runs it.
        on_failure: called with the id and the error of each case that cannot be predicted; None to raise the error.
    """

    def __init__(
        self,
        begin: Callable[[Volume], tuple[Values, ScanLabels, Probabilities | None]],
        *,
        device: Device,
        runtime: str,
        on_failure: OnFailure | None,
    ) -> None:
        self._begin, self._device, self._runtime, self._on_failure = begin, device, runtime, on_failure
        self._cases: deque[_Case] = deque()
        self._error: Exception | None = None

    def images(self, loaded: Iterator[Loaded | Failed]) -> Iterator[tuple[Values, TileSink]]:
        """The image of each case with what takes its logits. An error of `loaded` ends it; `check` raises that."""
        try:
            # Unlike a loop, these keep none of what they pass on.
            yield from filter(None, map(self._image, loaded))
        except Exception as error:  # raised by `check`, whatever it is
            # Windows of earlier cases may still wait for a full forward pass; ending here lets them run.
            self._error = error

    def finish(self, stitched: Stitched) -> Prediction | None:
        """The prediction of the oldest case, whose windows these were; None if it has none.

        Raises:
            ScanError: without `on_failure`: the network returned NaN or infinity, or memory was too small.
        """
        scan, seconds, labels, probabilities = self._cases.popleft()
        try:
            stitched.check()
        except ScanError as error:
            self._fail(scan.case_id, of_case(scan.case_id, error))
            return None
        start_s = system_clock()
        classes = labels.result()
        stitched.seconds["restore"] += system_clock() - start_s
        return Prediction(
            scan=scan,
            classes=classes,
            seconds={**seconds, **stitched.seconds},
            device=self._device,
            runtime=self._runtime,
            probabilities=probabilities,
        )

    def check(self) -> None:
        """Raises what ended `images`, if anything did."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            # The traceback holds this frame, which would hold the error, with all that the frames of both hold.
            del error

    def _image(self, case: Loaded | Failed) -> tuple[Values, TileSink] | None:
        if isinstance(case, Failed):
            self._fail(case.case_id, case.error)
            return None
        try:
            image, labels, probabilities = self._begin(case.volume)
        except ScanError as error:
            self._fail(case.scan.case_id, error)
            return None
        self._cases.append(_Case(case.scan, case.seconds, labels, probabilities))
        return image, probabilities or labels

    def _fail(self, case_id: str, error: ScanError) -> None:
        if self._on_failure is None:
            raise error from None
        self._on_failure(case_id, error)


def of_case(case_id: str, error: ScanError) -> ScanError:
    """The error with the case that it is about."""
    return ScanError(f"infer: case '{case_id}': {error}")
