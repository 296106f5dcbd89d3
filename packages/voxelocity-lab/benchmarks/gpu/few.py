"""A plugin of pytest that keeps a few of a test's parameters, spread over all of them: sanitizers slow kernels down."""

from __future__ import annotations

from typing import Any

NUM_KEPT = 4


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Deselects the others."""
    by_test: dict[str, list[Any]] = {}
    for item in items:
        by_test.setdefault(item.nodeid.split("[")[0], []).append(item)
    kept = {item.nodeid for group in by_test.values() for item in spread(group)}
    left_out = [item for item in items if item.nodeid not in kept]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid in kept]


def spread(group: list[Any]) -> list[Any]:
    """At most `NUM_KEPT`, the first and the last with them."""
    if len(group) <= NUM_KEPT:
        return group
    return [group[round(number * (len(group) - 1) / (NUM_KEPT - 1))] for number in range(NUM_KEPT)]
