"""The final validation of a run: how long it will take, how much of it fits a time budget, and the scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from voxelocity.core.records import CaseScore
from voxelocity.data.pipeline import PreparedCases
from voxelocity.infer import ModelSpec, Predictor
from voxelocity.observe import Clock
from voxelocity.report import duration_text
from voxelocity.training.budget import ForValidation
from voxelocity.training.final_size import FinalSize, ValidationCost, num_passes
from voxelocity.training.pictures import SlicePictures
from voxelocity.training.stop import StopRequest
from voxelocity.training.validate import rehearse, score_cases

# Share of a time budget that measuring the cost may take.
_REHEARSAL_SHARE = 0.05
# If a larger margin would cost cases.
_LEAST_MARGIN = 0.05
_NUM_NAMED = 3


class _OutOfTimeError(Exception):
    """The budget ran out in the middle of a case."""


class FinalValidation:
    """Scores the held-out cases of a run, in full or as far as its time budget allows.

    Args:
        cases: prepared; their files are scored.
        on_the_way: those of them that intermediate validations use.
        spec: what the network expects.
        device: where it runs.
        num_threads: that load cases.
        budget_s: of the whole run; 0 for none.
        is_full: never shorten it.
        has_target: whether an intermediate validation may end the training.
        clock: returns seconds.
        stop: checked between two batches of windows.
    """

    def __init__(
        self,
        cases: PreparedCases,
        on_the_way: PreparedCases,
        spec: ModelSpec,
        *,
        device: torch.device,
        num_threads: int,
        budget_s: float,
        is_full: bool,
        has_target: bool,
        clock: Clock,
        stop: StopRequest,
    ) -> None:
        self._cases, self._on_the_way, self._spec = cases, on_the_way, spec
        self._device, self._num_threads, self._clock, self._stop = device, num_threads, clock, stop
        self._budget_s, self._is_full, self._has_target = budget_s, is_full, has_target
        self._cost: ValidationCost | None = None
        self._size: FinalSize | None = None
        self._window_on_the_way = spec.window

    @property
    def num_cases(self) -> int:
        return len(self._cases)

    def rehearse(self, network: torch.nn.Module, *, load_s: float | None) -> None:
        """Measures how long it takes, within a twentieth of the budget.

        Args:
            network: any of the same size.
            load_s: seconds to load one case; measured if not given.

        Raises:
            StopAskedError: a stop was asked for.
        """
        predictor = Predictor(network, self._spec, device=self._device, on_windows=self._stop.check)
        limit_s = _REHEARSAL_SHARE * self._budget_s
        self._cost = rehearse(predictor, self._cases, self._spec, limit_s=limit_s, load_s=load_s, clock=self._clock)

    def was_measured(self, seconds: float) -> None:
        """Takes into account that an intermediate validation took this long."""
        if self._cost is not None:
            self._cost.measured(seconds, num_passes=self._num_passes_on_the_way())

    @property
    def seconds_on_the_way(self) -> float:
        """Seconds that an intermediate validation is expected to take; 1 if nothing was rehearsed."""
        if self._cost is None:
            return 1.0
        return self._cost.window_s * self._num_passes_on_the_way()

    @property
    def spec_on_the_way(self) -> ModelSpec:
        """How intermediate validations see volumes: with the windows first planned for the final validation."""
        return self._spec.model_copy(update={"window": self._window_on_the_way})

    def _num_passes_on_the_way(self) -> int:
        shapes = [self._on_the_way.shape(index) for index in range(len(self._on_the_way))]
        return num_passes(shapes, self._window_on_the_way)

    def reserve_s(self, available: ForValidation) -> float:
        """Sizes the validation to the seconds that a budget has for it.

        Returns:
            Seconds to reserve for it: what it is expected to take, and a little more.
        """
        assert self._cost is not None, "rehearsed"
        if self._is_full:
            return self._cost.seconds(self._spec.window) * (1.0 + self._cost.margin)
        windows_s = available.windows_s / (1.0 + self._cost.margin)
        cases_s = available.cases_s / (1.0 + _LEAST_MARGIN)
        if self._size is None and not self._has_target:
            # A target refers to the Dice with the planned windows.
            self._window_on_the_way = self._cost.largest(self._spec.window, windows_s).window
        self._size = self._cost.largest(self._spec.window, windows_s, for_cases_s=cases_s)
        least_s = self._size.seconds * (1.0 + _LEAST_MARGIN)
        return max(least_s, min(available.cases_s, self._size.seconds * (1.0 + self._cost.margin)))

    def size_to(self, available_s: float) -> None:
        """Sizes the validation to the seconds that are left when it begins."""
        if self._cost is not None and not self._is_full:
            self._size = self._cost.largest(self._spec.window, available_s)

    def differences(self) -> str:
        """How it is shorter than a full validation, in words with the times; "" if it is not."""
        if self._size is None or self._cost is None:
            return ""
        cheaper = self._size.differences(self._spec.window, self.num_cases)
        if not cheaper:
            return ""
        full_s = self._cost.seconds(self._spec.window)
        return f"{cheaper} (about {duration_text(self._size.seconds)} instead of {duration_text(full_s)})"

    def score(
        self, network: torch.nn.Module, *, until_s: float, pictures: SlicePictures, warn: Callable[[str], None]
    ) -> list[CaseScore]:
        """Scores of the cases, of at least one.

        Args:
            network: the trained one.
            until_s: clock reading at which time is up; a case that is not done by then is left out.
            pictures: receives each case.
            warn: called with what was left out or estimated.

        Raises:
            StopAskedError: a stop was asked for.
        """
        spec = self._spec if self._size is None else self._spec.model_copy(update={"window": self._size.window})
        count, number = self.num_cases, self.num_cases if self._size is None else self._size.num_cases
        refs = [self._cases.refs[i * count // number] for i in range(number)]
        scores: list[CaseScore] = []

        def check() -> None:
            self._stop.check()
            if scores and not self._is_full and self._clock() > until_s:
                raise _OutOfTimeError

        predictor = Predictor(network, spec, device=self._device, on_windows=check, warn=warn)
        has_surface = self._size is None or self._size.surface
        surface_s = 0.0 if self._cost is None else self._cost.surface_s

        def may_measure_surface() -> bool:
            return self._is_full or (has_surface and self._clock() + surface_s <= until_s)

        try:
            for score, scan, prediction in score_cases(
                predictor, refs, spec, num_threads=self._num_threads, may_measure_surface=may_measure_surface
            ):
                scores.append(score)
                pictures.add(score, scan, prediction)
                self._stop.check()
        except _OutOfTimeError:
            warn(
                f"train: the time budget ran out after {len(scores)} of {len(refs)} cases of the final validation; "
                "the others have no scores"
            )
        without = [score.case_id for score in scores if not score.hd95_mm] if has_surface else []
        if without:
            warn(f"train: the time budget left no time for the surface distances of {_named(without)}")
        _tell_of_estimates(scores, warn)
        return scores


def full_command(folder: Path) -> str:
    """The command that validates a finished run in full."""
    return f"voxelocity train --resume {folder} --full-validation"


def _tell_of_estimates(scores: list[CaseScore], warn: Callable[[str], None]) -> None:
    estimated = [f"{score.case_id} ({', '.join(score.hd95_estimated)})" for score in scores if score.hd95_estimated]
    if estimated:
        warn(
            f"train: in {len(estimated)} cases a predicted surface is many times as large as the true one, so its "
            f"distances were measured on only part of its voxels: {_named(estimated)}; see hd95_estimated in "
            "scores.json"
        )


def _named(texts: Sequence[str]) -> str:
    return ", ".join([*texts[:_NUM_NAMED], *(["..."] if len(texts) > _NUM_NAMED else [])])
