import importlib.util

import pytest

from voxelocity.bench.peers import PEERS, missing, versions


def test_a_peer_that_is_installed_lacks_nothing():
    assert missing("MONAI") == ""
    assert versions()["monai"] is not None


@pytest.mark.parametrize("peer", sorted(name for name, peer in PEERS.items() if peer.needs))
def test_a_peer_that_is_not_installed_names_what_it_lacks(peer, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing(peer) == f"not installed: {', '.join(PEERS[peer].needs)}"
