"""Where the watched time went: what of a recording counts, and how it divides. Judges nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import fsum  # the built-in sum rounds otherwise from Python 3.12 on

from voxelocity_observe.core.time_parts import OTHER, TimeShare, part_label
from voxelocity_observe.diagnose.facts import PARTS, Facts, Pass, StackFacts, Step
from voxelocity_observe.diagnose.result import Ceiling

RESIDENT = "resident batch"
# With fewer steps, a single slow batch changes the verdict and the gain.
FEW_STEPS = 10
# Steps of one program under the same load differ by less than the first; beyond the second every figure is in doubt.
_SAME_LOAD = 1.25
CHANGED_LOAD = 1.5
_MIN_UNCHANGED_STEPS = 3
# Loaders that, without workers, make a batch only when asked for it.
_IN_OWN_THREAD = ("DataLoader",)

# Work that turns files into items; "sleep" stands for a source that answers late.
MAKING_KINDS = frozenset({"gunzip", "read", "decode", "resample", "transform", "collate", "sleep"})
LOOP_PARTS = ("wait", "other")
# Parts of a step in which the network computes.
COMPUTING = ("forward", "backward", "optimizer")
_PASSES = ("validation", "saving", "epoch start")


def counted_passes(facts: Facts) -> Sequence[Pass]:
    """Passes since the first counted step began; all of them where no step was counted."""
    if not facts.counted:
        return facts.passes
    start_s = facts.counted[0].start_s
    return [interval for interval in facts.passes if interval.start_s >= start_s]


def passes_of(facts: Facts, kind: str) -> Sequence[Pass]:
    """Counted passes of one kind."""
    return [interval for interval in counted_passes(facts) if interval.kind == kind]


def passes_s(facts: Facts, kind: str) -> float:
    """Seconds of the counted passes of one kind."""
    return fsum(interval.seconds for interval in passes_of(facts, kind))


def steps_s(facts: Facts) -> float:
    """Seconds of the counted steps."""
    return fsum(step.seconds for step in facts.counted)


def part_s(facts: Facts, *parts: str) -> float:
    """Seconds of these parts in the counted steps."""
    return fsum(step.parts.get(part, 0.0) for step in facts.counted for part in parts)


def between_s(facts: Facts) -> float:
    """Seconds between the first and the last counted step that belong to no step and no pass.

    A pass within the last step lies beyond that step's `start_s + seconds`, and is left out of both.
    """
    if not facts.counted:
        return 0.0
    first, last = facts.counted[0], facts.counted[-1]
    inside_s = fsum(step.seconds for step in facts.steps if first.start_s <= step.start_s <= last.start_s)
    inside_s += fsum(interval.seconds for interval in counted_passes(facts) if interval.start_s < last.start_s)
    return max(0.0, last.start_s + last.seconds - first.start_s - inside_s)


def watched_s(facts: Facts) -> float:
    """Seconds of all that counts: steps, passes, and the time between them."""
    return steps_s(facts) + fsum(interval.seconds for interval in counted_passes(facts)) + between_s(facts)


def counted_images(facts: Facts) -> int | None:
    """Images given to the network in the counted steps; None where those of a step are unknown, and without steps."""
    images = [step.num_images for step in facts.counted]
    known = [count for count in images if count is not None]
    return sum(known) if known and len(known) == len(images) else None


def step_s(facts: Facts) -> float | None:
    """Median seconds of a counted step; None where none was counted."""
    return statistics.median(step.seconds for step in facts.counted) if facts.counted else None


def experiment_s(facts: Facts, name: str) -> float | None:
    """Median seconds for one unit of an experiment; None where it was not done."""
    for experiment in facts.experiments:
        if experiment.name == name and experiment.seconds:
            return statistics.median(experiment.seconds)
    return None


def load_change(facts: Facts) -> float | None:
    """How many times as long an unchanged step took without its data during the experiments as when steps were counted.

    It is not 1 where the machine had more or less other work by then. None where the epoch ended before such steps.
    Data is left out: batches of unequal cost let a few steps wait for unequal times under any load. Medians on both
    sides, because a disturbed step is rare in both.
    """
    later = [step for step in facts.steps if step.phase == "unchanged"]
    if len(later) < _MIN_UNCHANGED_STEPS or not facts.counted:
        return None
    before_s, later_s = (statistics.median(_steps_without_data_s(facts, steps)) for steps in (facts.counted, later))
    return later_s / before_s if before_s > 0.0 else None


def at_counted_load(facts: Facts, seconds: float) -> float:
    """What an experiment's seconds would have been under the load of the counted steps."""
    change = load_change(facts) or 1.0
    return seconds if 1.0 / _SAME_LOAD <= change <= _SAME_LOAD else seconds / change


