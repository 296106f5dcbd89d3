"""The cost of watching, measured on the watched machine."""

from __future__ import annotations

import time
from typing import Any

from .ledger import Ledger

_REPEATS = 2000


def move_cost_s() -> float:
    """Seconds to change the part once, on the host."""
    ledger = Ledger()
    ledger.start()
    started_s = time.perf_counter()
    for _ in range(_REPEATS // 2):
        ledger.begin("forward")
        ledger.end()
    return (time.perf_counter() - started_s) / _REPEATS


def nested_call_cost_s(hooked: Any, original: Any) -> float:
    """Seconds that the hook adds to the call of a module within another.

    Args:
        hooked: the hook, in a thread that is within a part or is not watched.
        original: what it calls.
    """
    return max(0.0, _seconds_of(hooked) - _seconds_of(original))


def _seconds_of(call: Any) -> float:
    best = float("inf")
    for _ in range(3):
        started_s = time.perf_counter()
        for _ in range(_REPEATS):
            call(_Nothing)
        best = min(best, (time.perf_counter() - started_s) / _REPEATS)
    return best


class _Nothing:
    """The smallest possible module: its calls do nothing."""

    _compiled_call_impl = None

    @staticmethod
    def _call_impl() -> None:
        return None
