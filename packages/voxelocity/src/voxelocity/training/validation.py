"""The validations of a run: which cases in which windows on which rank, and what the time budget leaves of them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch

from voxelocity.core.region import Index3
from voxelocity.core.volume import VolumeRef
from voxelocity.data.pipeline import PreparedCases
from voxelocity.infer import Predictor, WindowConfig
from voxelocity.infer.resident import Residents
from voxelocity.parallel import shared_out
from voxelocity.training.budget import MOST_FIRST_SHARE, Allotment, allot, left_at_end_s, left_for_validation
from voxelocity.training.postprocessing import FinalScores, ScorePair, largest_alone, settle
from voxelocity.training.results import SlicePictures
from voxelocity.training.scoring import mean_dice, score_cases, score_prepared
from voxelocity.training.session import Session, StopAskedError
from voxelocity.training.validation_cost import FinalSize, ValidationCost, num_passes, rehearse
from voxelocity_observe.core.progress_bar import WorkProgress
from voxelocity_observe.core.quantities import count_text, duration_text, listed

# Share of a time budget that measuring the cost may take.
_REHEARSAL_SHARE = 0.05
# Mirroring adds less than this to the mean Dice; only mirrored windows, those of the final validation, reach a target.
_NEAR_TARGET = 0.02
# Of what the first intermediate validation may take: the first windows in a run take longer than those rehearsed.
_FIRST_PART = 0.75
# If a larger margin would cost cases.
_LEAST_MARGIN = 0.05

_T = TypeVar("_T")


class _OutOfTimeError(Exception):
    """The budget ran out in the middle of a case."""


class Validation:
    """The validations of a run: intermediate ones, and the final one, in full or as far as the time budget allows.

    Args:
        session: of the run.
        held: the cases of the final validation, prepared; their files are scored.
        intermediate: those of them that intermediate validations use.
        is_full: never shorten the final validation.
        report_s: most seconds that the model's files and the report take.
    """

    def __init__(
        self, session: Session, held: PreparedCases, intermediate: PreparedCases, *, is_full: bool, report_s: float
    ) -> None:
        self._session, self._spec = session, session.spec
        self._held, self._intermediate = held, intermediate
        self._is_full, self._report_s = is_full, report_s
        # Cases that were trained on prove nothing about new ones.
        self._is_held_out = session.planned.cases.split(session.planned.fold).held_out
        self._cost: ValidationCost | None = None
        self._size: FinalSize | None = None
        # Intermediate validations use the windows first planned for the final one.
        self._intermediate_window = session.spec.window
        self._residents = Residents(session.device)
        self._last_dice, self._last_passes = math.nan, 0
        self._num_intermediate, self._is_settled = len(intermediate), False

    @property
    def num_cases(self) -> int:
        return len(self._held)

    def rehearse(self, network: torch.nn.Module, *, load_s: float | None) -> None:
        """Measures how long the final validation takes on this rank, within a twentieth of the budget.

        Args:
            network: any of the same size.
            load_s: seconds to load one case; measured if not given.

        Raises:
            StopAskedError: a stop was asked for.
        """
        session = self._session
        predictor = Predictor(
            network, self._spec, self._spec.preparation(), device=session.device, on_windows=session.stop.check
        )
        limit_s = _REHEARSAL_SHARE * session.plan.train.time_budget_s
        self._cost = rehearse(
            predictor,
            self._held,
            self._spec,
            limit_s=limit_s,
            load_s=load_s,
            clock=session.clock,
            num_ranks=session.world.place.size,
        )

    def fit_intermediate(self, training_s: float) -> None:
        """Leaves cases out of intermediate validations, so that the first one comes early in a training this long.

        A Dice of few cases on the way is worth more than none. A target refers to all of them, and so does a number of
        steps between two validations.
        """
        train, num_all = self._session.plan.train, len(self._intermediate)
        if self._is_settled or num_all == 0 or train.target_dice or train.validate_every_steps:
            return
        self._num_intermediate = num_all
        available_s = max(train.validation_share / 3.0, _FIRST_PART * MOST_FIRST_SHARE) * training_s
        self._num_intermediate = min(num_all, max(1, int(num_all * available_s / max(self.intermediate_s, 1e-9))))

    def continue_with(self, num_intermediate: int) -> None:
        """Uses as many cases on the way as an earlier session of the run, so that all of its curve is of the same."""
        self._num_intermediate, self._is_settled = min(num_intermediate, len(self._intermediate)), True

    def _intermediate_cases(self) -> PreparedCases:
        count, number = len(self._intermediate), self._num_intermediate
        return self._intermediate.part([i * count // number for i in range(number)])

    @property
    def num_intermediate(self) -> int:
        """The cases of an intermediate validation."""
        return self._num_intermediate

    def intermediate(self, network: torch.nn.Module) -> tuple[float, dict[str, float]]:
        """An intermediate validation: what `mean_dice` returns. Each rank scores some of the cases.

        Raises:
            StopAskedError: a stop was asked for.
        """
        # Only the leader knows what the windows of the final validation will be, and ranks may have other devices.
        window, quick, self._num_intermediate = self._session.world.from_leader(
            (self._intermediate_window, self._quick(self._intermediate_window), self._num_intermediate)
        )
        self._last_passes = 0
        if quick != window:
            found = self._mean_dice(network, quick)
            if not found[0] >= self._session.plan.train.target_dice - _NEAR_TARGET:
                return found
        return self._mean_dice(network, window)

    def _quick(self, window: WindowConfig) -> WindowConfig:
        """The windows that show whether a target is near: not mirrored, on a GPU."""
        has_target = self._session.plan.train.target_dice > 0.0
        if not has_target or not window.mirror_axes or self._session.device.type != "cuda":
            return window
        return window.model_copy(update={"mirror_axes": ()})

    def _mean_dice(self, network: torch.nn.Module, window: WindowConfig) -> tuple[float, dict[str, float]]:
        session = self._session
        cases = self._intermediate_cases()
        shapes = [cases.shape(index) for index in range(len(cases))]
        own, all_own = self._shared_out(shapes)
        spec = self._spec.model_copy(update={"window": window})
        parts = self._together(
            lambda: score_prepared(
                network,
                cases.part(own),
                spec,
                device=session.device,
                on_windows=session.stop.check,
                residents=self._residents,
            )
        )
        self._last_passes += num_passes(shapes, window)
        found = mean_dice(_in_order(parts, all_own))
        self._last_dice = found[0]
        return found

    def _shared_out(self, shapes: Sequence[Index3]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """The cases, by index, that this rank scores, and those of all ranks."""
        place = self._session.world.place
        shares = shared_out([float(math.prod(shape)) for shape in shapes], place.size)
        return shares[place.rank], shares

    def _together(self, score: Callable[[], _T]) -> list[_T]:
        """What `score` returns on each rank.

        Raises:
            StopAskedError: any rank was asked to stop.
        """

        def score_unless_stopped() -> _T | None:
            try:
                return score()
            except StopAskedError:
                return None

        results = self._session.world.together(score_unless_stopped)
        found = [result for result in results if result is not None]
        if len(found) < len(results):
            raise StopAskedError
        return found

    @property
    def intermediate_s(self) -> float:
        """Seconds that an intermediate validation is expected to take; 1 if nothing was rehearsed."""
        if self._cost is None:
            return 1.0
        return self._cost.window_s * self._num_intermediate_passes() / self._session.world.place.size

    def take_duration(self, seconds: float) -> None:
        """Takes into account that an intermediate validation took this long."""
        if self._cost is not None:
            self._cost.take_measurement(seconds, num_passes=self._last_passes or self._num_intermediate_passes())

    def _num_intermediate_passes(self) -> int:
        """Of the next one: with both kinds of windows if the target is near."""
        cases = self._intermediate_cases()
        shapes = [cases.shape(index) for index in range(len(cases))]
        window, quick = self._intermediate_window, self._quick(self._intermediate_window)
        num = num_passes(shapes, quick)
        is_near = self._last_dice >= self._session.plan.train.target_dice - _NEAR_TARGET
        return num + (num_passes(shapes, window) if is_near and quick != window else 0)

    def allot(self, *, stepped_s: float, validated_s: float) -> Allotment:
        """How the time budget is divided, based on what is now known about the final validation, which is sized to fit.

        Args:
            stepped_s: seconds of all sessions that went into training steps; a resumed run's share of the schedule
                must not start over.
            validated_s: those that went into intermediate validations.
        """
        train, now_s = self._session.plan.train, self._session.log.elapsed_s()
        windows_s, cases_s = left_for_validation(
            train.time_budget_s,
            now_s=now_s,
            stepped_s=stepped_s,
            report_s=self._report_s,
            validation_share=train.validation_share,
        )
        return allot(
            train.time_budget_s,
            now_s=now_s,
            trained_s=stepped_s + validated_s,
            validate_s=self._reserve_s(windows_s, cases_s),
            report_s=self._report_s,
            may_end_early=train.steps > 0 or train.target_dice > 0.0,
        )

    def _reserve_s(self, windows_s: float, cases_s: float) -> float:
        """Sizes the final validation to these seconds, see `left_for_validation`.

        Returns:
            Seconds to reserve for it: what it is expected to take, and a little more.
        """
        assert self._cost is not None, "rehearsed"
        margin = self._cost.margin
        if self._is_full:
            return self._cost.seconds(self._spec.window) * (1.0 + margin)
        windows_s /= 1.0 + margin
        if self._size is None and self._session.plan.train.target_dice == 0.0:
            # A target refers to the Dice with the planned windows.
            self._intermediate_window = self._cost.largest(self._spec.window, windows_s).window
        self._size = self._cost.largest(self._spec.window, windows_s, for_cases_s=cases_s / (1.0 + _LEAST_MARGIN))
        least_s = self._size.seconds * (1.0 + _LEAST_MARGIN)
        return max(least_s, min(cases_s, self._size.seconds * (1.0 + margin)))

    def differences(self) -> str:
        """How it is shorter than a full validation, in words with the times; "" if it is not."""
        if self._size is None or self._cost is None:
            return ""
        cheaper = self._size.differences(self._spec.window, self.num_cases)
        if not cheaper:
            return ""
        full_s = self._cost.seconds(self._spec.window)
        return f"{cheaper} (about {duration_text(self._size.seconds)} instead of {duration_text(full_s)})"

    def score(self, network: torch.nn.Module, pictures: SlicePictures) -> FinalScores:
        """The final validation: scores of the cases, of at least one, as far as the time budget allows.

        Args:
            network: the trained one.
            pictures: receives each case.

        Raises:
            StopAskedError: a stop was asked for.
        """
        session, budget_s = self._session, self._session.plan.train.time_budget_s
        planned_s = 0.0 if self._size is None or self._cost is None else self._size.seconds * (1.0 + self._cost.margin)
        left_s = left_at_end_s(budget_s, now_s=session.log.elapsed_s(), report_s=self._report_s, planned_s=planned_s)
        if self._cost is not None and not self._is_full:
            self._size = self._cost.largest(self._spec.window, left_s)
        if cheaper := self.differences():
            session.warn(
                "train: the final validation was shortened to meet the time budget: "
                f"{cheaper}; `voxelocity predict` and a full validation may give other scores: "
                f"{full_command(session.folder.path)}"
            )
        self._size, left_s, surface_s = session.world.from_leader(
            (self._size, left_s, 0.0 if self._cost is None else self._cost.surface_s)
        )
        until_s = session.clock() + left_s if budget_s else math.inf
        count, number = self.num_cases, self.num_cases if self._size is None else self._size.num_cases
        chosen = [i * count // number for i in range(number)]
        own, all_own = self._shared_out([self._held.shape(index) for index in chosen])
        with session.stage("validate"):
            parts = self._together(
                lambda: self._score(
                    network, [self._held.refs[chosen[i]] for i in own], until_s=until_s, surface_s=surface_s
                )
            )
        for _, kept in parts:
            pictures.extend(kept)
        pairs = _in_order([scored for scored, _ in parts], all_own)
        self._warn_of(pairs, number)
        return settle(pairs) if self._is_held_out else FinalScores(scores=[old for old, _ in pairs], keep_largest={})

    def _score(
        self, network: torch.nn.Module, refs: Sequence[VolumeRef], *, until_s: float, surface_s: float
    ) -> tuple[list[ScorePair], SlicePictures]:
        """Scores until the clock shows `until_s`; a case that is not done by then is left out."""
        session = self._session
        spec = self._spec if self._size is None else self._spec.model_copy(update={"window": self._size.window})
        has_surface = self._size is None or self._size.surface
        pictures, pairs = SlicePictures(), list[ScorePair]()

        def check() -> None:
            session.stop.check()
            if pairs and not self._is_full and session.clock() > until_s:
                raise _OutOfTimeError

        def may_measure_surface() -> bool:
            return self._is_full or (has_surface and session.clock() + surface_s <= until_s)

        predictor = Predictor(
            network, spec, spec.preparation(), device=session.device, on_windows=check, warn=session.warn
        )
        # Cases that were trained on prove nothing about new ones; a component of a region is one of several.
        may_remove = self._is_held_out and not spec.regions
        with suppress(_OutOfTimeError), WorkProgress(session.console, "final validation", clock=session.clock) as shown:
            for score, scan, prediction in score_cases(
                predictor, refs, spec, num_threads=session.num_threads, may_measure_surface=may_measure_surface
            ):
                again = largest_alone(score, scan, prediction, spec) if may_remove else score
                pairs.append((score, again))
                pictures.add(score, scan, prediction, ignored=spec.ignored)
                share = len(pairs) / len(refs)
                left = shown.left_text(share)
                shown.update(share, f"final validation: {len(pairs)} of {count_text(len(refs), 'case')}{left}")
                session.stop.check()
        return pairs, pictures

    def _warn_of(self, pairs: Sequence[ScorePair], number: int) -> None:
        """What the scores of `number` cases lack."""
        warn, scores = self._session.warn, [score for score, _ in pairs]
        if len(scores) < number:
            warn(
                f"train: the time budget ran out after {len(scores)} of {number} cases of the final validation; "
                "the others have no scores"
            )
        has_surface = self._size is None or self._size.surface
        without = [score.case_id for score in scores if not score.hd95_mm] if has_surface else []
        if without:
            warn(f"train: the time budget left no time for the surface distances of {listed(without)}")
        estimated = [f"{score.case_id} ({', '.join(score.hd95_estimated)})" for score in scores if score.hd95_estimated]
        if estimated:
            warn(
                f"train: in {count_text(len(estimated), 'case')} a predicted surface is many times as large as the "
                f"true one, so its distances were measured on only part of its voxels: {listed(estimated)}; see "
                "hd95_estimated in scores.json"
            )


def _in_order(parts: Sequence[Sequence[_T]], shares: Sequence[Sequence[int]]) -> list[_T]:
    """What each rank made of its share of the cases, in the order of the cases; a rank may lack the last of its own."""
    found = {
        index: result for part, own in zip(parts, shares, strict=True) for index, result in zip(own, part, strict=False)
    }
    return [found[index] for index in sorted(found)]


def full_command(folder: Path) -> str:
    """The command that validates a finished run in full."""
    return f"voxelocity train --resume {shlex.quote(str(folder))} --full-validation"
