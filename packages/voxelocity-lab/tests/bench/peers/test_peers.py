import importlib.util

import pytest

from voxelocity_lab.bench.peers import missing, peer_side, versions


def test_a_peer_that_is_installed_lacks_nothing():
    assert missing("MONAI") == ""
    assert versions()["monai"] is not None


def test_a_peer_that_is_not_installed_names_what_it_lacks_and_is_not_prepared(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing("LMDBDataset") == "not installed: monai, lmdb"
    side = peer_side("MONAI", "MONAI", pytest.fail)
    assert (side.once, side.note) == (None, "not installed: monai")
