"""How the training batches are made, and how long a step would take if they were made another way.

The model, in seconds: a step takes the longest of three times: its computing, the making of its batches divided by the
workers, and the CPU time of both divided by the cores. If the training's own thread makes the batches, their time adds
to the computing. A prediction is never below the step on resident batches, if that was measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from voxelocity_observe.diagnose.accounting import (
    MAKING_KINDS,
    at_counted_load,
    data_room_s,
    experiment_s,
    making_places,
    making_share,
    part_s,
    passes_of,
    passes_s,
    resident_s,
    steps_s,
)
from voxelocity_observe.diagnose.facts import OWN_FEED, Facts, FetchFacts, LoaderFacts, StackFacts, TransformFacts
from voxelocity_observe.diagnose.rules.seen import (
    compute_cores,
    num_cores,
    num_samples,
    part_share_of,
    stacks_in,
    waits_for_data,
)

# Loaders whose workers are threads of the program itself.
THREADED = ("ThreadDataLoader", "ThreadBuffer")

# Another worker is only worth its memory if it shortens the step by this share.
_WORKER_GAIN = 0.05
# Share of a step for which a worker may be busy and still make up for a late batch.
_BUSY_SHARE = 0.8


@dataclass(frozen=True, kw_only=True)
class LoaderModel:
    """One step's batches, as a mean over all that were made.

    Attributes:
        loader: the training loader.
        num_steps: counted steps.
        num_workers: workers that make batches, 0 for the training's own thread.
        num_batches, num_items: made in the whole recording.
        item_s, collate_s: seconds to make a step's batches, for one worker with its own core.
        cpu_s: CPU time of that.
        batch_bytes: bytes of one batch.
        step_s: mean of the counted steps.
        wait_s: the part of it spent waiting for data.
        compute_s: seconds of a step without data.
        compute_cores: cores that computing keeps busy.
        cores: cores that the program may use.
        room_s: the most seconds that can be saved, over all counted steps.
        first_batches_s: what counted epoch starts took once their workers ran, over all of them.
    """

    loader: LoaderFacts
    num_steps: int
    num_workers: int
    num_batches: int
    num_items: int
    item_s: float
    collate_s: float
    cpu_s: float
    batch_bytes: int
    step_s: float
    wait_s: float
    compute_s: float
    compute_cores: int
    cores: int
    room_s: float
    first_batches_s: float = 0.0

    @property
    def made_s(self) -> float:
        """Seconds to make a step's batches with one worker."""
        return self.item_s + self.collate_s

    def step_with(self, num_workers: int) -> float:
        """Seconds of a step with this many workers."""
        if num_workers == 0:
            return self.compute_s + self.made_s
        busy_s = self.compute_s * self.compute_cores + self.cpu_s
        return max(self.compute_s, self.made_s / num_workers, busy_s / self.cores)

    def best_workers(self) -> int:
        """The fewest workers that gain nearly all that workers can and have time to spare, at most one per core.

        Workers that are only just fast enough stall the network whenever they get into each other's way.
        """
        best_s = min(self.step_with(count) for count in range(1, self.cores + 1))
        enough = (
            count
            for count in range(1, self.cores + 1)
            if self.step_with(count) <= best_s * (1.0 + _WORKER_GAIN)
            and self.made_s / count <= _BUSY_SHARE * self.step_with(count)
        )
        return next(enough, self.cores)

    def saves_s(self, num_workers: int | None = None) -> float:
        """Seconds that the counted steps would save with this many workers, at most `room_s`."""
        count = self.num_workers if num_workers is None else num_workers
        return min(self.room_s, max(0.0, self.num_steps * (self.step_s - self.step_with(count))))

    def shortened(self, share: float) -> LoaderModel:
        """The same without this share of the making, for both items and collating."""
        left = 1.0 - share
        return replace(self, item_s=self.item_s * left, collate_s=self.collate_s * left, cpu_s=self.cpu_s * left)

    def gain_s(self, share: float) -> float:
        """Seconds that the counted steps and their epochs' first batches would save without this share of the making.

        Scales the measured step by the ratio of two predictions, with and without the share, so that a model error in
        both cancels.
        """
        now_s = max(self.step_with(self.num_workers), 1e-12)
        then_s = self.shortened(share).step_with(self.num_workers)
        of_steps_s = self.num_steps * self.step_s * max(0.0, 1.0 - then_s / now_s)
        return min(self.room_s, of_steps_s) + share * self.first_batches_s


def training_loader(facts: Facts) -> LoaderFacts | None:
    """The loader that feeds the training; if there are several, the one that made the most batches."""
    made = {loader.key: 0 for loader in facts.loaders if loader.is_for_training}
    for fetch in facts.fetches:
        if fetch.key in made:
            made[fetch.key] += fetch.num_batches
    loaders = [loader for loader in facts.loaders if loader.is_for_training]
    return max(loaders, key=lambda loader: made[loader.key], default=None)


def training_transforms(facts: Facts) -> Sequence[TransformFacts]:
    """Transforms that made the training's items, in the order they were first met; all that made none for a known
    loader where nothing else is known."""
    loader = training_loader(facts)
    own = [transform for transform in facts.transforms if loader is not None and transform.loader == loader.key]
    found = own or [transform for transform in facts.transforms if transform.loader in (None, -1)]
    return sorted(found, key=lambda transform: transform.order)


def is_own_run(facts: Facts) -> bool:
    """Whether it is a run of `voxelocity train`, which is changed by its plan and not by code."""
    loader = training_loader(facts)
    return loader is not None and loader.kind == OWN_FEED