def resident_s(facts: Facts) -> float | None:
    """Median seconds of a step on a batch that was there already; None where that was not tried.

    Scaled to the load of the counted steps, as far as unchanged steps during the experiments show it, and never more
    than the counted steps took without waiting and copying. Where the training's own thread makes the batches, nothing
    runs while the network does, so the result is what the counted steps took without their data.
    """
    alone_s = experiment_s(facts, RESIDENT)
    if alone_s is None:
        seconds = [step.seconds for step in facts.steps if step.phase == "resident"]
        if not seconds:
            return None
        alone_s = statistics.median(seconds)
    beside_s = without_data_s(facts)
    if beside_s is None:
        return alone_s
    return beside_s if makes_alone(facts) else min(at_counted_load(facts, alone_s), beside_s)


def without_data_s(facts: Facts) -> float | None:
    """Mean seconds of the counted steps without waiting, copying and making data in the loop; None without steps.

    The mean, as of the step now: its difference from a median would be taken for data where other programs disturb.
    """
    if not facts.counted:
        return None
    return statistics.fmean(_steps_without_data_s(facts, facts.counted))


def _steps_without_data_s(facts: Facts, steps: Sequence[Step]) -> list[float]:
    share = _loop_share(facts, unseen=0.0)
    return [max(0.0, step.seconds - _data_s(step, share)) for step in steps]


def data_room_s(facts: Facts) -> float:
    """The most that any change of the data could save: what the counted steps took beyond steps without data.

    Measured by the step on resident batches. Without it: the time in which the network waited and batches were copied,
    and in which a loop without a loader made its own (all its time besides computing, where no stacks were taken).
    Where the training's own thread makes the batches, nothing runs while the network does, so only waiting can be
    saved: any other difference from the resident steps is noise of the machine.
    """
    alone_s = resident_s(facts)
    if alone_s is not None and not makes_alone(facts):
        return max(0.0, steps_s(facts) - len(facts.counted) * alone_s)
    share = _loop_share(facts, unseen=1.0)
    return fsum(_data_s(step, share) for step in facts.counted)


def makes_alone(facts: Facts) -> bool:
    """Whether the training's own thread makes its batches, in torch's loader without workers."""
    loaders = [loader for loader in facts.loaders if loader.is_for_training]
    return bool(loaders) and all(
        loader.num_workers == 0 and not loader.queue_workers and loader.kind in _IN_OWN_THREAD for loader in loaders
    )


def _loop_share(facts: Facts, *, unseen: float) -> float:
    """Share of "other" that makes data: 0 where a loader does, `unseen` where no stacks were taken."""
    if has_loader(facts):
        return 0.0
    return making_share(facts) if facts.stacks else unseen


def _data_s(step: Step, loop_share: float) -> float:
    """Seconds of a step that went to its data."""
    waited_s = step.parts.get("wait", 0.0) + step.parts.get("copy", 0.0)
    return waited_s + loop_share * step.parts.get("other", 0.0)


def has_loader(facts: Facts) -> bool:
    """Whether a known loader feeds the training."""
    return any(loader.is_for_training for loader in facts.loaders)


