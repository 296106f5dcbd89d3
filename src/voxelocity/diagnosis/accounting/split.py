"""Where the watched time went, and how fast the program would be with its data always there."""

from __future__ import annotations

from collections.abc import Sequence

from voxelocity.core.time_parts import OTHER, TimeShare, part_label
from voxelocity.diagnosis.accounting.watched import (
    between_s,
    counted_passes,
    part_s,
    passes_s,
    resident_s,
    steps_s,
    watched_s,
    without_data_s,
)
from voxelocity.diagnosis.facts import PARTS, Facts
from voxelocity.diagnosis.result import Ceiling

_PASSES = ("validation", "saving", "epoch start")


def split(facts: Facts) -> Sequence[TimeShare]:
    """All of the watched time by where it went: the parts of a step in order, what lies between steps, and the rest.

    Returns:
        One share per name that took any time; none where only epoch starts were seen. The seconds sum to the watched
        time: "other" holds what no part of a step names, and what the loop did besides its steps.
    """
    whole_s = watched_s(facts)
    has_worked = facts.counted or any(one.kind != "epoch start" for one in counted_passes(facts))
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
