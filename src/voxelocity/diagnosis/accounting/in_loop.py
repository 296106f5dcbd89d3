"""Which part of a loop without a loader makes its batches, judged by where the training thread was found.

Reading, unpacking and resampling are known by the libraries that do them. What the user's own lines do to a scan (a
mean subtracted, a copy, a comparison) is not. Such lines count if they stand between the first line that reads and
the line that calls the network, or in a file that reads and never calls it.
"""

from __future__ import annotations

from collections.abc import Sequence

from voxelocity.diagnosis.facts import Facts, StackFacts

# Work that turns files into items; "sleep" stands for a source that answers late.
MAKING_KINDS = frozenset({"gunzip", "read", "decode", "resample", "transform", "collate", "sleep"})
LOOP_PARTS = ("wait", "other")
_COMPUTING = ("forward", "backward", "optimizer")


def has_loader(facts: Facts) -> bool:
    """Whether a known loader feeds the training."""
    return any(loader.is_for_training for loader in facts.loaders)


def making_places(facts: Facts) -> Sequence[StackFacts]:
    """Places where a program makes batches in its own steps, most often found first."""
    inside = [one for one in facts.stacks if one.part in LOOP_PARTS]
    lines = {} if has_loader(facts) else _own_lines(facts, inside)
    found = [one for one in inside if one.kind in MAKING_KINDS or (one.kind == "other" and _is_among(one, lines))]
    return sorted(found, key=lambda one: -one.num_samples)


def making_share(facts: Facts) -> float:
    """Share of a step's "wait" and "other" that makes batches, by samples; 0 where no stacks were taken."""
    whole = sum(one.num_samples for one in facts.stacks if one.part in LOOP_PARTS)
    return sum(one.num_samples for one in making_places(facts)) / whole if whole else 0.0


def place(where: str) -> tuple[str, int]:
    """ "train.py:12" as file and line; line 0 where it has none."""
    file, _, number = where.rpartition(":")
    return (file, int(number)) if number.isdecimal() else (where, 0)


def _own_lines(facts: Facts, inside: Sequence[StackFacts]) -> dict[str, tuple[int, float]]:
    """By file, the lines that make batches: from the first that was found reading up to the network's call."""
    starts: dict[str, int] = {}
    for one in inside:
        file, line = place(one.where)
        if one.kind in MAKING_KINDS and one.kind != "sleep" and line > 0:
            starts[file] = min(line, starts.get(file, line))
    computing = [place(one.where) for one in facts.stacks if one.part in _COMPUTING]
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