def making_places(facts: Facts) -> Sequence[StackFacts]:
    """Places where a program makes batches in its own steps, most often found first.

    Reading, unpacking and resampling are known by the libraries that do them. What the user's own lines do to a scan (a
    mean subtracted, a copy, a comparison) is not. Without a loader, such lines count if they stand between the first
    line that reads and the line that calls the network, or in a file that reads and never calls it.
    """
    inside = [stack for stack in facts.stacks if stack.part in LOOP_PARTS]
    lines = {} if has_loader(facts) else _own_lines(facts, inside)
    found = [
        stack for stack in inside if stack.kind in MAKING_KINDS or (stack.kind == "other" and _is_among(stack, lines))
    ]
    return sorted(found, key=lambda stack: -stack.num_samples)


def making_share(facts: Facts) -> float:
    """Share of a step's "wait" and "other" that makes batches, by samples; 0 where no stacks were taken."""
    whole = sum(stack.num_samples for stack in facts.stacks if stack.part in LOOP_PARTS)
    return sum(stack.num_samples for stack in making_places(facts)) / whole if whole else 0.0


def place(where: str) -> tuple[str, int]:
    """ "train.py:12" as file and line; line 0 where it has none."""
    file, _, number = where.rpartition(":")
    return (file, int(number)) if number.isdecimal() else (where, 0)


def _own_lines(facts: Facts, inside: Sequence[StackFacts]) -> dict[str, tuple[int, float]]:
    """By file, the lines that make batches: from the first that was found reading up to the network's call."""
    starts: dict[str, int] = {}
    for stack in inside:
        file, line = place(stack.where)
        if stack.kind in MAKING_KINDS and stack.kind != "sleep" and line > 0:
            starts[file] = min(line, starts.get(file, line))
    computing = [place(stack.where) for stack in facts.stacks if stack.part in COMPUTING]
    if not computing:
        # Where the making ends is unknown.
        return {}
    return {
        file: (start, min((line for name, line in computing if name == file and line > start), default=float("inf")))
        for file, start in starts.items()
    }


def _is_among(stack: StackFacts, lines: dict[str, tuple[int, float]]) -> bool:
    file, line = place(stack.where)
    start, stop = lines.get(file, (0, 0.0))
    return start <= line < stop


def split(facts: Facts) -> Sequence[TimeShare]:
    """All of the watched time by where it went: the parts of a step in order, what lies between steps, and the rest.

    Returns:
        One share per name that took any time; none where only epoch starts were seen. The seconds sum to the watched
        time: "other" holds what no part of a step names, and what the loop did besides its steps.
    """
    whole_s = watched_s(facts)
    has_worked = facts.counted or any(interval.kind != "epoch start" for interval in counted_passes(facts))
    if whole_s <= 0.0 or not has_worked:
        return ()
    seconds = {part_label(part): part_s(facts, part) for part in PARTS if part != OTHER}
    seconds |= {kind: passes_s(facts, kind) for kind in _PASSES}
    unnamed_s = steps_s(facts) - part_s(facts, *(part for part in PARTS if part != OTHER))
    seconds[OTHER] = unnamed_s + between_s(facts)
    return tuple(
        TimeShare(name=name, seconds=part, share=part / whole_s) for name, part in seconds.items() if abs(part) > 1e-12
    )


def ceiling(facts: Facts) -> Ceiling | None:
    """A step now and a step on batches that are already there; None where no step was counted.

    The step now is the mean, because the shares are of all steps: where batches come in bursts, most steps do not wait.
    Measured where the program was run on resident batches. Otherwise estimated from the counted steps without their
    waiting and copying, which does not show what workers take from the network on a shared CPU.
    """
    beside_s = without_data_s(facts)
    if beside_s is None:
        return None
    as_is_s = steps_s(facts) / len(facts.counted)
    alone_s = resident_s(facts)
    if alone_s is None:
        return Ceiling(step_s=as_is_s, resident_s=min(beside_s, as_is_s), basis="estimated")
    return Ceiling(step_s=as_is_s, resident_s=min(alone_s, as_is_s), basis="measured")
