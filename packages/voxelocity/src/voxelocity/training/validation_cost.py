"""How long the final validation takes, measured before the training, and how it is shortened to fit a time budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from voxelocity.core.region import Index3
from voxelocity.core.volume import Array, Volume
from voxelocity.data.patch import grid_regions
from voxelocity.data.pipeline import PreparedCases
from voxelocity.data.prepare import is_resampled, restore_labels, restore_probabilities
from voxelocity.infer import ModelSpec, Predictor, WindowConfig, keep_largest
from voxelocity.metrics import NSD_TOLERANCE_MM, case_score
from voxelocity_observe.core.clock import Clock

# At 0, neighboring windows meet without a blend; values above 0.5 are not used.
_CHEAPER_OVERLAPS = (0.25, 0.0)
_NUM_MEASURED = 3
# The rehearsal times only windows, but cases are also loaded and put back: 42 small ones took 1.0 to 1.6 times the
# forecast on two cores (docs/log). An intermediate validation times all of it, but the last step may still end late.
_REHEARSED_MARGIN, _MEASURED_MARGIN = 0.6, 0.2
# Large enough for several organs; a larger box would not fit a twentieth of a short budget on a busy machine.
_SCORED_VOXEL = 96
_LONG_WORK_S = 2.0


@dataclass(frozen=True, kw_only=True)
class FinalSize:
    """How the final validation is done.

    Attributes:
        window: how volumes are covered.
        num_cases: number of cases, evenly chosen from all.
        surface: whether surface distances are measured.
        seconds: expected duration.
    """

    window: WindowConfig
    num_cases: int
    surface: bool
    seconds: float

    def differences(self, full: WindowConfig, num_cases: int) -> str:
        """How it is shorter than a full validation, in words; "" if it is not."""
        parts = []
        if self.window.mirror_axes != full.mirror_axes:
            fewer = f"over {_axes_text(self.window.mirror_axes)}" if self.window.mirror_axes else "left out"
            parts.append(f"mirroring {fewer} instead of over {_axes_text(full.mirror_axes)}")
        if self.window.overlap != full.overlap:
            parts.append(f"windows overlap by {self.window.overlap:.0%} instead of {full.overlap:.0%}")
        if not self.surface:
            parts.append("no surface distances")
        if self.num_cases < num_cases:
            parts.append(f"{self.num_cases} of {num_cases} cases")
        return ", ".join(parts)


class ValidationCost:
    """Seconds that validating some cases takes, depending on how it is done.

    Args:
        shapes: of the prepared cases, in voxels.
        window_s: seconds of one window in one forward pass.
        other_s: seconds of everything else for all cases, except surface distances: decoding, preparing, putting back,
            counting voxels.
        surface_s: seconds of the surface distances of all cases.
        num_ranks: that share the cases.
    """

    def __init__(
        self,
        shapes: Sequence[Index3],
        *,
        window_s: float,
        other_s: float,
        surface_s: float = 0.0,
        num_ranks: int = 1,
    ) -> None:
        self._num_ranks = num_ranks
        self._shapes = tuple(shapes)
        self._rehearsed_s, self._other_s, self._surface_s = max(window_s, 1e-9), other_s, surface_s
        self._measured: list[float] = []

    @property
    def num_cases(self) -> int:
        return len(self._shapes)

    @property
    def window_s(self) -> float:
        """Seconds of one window in one forward pass."""
        return fmean(self._measured) if self._measured else self._rehearsed_s

    @property
    def margin(self) -> float:
        """Share of the forecast by which it may fall short."""
        return _MEASURED_MARGIN if self._measured else _REHEARSED_MARGIN

    @property
    def surface_s(self) -> float:
        """Seconds of the surface distances of one case."""
        return self._surface_s * self._slowdown / self.num_cases

    @property
    def _slowdown(self) -> float:
        # If the machine became busier or less busy, that affects all of the work.
        return self.window_s / self._rehearsed_s

    def seconds(self, window: WindowConfig, *, num_cases: int | None = None, surface: bool = True) -> float:
        """Expected seconds to validate this many cases, all of them if not given."""
        window_s = self.window_s
        other_s = (self._other_s + (self._surface_s if surface else 0.0)) * self._slowdown
        share = (1.0 if num_cases is None else num_cases / self.num_cases) / self._num_ranks
        return share * (num_passes(self._shapes, window) * window_s + other_s)

    def take_measurement(self, seconds: float, *, num_passes: int) -> None:
        """Takes the time of an intermediate validation with this many windows; it replaces that of the rehearsal."""
        window_s = seconds * self._num_ranks / max(1, num_passes)
        self._measured = [*self._measured[1 - _NUM_MEASURED :], window_s]

    def largest(self, full: WindowConfig, available_s: float, *, for_cases_s: float | None = None) -> FinalSize:
        """The best validation that is expected to fit: cheaper windows, then no surface distances, then fewer cases.

        The minimum is one case in the cheapest way, even if that does not fit.

        Args:
            full: the windows as planned.
            available_s: seconds for it.
            for_cases_s: seconds that it may take in the cheapest way before cases are left out; `available_s` if not
                given.
        """
        for_cases_s = available_s if for_cases_s is None else for_cases_s
        *windows, cheapest = _cheaper_and_cheaper(full)
        for window, surface in [*((window, True) for window in windows), (cheapest, True), (cheapest, False)]:
            seconds = self.seconds(window, surface=surface)
            if seconds <= available_s:
                return FinalSize(window=window, num_cases=self.num_cases, surface=surface, seconds=seconds)
        num_cases = min(self.num_cases, max(1, int(self.num_cases * for_cases_s / seconds)))
        seconds = self.seconds(cheapest, num_cases=num_cases, surface=False)
        return FinalSize(window=cheapest, num_cases=num_cases, surface=False, seconds=seconds)


def num_passes(shapes: Sequence[Index3], window: WindowConfig) -> int:
    """The number of windows that the network predicts to cover volumes of these shapes, including mirrored ones."""
    grids = (grid_regions(shape, window.shape_voxel, window.overlap, spread=window.spread) for shape in shapes)
    num_windows = sum(map(len, grids))
    num_mirrorings: int = 2 ** len(set(window.mirror_axes))
    return num_windows * num_mirrorings


def _cheaper_and_cheaper(full: WindowConfig) -> list[WindowConfig]:
    """The full way, then cheaper and cheaper ways: fewer mirrored axes, then less overlap of windows."""
    axes = full.mirror_axes
    ways = [full.model_copy(update={"mirror_axes": axes[:number]}) for number in range(len(axes), -1, -1)]
    overlaps = (overlap for overlap in _CHEAPER_OVERLAPS if overlap < full.overlap)
    return ways + [ways[-1].model_copy(update={"overlap": overlap}) for overlap in overlaps]


def _axes_text(axes: Sequence[int]) -> str:
    return "".join("xyz"[axis] for axis in axes)


def rehearse(
    predictor: Predictor,
    cases: PreparedCases,
    spec: ModelSpec,
    *,
    limit_s: float,
    load_s: float | None,
    clock: Clock,
    num_ranks: int = 1,
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
        num_ranks: that will share the cases.

    Raises:
        ScanError: a case cannot be used.
    """
    begin_s = clock()
    shapes = [cases.shape(index) for index in range(len(cases))]
    sizes = [shape[0] * shape[1] * shape[2] for shape in shapes]
    smallest = int(np.argmin(sizes))
    if load_s is None:
        volume = predictor.load(cases.refs[smallest]).volume
        load_s = (clock() - begin_s) * sum(sizes) / len(sizes) / sizes[smallest]
    else:
        volume = cases[smallest].load()
    window_s = predictor.window_seconds(volume, limit_s=limit_s - (clock() - begin_s), clock=clock)
    finish_s, surface_s = (_score_seconds(volume, spec, surface=surface, clock=clock) for surface in (False, True))
    if clock() - begin_s < limit_s:
        finish_s += _restore_seconds(volume, spec.num_outputs, clock=clock)
    larger = sum(sizes) / sizes[smallest]
    return ValidationCost(
        shapes,
        window_s=window_s,
        other_s=load_s * len(shapes) + finish_s * larger,
        surface_s=surface_s * larger,
        num_ranks=num_ranks,
    )


