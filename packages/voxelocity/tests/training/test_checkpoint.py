from __future__ import annotations

import contextlib
import errno
import io
import pickle

import pytest
import torch

from voxelocity.training import checkpoint as checkpoint_module
from voxelocity.training.checkpoint import Checkpoints
from voxelocity_observe.core.errors import CheckpointError, OutputError

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


def test_the_newest_is_loaded(checkpoints):
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
        *({**GOOD, "loop": {"step": step}} for step in ("4", -4, 4.0, True, 3)),
        {**GOOD, "loop": {"step": 4, "strange": 1}},
        {**GOOD, "training": {**GOOD["training"], "network": {"weight": torch.ones(3)}}},
        {**GOOD, "training": {**GOOD["training"], "network": {"weight": 3}}},
        {**GOOD, "training": {**GOOD["training"], "average": {"weight": torch.ones(2)}}},
    ],
)
def test_a_state_of_another_form_or_step_is_passed_over(checkpoints, state):
    newest = checkpoints.save(4, state)
    loaded, path, damaged = checkpoints.load_latest(like=LIKE)
    assert (loaded["loop"]["step"], path.name, damaged) == (2, "step_000000002.pt", [newest])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["network", "optimizer"])
def test_a_state_that_is_not_finite_is_passed_over(checkpoints, where, value):
    broken = {"network": {"weight": torch.full((2,), value)}, "optimizer": {"state": {0: torch.full((2,), value)}}}
    checkpoints.save(4, {"loop": {"step": 4}, "training": {**GOOD["training"], where: broken[where]}})
    assert checkpoints.load_latest(like=LIKE)[1].name == "step_000000002.pt"


def test_a_single_bit_that_changed_is_found(checkpoints):
    large = {**LIKE, "training": {**LIKE["training"], "network": {"weight": torch.zeros(4096)}}}
    for step in (2, 4):
        weights = {"weight": torch.ones(4096)}
        newest = checkpoints.save(step, {"loop": {"step": step}, "training": {**GOOD["training"], "network": weights}})
    content = bytearray(newest.read_bytes())
    # The middle of the file is the weights: one becomes another finite number.
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    state, path, damaged = checkpoints.load_latest(like=large)
    assert (path.name, damaged) == ("step_000000002.pt", [newest])
    assert torch.equal(state["training"]["network"]["weight"], torch.ones(4096))


def test_a_folder_in_place_of_a_checkpoint_is_passed_over_and_named_where_it_stands_in_the_way(checkpoints, tmp_path):
    (tmp_path / "step_000000009.pt").mkdir()
    assert checkpoints.latest_step() == 2
    assert checkpoints.load_latest(like=LIKE)[1].name == "step_000000002.pt"
    with pytest.raises(OutputError, match=r"cannot write the checkpoint .*step_000000009\.pt \(Is a directory\); free"):
        checkpoints.save(9, GOOD)


class FullDisk(io.BytesIO):
    """Takes so many bytes and no more."""

    def write(self, content):
        if self.tell() + len(content) > 500:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(content)


def test_a_disk_that_gets_full_is_told_as_that_and_costs_no_older_checkpoint(checkpoints, monkeypatch):
    @contextlib.contextmanager
    def full(path):
        yield FullDisk()

    monkeypatch.setattr(checkpoint_module, "whole_file", full)
    with pytest.raises(OSError) as caught:
        checkpoints.save(4, GOOD)
    assert caught.value.errno == errno.ENOSPC
    assert checkpoints.load_latest(like=LIKE)[1].name == "step_000000002.pt"


def test_what_killed_savers_left_is_removed(checkpoints, tmp_path):
    (tmp_path / ".step_000000001.pt.0123456789abcdef.part").write_bytes(b"half")
    checkpoints.remove_abandoned()
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000002.pt"]


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
