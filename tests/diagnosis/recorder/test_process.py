"""Who a process is: how many ranks of its training share the machine."""

from __future__ import annotations

import pytest

from voxelocity.diagnosis.recorder.process import num_local_ranks


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "8", "MASTER_ADDR": "node-3"}, 2),
        ({"WORLD_SIZE": "4", "MASTER_ADDR": "localhost"}, 4),
        ({"WORLD_SIZE": "4", "MASTER_ADDR": "node-3"}, 1),
        ({"LOCAL_WORLD_SIZE": "", "WORLD_SIZE": "many", "MASTER_ADDR": "127.0.0.1"}, 1),
    ],
)
def test_ranks_of_this_machine_are_told_by_torchrun_or_by_where_they_meet(
    variables: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert num_local_ranks() == expected
