"""The cases of a run, prepared as far as training needs them before it begins."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from rich.console import Console

from voxelocity.data.pipeline import CachingFacts, PreparedCases, RankDraws
from voxelocity.parallel import even_shares
from voxelocity.planning import absent_classes
from voxelocity.training.ahead import Compiling
from voxelocity.training.session import Session
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.errors import DatasetError, InputError, ScanError
from voxelocity_observe.core.progress_bar import WorkProgress
from voxelocity_observe.core.quantities import bytes_text, count_text, duration_text

SKIPPED = "skipped"
"""The event of a case that was left out; resumed runs leave it out too."""


@dataclass(frozen=True, kw_only=True)
class FilledCases:
    """The prepared cases of a run, with what this rank found while it prepared them.

    Attributes:
        training: the training cases.
        held: the cases of the final validation.
        num_cases: of the run.
        num_first: of them, those that this rank needs before training.
        classes: indices of the classes that each of these has, without the background, by case id.
        broken: those that cannot be used.
        load_s: wall-clock seconds to decode and prepare one case with all threads; None if all were found.
    """

    training: PreparedCases
    held: PreparedCases
    num_cases: int
    num_first: int
    classes: Mapping[str, tuple[int, ...]]
    broken: Mapping[str, ScanError]
    load_s: float | None

    def intermediate(self, most: int) -> PreparedCases:
        """Those of the final validation that intermediate ones use, always the same; `most` of them, or all for 0."""
        # Evenly chosen, so that intermediate validations stay quick.
        count = len(self.held)
        chosen = min(count, most or count)
        return self.held.part([i * count // chosen for i in range(chosen)])


def fill_caches(session: Session, *, first_step: int, skipped: Collection[str], skip_broken: bool) -> FilledCases:
    """The prepared cases of a run by purpose, with the cache filled as far as training needs it.

    Args:
        session: of the run.
        first_step: the next step of the training.
        skipped: ids of cases that earlier sessions left out.
        skip_broken: leave out cases that cannot be used, instead of ending the run.

    Raises:
        StopAskedError: a stop was asked for.
        ScanError: a case cannot be used, and none may be left out.
        DatasetError: no label holds anything but background, or too few cases are left.
        InputError: cases may be left out, but are not all prepared before the training.
    """
    world = session.world
    filled = world.run_on_all(
        lambda: _fill_own(session, first_step=first_step, skipped=skipped, skip_broken=skip_broken)
    )
    # Ranks may prepare different cases.
    broken = {case_id: error for of_rank in world.gather(filled.broken) for case_id, error in of_rank.items()}
    classes = {case_id: found for of_rank in world.gather(filled.classes) for case_id, found in of_rank.items()}
    for case_id, error in broken.items():
        session.log.write(SKIPPED, case_id=case_id)
        session.warn(f"train: case '{case_id}' is left out, one of {filled.num_cases}: {error}")
    training, held = filled.training, filled.held
    if broken:
        # Of the same cache: another one in this process's memory would be empty.
        training, held = (_without(cases, broken) for cases in (training, held))
        _check_left(session, len(training), len(held), num_skipped=len({*skipped, *broken}))
    if filled.num_first:
        _check_foreground(session, classes, filled.num_cases - len(broken))
    if len(classes) + len(broken) == filled.num_cases:
        for text in absent_classes(session.planned.cases, session.planned.fold, classes):
            session.warn(f"train: {text}")
    return replace(filled, training=training, held=held)


def _fill_own(session: Session, *, first_step: int, skipped: Collection[str], skip_broken: bool) -> FilledCases:
    """Fills the cache with what this rank needs before training. Arguments and errors as `fill_caches`."""
    cache, place = session.plan.data.cache, session.world.place
    if skip_broken and not cache.holds_every_case:
        raise InputError(
            f"train: --skip-broken needs all cases prepared before training, which the tier {cache.tier} does not "
            "do; add --set data.cache.tier=disk, or correct the data"
        )
    training, held, both = prepared_cases(session, skipped)
    compiling = Compiling(session)
    first = _needed_first(session, both, training, first_step=first_step)
    broken: dict[str, ScanError] = {}
    load_s, classes = None, dict[str, tuple[int, ...]]()
    with CacheProgress(session.console, cache.tier, len(first)) as progress, session.stage("cache"):
        if len(first):
            facts = first.fill(
                num_threads=session.num_threads,
                on_case=progress.advance,
                should_stop=session.stop.__bool__,
                on_broken=broken.__setitem__ if skip_broken else None,
                on_spec=compiling.begin,
                first=place.local_rank * len(first) // place.local_size,
            )
            if not session.stop:
                progress.finish(facts)
            load_s = facts.seconds / facts.num_prepared if facts.num_prepared else None
            classes = dict(facts.classes)
    session.stop.check()
    return FilledCases(
        training=training,
        held=held,
        num_cases=len(both),
        num_first=len(first),
        classes=classes,
        broken=broken,
        load_s=load_s,
    )


def prepared_cases(session: Session, skipped: Collection[str]) -> tuple[PreparedCases, PreparedCases, PreparedCases]:
    """The training cases, the held-out ones (the training cases if none are), and both; none of them is skipped.

    Raises:
        DatasetError: none are left to train on or to judge by.
    """
    planned = session.planned
    split = planned.cases.split(planned.fold)
    training = [ref for ref in split.training if ref.case_id not in skipped]
    held = [ref for ref in split.validation if ref.case_id not in skipped] if split.held_out else training
    _check_left(session, len(training), len(held), num_skipped=len(skipped))
    both = PreparedCases(
        [*training, *(held if split.held_out else ())],
        label_values=planned.cases.stored_values,
        class_names=planned.cases.class_names,
        ignored=planned.cases.ignored,
        prepare=session.plan.data.prepare,
        cache=session.plan.data.cache,
        warn=session.warn,
    )
    of_training = range(len(training))
    of_held = range(len(training), len(both)) if split.held_out else of_training
    return both.part(of_training), both.part(of_held), both


def _without(cases: PreparedCases, case_ids: Collection[str]) -> PreparedCases:
    return cases.part([index for index, ref in enumerate(cases.refs) if ref.case_id not in case_ids])


def _check_left(session: Session, num_training: int, num_held: int, *, num_skipped: int) -> None:
    """Returns if there are cases to train on and to judge by.

    Raises:
        DatasetError: there are none.
    """
    if num_training and num_held:
        return
    what = "judge by" if num_training else "train on"
    raise DatasetError(
        f"train: in {session.planned.cases.root} no case is left to {what}, because {num_skipped} cannot be used; "
        "correct the data"
    )


def _needed_first(session: Session, both: PreparedCases, training: PreparedCases, *, first_step: int) -> PreparedCases:
    """The cases to cache before training begins: all of them, this rank's part, a rotating cache's window, or none."""
    data, has_parts = session.plan.data, session.plan.data.cache.num_parts > 1 and not session.world.is_alone
    if data.cache.holds_every_case and not has_parts:
        return both
    if data.cache.tier == "none":
        return both.part(())
    place, batch_size = session.world.place, data.batch_size
    draws = RankDraws(
        training,
        data,
        seed=session.plan.seed,
        rank=place.rank,
        world_size=place.size,
        shares=even_shares(batch_size, place.size),
    )
    return training.part(draws.cases_from(first_step))


def _check_foreground(session: Session, classes: Mapping[str, tuple[int, ...]], num_cases: int) -> None:
    """Returns if a label holds a class, and warns where not all of them have been looked at.

    Args:
        session: of the run.
        classes: of each prepared case.
        num_cases: that can be used.

    Raises:
        DatasetError: none does.
    """
    if any(classes.values()):
        return
    where = f"of {session.planned.cases.root}"
    if len(classes) == num_cases:
        raise DatasetError(
            f"train: none of the {num_cases} labels {where} contains anything but background, so there is nothing to "
            "train on; are these the right label files?"
        )
    session.warn(
        f"train: none of the first {len(classes)} labels {where} in the rotating cache contains anything but "
        "background, so training cannot start until others replace them; are these the right label files?"
    )


class CacheProgress(WorkProgress):
    """Cases, prepared bytes per second and time left; at the end, one closing line."""

    def __init__(self, console: Console, tier: str, num_cases: int, *, clock: Clock = system_clock) -> None:
        super().__init__(console, f"preparing {count_text(num_cases, 'case')}", clock=clock)
        self._tier, self._num_cases = tier, num_cases
        self._num_done = self._num_bytes = 0

    def advance(self, case_id: str, num_bytes: int) -> None:
        """One case is ready."""
        self._num_done += 1
        self._num_bytes += num_bytes
        share = self._num_done / self._num_cases
        rate = f"{bytes_text(self._num_bytes / max(self.elapsed_s, 1e-9))}/s"
        self.update(
            share, f"prepared {self._num_done} of {count_text(self._num_cases, 'case')}  {rate}{self.left_text(share)}"
        )

    def finish(self, facts: CachingFacts) -> None:
        """Prints what was done."""
        found = f", {facts.num_found} of them already cached" if facts.num_found else ""
        num_cases = facts.num_found + facts.num_prepared
        where = f"in the {self._tier} cache" if facts.num_kept else "not kept"
        part = f", {facts.num_kept} of the cases" if 0 < facts.num_kept < num_cases else ""
        has_speed = facts.num_found == 0 and facts.seconds >= 1.0
        speed = f", {bytes_text(facts.num_bytes / facts.seconds)}/s" if has_speed else ""
        self.console.print(
            f"prepared {count_text(num_cases, 'case')} in {duration_text(facts.seconds)}{found}: "
            f"{bytes_text(facts.num_bytes)} {where}{part}{speed}",
            highlight=False,
            soft_wrap=True,
        )