def _score_seconds(volume: Volume, spec: ModelSpec, *, surface: bool, clock: Clock) -> float:
    """Seconds to score a case, with or without surfaces, from the part around the middle of its foreground."""
    assert volume.label is not None, "validation cases have labels"
    label = np.asarray(volume.label)
    label = label * (label < len(spec.labels))
    part = _around_the_middle(label)
    moved = np.roll(part, 1, axis=0)

    names, steps_mm = spec.class_names, volume.grid.steps_mm

    def score() -> None:
        keep_largest(moved, range(1, len(names)))
        # Twice, as for a case in which components are removed.
        for _ in range(2):
            case_score(
                "", moved, part, names, steps_mm, regions=spec.regions, ignored=spec.ignored,
                tolerance_mm=NSD_TOLERANCE_MM if surface else None,
            )  # fmt: skip

    return _seconds_again(score, clock) * int(np.count_nonzero(label)) / max(1, int(np.count_nonzero(part)))


def _restore_seconds(volume: Volume, num_classes: int, *, clock: Clock) -> float:
    """Seconds to bring a prediction back onto the scan's grid; probabilities are measured with two classes."""
    if not is_resampled(volume.trace):
        classes = np.zeros(volume.grid.shape, np.uint8)
        return _seconds_again(lambda: restore_labels(classes, volume.trace), clock)
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
