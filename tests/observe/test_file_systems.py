from __future__ import annotations

import pytest

from voxelocity.observe.file_systems import is_in_memory, is_on_network


@pytest.mark.parametrize(
    ("name", "on_network", "in_memory"),
    [
        ("nfs4", True, False),
        ("fuse.sshfs", True, False),
        ("tmpfs", False, True),
        ("ext4", False, False),
        ("", False, False),
    ],
)
def test_where_files_of_a_file_system_lie_follows_from_its_name(name, on_network, in_memory):
    assert (is_on_network(name), is_in_memory(name)) == (on_network, in_memory)