def fit_loader_model(facts: Facts) -> LoaderModel | None:
    """How the training batches are made; None if no step was counted or nothing is known about the making."""
    loader = training_loader(facts)
    steps = facts.counted
    if loader is None or not steps or loader.queue_workers:
        # The workers of a queue make subjects, and its loader makes patches: no figure covers both.
        return None
    fetches = [fetch for fetch in facts.fetches if fetch.key == loader.key and fetch.num_batches > 0]
    num_batches = sum(fetch.num_batches for fetch in fetches)
    if num_batches == 0:
        return None
    per_step = max(1.0, _batches_per_step(facts))
    item_s, collate_s, cpu_s = _alone_s(facts, loader, fetches, num_batches)
    step_s, wait_s = steps_s(facts) / len(steps), part_s(facts, "wait") / len(steps)
    alone_s = resident_s(facts)
    starts_s = passes_s(facts, "epoch start")
    return LoaderModel(
        loader=loader,
        num_steps=len(steps),
        num_workers=loader.num_workers,
        num_batches=num_batches,
        num_items=sum(fetch.num_items for fetch in fetches),
        item_s=item_s * per_step,
        collate_s=collate_s * per_step,
        cpu_s=cpu_s * per_step,
        batch_bytes=max(fetch.batch_bytes for fetch in fetches),
        step_s=step_s,
        wait_s=wait_s,
        compute_s=max(0.0, step_s - wait_s) if alone_s is None else min(alone_s, step_s),
        compute_cores=compute_cores(facts),
        cores=num_cores(facts),
        room_s=data_room_s(facts),
        first_batches_s=max(0.0, starts_s - workers_started_s(facts, loader)),
    )


def _batches_per_step(facts: Facts) -> float:
    """Batches of a step; its calls of the network where they are not known, though each may be of a single sample."""
    optimizer = facts.optimizer
    return 1.0 if optimizer is None else optimizer.batches_per_step or optimizer.forwards_per_step


def workers_started_s(facts: Facts, loader: LoaderFacts) -> float:
    """Seconds that epochs waited for their workers to start, until the first of them began its first batch.

    If the workers did not report this, the whole epoch starts count, first batches included. Persistent workers cost 0.
    """
    if loader.persistent_workers:
        return 0.0
    starts = passes_of(facts, "epoch start")
    told = [
        start_s
        for fetch in facts.fetches
        if fetch.key == loader.key and fetch.worker == 0
        for start_s in fetch.starts_s
    ]
    if not told:
        return sum(start.seconds for start in starts)
    return sum(min(start.seconds, statistics.median(told)) for start in starts)


def _alone_s(
    facts: Facts, loader: LoaderFacts, fetches: Sequence[FetchFacts], num_batches: int
) -> tuple[float, float, float]:
    """Seconds in the data set and in collating, and CPU seconds of both, for one batch whose maker has its own core.

    Workers that share cores take longer by the clock. The experiment shows what they would take alone; without it, the
    CPU time does, if there are more workers than cores.
    """
    item_s = sum(fetch.item_s for fetch in fetches) / num_batches
    collate_s = sum(fetch.collate_s for fetch in fetches) / num_batches
    item_cpu_s = sum(fetch.item_cpu_s for fetch in fetches) / num_batches
    collate_cpu_s = sum(fetch.collate_cpu_s for fetch in fetches) / num_batches
    alone_s = experiment_s(facts, "items")
    if alone_s is not None and loader.num_workers > 0:
        num_items = sum(fetch.num_items for fetch in fetches) / num_batches
        item_s = min(item_s, at_counted_load(facts, alone_s) * num_items)
        collate_s = min(collate_s, at_counted_load(facts, experiment_s(facts, "collate") or collate_s))
    elif loader.num_workers > num_cores(facts):
        item_s, collate_s = item_cpu_s, collate_cpu_s
    cpu_s = item_cpu_s + collate_cpu_s
    if loader.num_workers > num_cores(facts):
        # Workers that evict each other from the CPU caches need more CPU time than one alone, and fewer need less.
        cpu_s = min(cpu_s, statistics.fmean((cpu_s, item_s + collate_s)))
    return item_s, collate_s, cpu_s


def making_stacks(facts: Facts) -> Sequence[StackFacts]:
    """Places where batches are made, in workers if there are any."""
    return stacks_in(facts, ("worker",), MAKING_KINDS) or making_places(facts)


def kind_share(facts: Facts, kind: str) -> float:
    """Share of one kind of work in the making of batches, by samples; 0 if no stacks were taken."""
    stacks = making_stacks(facts)
    return num_samples([stack for stack in stacks if stack.kind == kind]) / max(1, num_samples(stacks))


def making_holds_up(facts: Facts) -> bool:
    """Whether the steps wait for batches to be made, in a loader or in the loop."""
    if training_loader(facts) is not None:
        return waits_for_data(facts)
    return bool(facts.counted) and bool(making_places(facts)) and part_share_of(facts, "other", "wait") > 0.03


def saved_s(facts: Facts, share: float) -> float:
    """Seconds that would be saved without this share of the making."""
    made = fit_loader_model(facts)
    if made is not None:
        return made.gain_s(share)
    return min(data_room_s(facts), share * making_share(facts) * part_s(facts, "wait", "other"))


def transform_share(facts: Facts, transforms: Sequence[TransformFacts]) -> float:
    """Share of these transforms in the making of items."""
    loader = training_loader(facts)
    fetches = [fetch for fetch in facts.fetches if loader is not None and fetch.key == loader.key]
    whole_s = sum(fetch.counted_s or fetch.item_s + fetch.collate_s for fetch in fetches)
    whole_s = max(whole_s, sum(transform.self_s for transform in training_transforms(facts)))
    return sum(transform.self_s for transform in transforms) / whole_s if whole_s > 0.0 else 0.0
