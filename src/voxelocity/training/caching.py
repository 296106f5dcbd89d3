"""The cases of a run, prepared as far as training needs them before it begins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rich.console import Console

from voxelocity.core.cases import Split
from voxelocity.core.errors import DatasetError, InputError, ScanError
from voxelocity.data.pipeline import CachingFacts, PreparedCases, RankDraws
from voxelocity.observe import Clock, EventLog
from voxelocity.planning import Planned
from voxelocity.training.cache_progress import CacheProgress
from voxelocity.training.stage import Stage
from voxelocity.training.stop import StopRequest

SKIPPED = "skipped"
"""The event of a case that was left out; resumed runs leave it out too."""


@dataclass(frozen=True, kw_only=True)
class FilledCases:
    """The prepared cases of a run.

    Attributes:
        training: the training cases.
        held: the cases of the final validation.
        on_the_way: those of `held` that intermediate validations use.
        load_s: wall-clock seconds to decode and prepare one case with all threads; None if all were found.
    """

    training: PreparedCases
    held: PreparedCases
    on_the_way: PreparedCases
    load_s: float | None


@dataclass(kw_only=True)
class Caching:
    """Fills the cache of a run.

    Attributes:
        planned: of the run.
        label_values: file values in order of class index.
        class_names: in the same order.
        first_step: the next step of the training.
        skipped: ids of cases that earlier sessions left out.
        skip_broken: leave out cases that cannot be used, instead of ending the run.
    """

    planned: Planned
    label_values: Sequence[int]
    class_names: Sequence[str]
    first_step: int
    skipped: Collection[str]
    skip_broken: bool
    log: EventLog
    console: Console
    clock: Clock
    stop: StopRequest
    warn: Callable[[str], None]

    def fill(self) -> FilledCases:
        """The prepared cases by purpose, with the cache filled as far as training needs it.

        Raises:
            StopAskedError: a stop was asked for.
            ScanError: a case cannot be used, and none may be left out.
            DatasetError: no label holds anything but background, or too few cases are left.
            InputError: cases may be left out, but are not all prepared before the training.
        """
        cache = self.planned.plan.data.cache
        if self.skip_broken and not cache.holds_every_case:
            raise InputError(
                f"train: --skip-broken needs all cases prepared before training, which the tier {cache.tier} does not "
                "do; add --set data.cache.tier=disk, or correct the data"
            )
        both, num_training = self._prepared(self.skipped)
        first = self._needed_first(both, both.part(range(num_training)))
        broken: dict[str, ScanError] = {}
        load_s = None
        with CacheProgress(self.console, cache.tier, len(first)) as progress, Stage("cache", self.log, self.clock):
            if len(first):
                facts = first.fill(
                    num_threads=self.planned.machine.num_cpus,
                    on_case=progress.advance,
                    should_stop=self.stop.__bool__,
                    on_broken=broken.__setitem__ if self.skip_broken else None,
                )
                progress.finish(facts)
                load_s = facts.seconds / facts.num_prepared if facts.num_prepared else None
        self.stop.check()
        if broken:
            self._tell_of_broken(broken, len(both))
            both, num_training = self._prepared({*self.skipped, *broken})
        if len(first):
            self._check_foreground(facts, len(first) - len(broken), len(both))
        held = range(num_training, len(both)) if self._split.held_out else range(num_training)
        return FilledCases(
            training=both.part(range(num_training)),
            held=both.part(held),
            on_the_way=both.part(self._judged_on_the_way(held)),
            load_s=load_s,
        )

    def held(self) -> PreparedCases:
        """The cases of the final validation, without filling the cache."""
        both, num_training = self._prepared(self.skipped)
        return both.part(range(num_training, len(both)) if self._split.held_out else range(num_training))

    @property
    def _split(self) -> Split:
        return self.planned.cases.split(self.planned.fold)

    def _prepared(self, skipped: Collection[str]) -> tuple[PreparedCases, int]:
        """The training cases followed by the held-out ones, without those left out; and the number of training cases.

        Raises:
            DatasetError: none are left to train on or to judge by.
        """
        split = self._split
        training = [ref for ref in split.training if ref.case_id not in skipped]
        held = [ref for ref in split.validation if ref.case_id not in skipped] if split.held_out else training
        if not training or not held:
            what = "train on" if not training else "judge by"
            raise DatasetError(
                f"train: in {self.planned.cases.root} no case is left to {what}, because {len(skipped)} cannot be "
                "used; correct the data"
            )
        cases = PreparedCases(
            [*training, *(held if split.held_out else ())],
            label_values=self.label_values,
            class_names=self.class_names,
            prepare=self.planned.plan.data.prepare,
            cache=self.planned.plan.data.cache,
            warn=self.warn,
        )
        return cases, len(training)

    def _needed_first(self, both: PreparedCases, training_cases: PreparedCases) -> PreparedCases:
        """The cases to cache before training begins: all of them, the window of a rotating cache, or none."""
        data = self.planned.plan.data
        if data.cache.holds_every_case:
            return both
        if data.cache.tier == "none":
            return both.part(())
        draws = RankDraws(training_cases, data, seed=self.planned.plan.seed)
        return training_cases.part(draws.cases_from(self.first_step))

    def _tell_of_broken(self, broken: dict[str, ScanError], num_cases: int) -> None:
        for case_id, error in broken.items():
            self.log.write(SKIPPED, case_id=case_id)
            self.warn(f"train: case '{case_id}' is left out, one of {num_cases}: {error}")

    def _check_foreground(self, facts: CachingFacts, num_filled: int, num_cases: int) -> None:
        if facts.num_with_foreground > 0:
            return
        where = f"of {self.planned.cases.root}"
        if num_filled == num_cases:
            raise DatasetError(
                f"train: none of the {num_cases} labels {where} holds anything but background, so nothing can be "
                "learned; are these the right label files?"
            )
        self.warn(
            f"train: none of the first {num_filled} labels {where} that the rotating cache holds has anything but "
            "background, so nothing is learned before others replace them; are these the right label files?"
        )

    def _judged_on_the_way(self, indices: Sequence[int]) -> Sequence[int]:
        """Some of the cases, evenly chosen, so that intermediate validations stay quick; always the same ones."""
        most = self.planned.plan.train.validation_cases or len(indices)
        if len(indices) <= most:
            return indices
        return [indices[i * len(indices) // most] for i in range(most)]
