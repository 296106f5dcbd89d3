"""How fast a stream of batches flows, whatever makes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from voxelocity.observe import Clock, system_clock

OpenStream = Callable[[], AbstractContextManager[Iterator[Any]]]
"""Starts an endless stream of batches; leaving the block ends its threads and processes."""


def batches_per_s(open_stream: OpenStream, num_batches: int, *, clock: Clock = system_clock) -> float:
    """Rate at which a consumer that does nothing else gets batches. The first is not counted."""
    with open_stream() as stream:
        next(stream)
        start_s = clock()
        for _ in range(num_batches):
            next(stream)
        return num_batches / (clock() - start_s)


@contextlib.contextmanager
def passes_of(loader: Any) -> Iterator[Iterator[Any]]:
    """The batches of a torch-like loader. Its processes and threads end with the block, not some time later."""
    iterator = iter(loader)
    try:
        yield iterator
    finally:
        end = getattr(iterator, "close", None) or getattr(iterator, "_shutdown_workers", None)
        if end is not None:
            end()


def fastest(candidates: Mapping[str, OpenStream], num_batches: int) -> tuple[str, OpenStream]:
    """The quickest of a peer's settings, tried once each, so that a peer is shown at its best on this machine.

    Returns:
        What was found, in words for the record, and the stream.
    """
    rates = {name: batches_per_s(stream, num_batches) for name, stream in candidates.items()}
    best = max(rates, key=rates.__getitem__)
    others = ", ".join(f"{name}: {rate:.3g}" for name, rate in rates.items() if name != best)
    return f"{best}" + (f" (batches/s when tried: {rates[best]:.3g}; {others})" if others else ""), candidates[best]
