"""Stretches of time as (start, stop) in nanoseconds: their union, what lies outside of others, and how they nest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[int, int]


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time without overlap, in order."""
    joined: list[Span] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        elif stop > start:
            joined.append((start, stop))
    return joined


def length(spans: Iterable[Span]) -> int:
    """Nanoseconds of spans that do not overlap."""
    return sum(stop - start for start, stop in spans)


def within(spans: Sequence[Span], limits: Sequence[Span]) -> list[Span]:
    """The time of `spans` that lies in `limits`; both without overlap and in order, as `union` gives them."""
    found: list[Span] = []
    at = 0
    for start, stop in limits:
        while at and spans[at - 1][1] > start:
            at -= 1
        while at < len(spans) and spans[at][1] <= start:
            at += 1
        while at < len(spans) and spans[at][0] < stop:
            found.append((max(start, spans[at][0]), min(stop, spans[at][1])))
            at += 1
    return found


def parents(spans: Sequence[Span]) -> list[int]:
    """For each span, the number of the innermost other span that holds it, -1 for none.

    Args:
        spans: sorted by start, the longer one first where two start together; they nest, as calls of one thread do.
    """
    found: list[int] = []
    open_now: list[int] = []
    for number, (start, stop) in enumerate(spans):
        while open_now and (spans[open_now[-1]][1] < stop or spans[open_now[-1]][1] <= start):
            open_now.pop()
        found.append(open_now[-1] if open_now else -1)
        open_now.append(number)
    return found


def innermost(spans: Sequence[Span], times: Sequence[int]) -> list[int]:
    """For each time, the number of the innermost span that holds it, -1 for none; `spans` as for `parents`."""
    found = [-1] * len(times)
    open_now: list[int] = []
    at = 0
    for number in sorted(range(len(times)), key=times.__getitem__):
        time = times[number]
        while at < len(spans) and spans[at][0] <= time:
            while open_now and spans[open_now[-1]][1] <= spans[at][0]:
                open_now.pop()
            open_now.append(at)
            at += 1
        while open_now and spans[open_now[-1]][1] <= time:
            open_now.pop()
        if open_now:
            found[number] = open_now[-1]
    return found
