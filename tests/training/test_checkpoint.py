from __future__ import annotations

import pickle

import pytest
import torch

from voxelocity.core.errors import CheckpointError
from voxelocity.training.checkpoint import Checkpoints

LIKE = {"loop": {"step": 0}, "training": {"network": {"weight": torch.zeros(2)}, "optimizer": {}, "average": None}}
GOOD = {
    "loop": {"step": 2},
    "training": {"network": {"weight": torch.ones(2)}, "optimizer": {"state": {0: torch.ones(2)}}, "average": None},
}


@pytest.fixture
def checkpoints(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(2, GOOD)
    return checkpoints


def test_no_checkpoint_is_no_state_and_no_step(tmp_path):
    assert Checkpoints(tmp_path / "none", keep=2).load_latest(like=LIKE) is None
    assert Checkpoints(tmp_path / "none", keep=2).latest_step() == 0


def test_the_newest_is_loaded(checkpoints, tmp_path):
    checkpoints.save(30, {**GOOD, "loop": {"step": 30}})
    state, path, damaged = checkpoints.load_latest(like=LIKE)
    assert (state["loop"]["step"], path.name, damaged) == (30, "step_000000030.pt", [])
    assert checkpoints.latest_step() == 30


@pytest.mark.parametrize(
    "state",
    [
        {"a": 1},
        3,
        {**GOOD, "loop": {}},
        {**GOOD, "loop": 3},
        {**GOOD, "loop": {"step": 4, "strange": 1}},
        {**GOOD, "training": {**GOOD["training"], "network": {"weight": torch.ones(3)}}},
        {**GOOD, "training": {**GOOD["training"], "network": {"weight": 3}}},
        {**GOOD, "training": {**GOOD["training"], "average": {"weight": torch.ones(2)}}},
    ],
)
def test_a_state_of_another_form_is_passed_over(checkpoints, tmp_path, state):
    newest = checkpoints.save(4, state)
    loaded, path, damaged = checkpoints.load_latest(like=LIKE)
    assert (loaded["loop"]["step"], path.name, damaged) == (2, "step_000000002.pt", [newest])


@pytest.mark.parametrize("content", [b"", b".", b"text", pickle.dumps({"a": 1}), b"PK\x05\x06" + b"\xff" * 18])
def test_what_is_no_checkpoint_is_passed_over(checkpoints, tmp_path, content):
    (tmp_path / "step_000000004.pt").write_bytes(content)
    assert checkpoints.load_latest(like=LIKE)[1].name == "step_000000002.pt"


def test_no_usable_checkpoint_at_all_is_an_error(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(4, {"a": 1})
    with pytest.raises(CheckpointError, match=r"none of the 1 checkpoints in .* can be used; start .* --overwrite"):
        checkpoints.load_latest(like=LIKE)
    assert checkpoints.paths()
