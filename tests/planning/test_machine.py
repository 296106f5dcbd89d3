import importlib.util

import pytest

from voxelocity.planning import machine as machine_module
from voxelocity.planning import survey


@pytest.mark.parametrize(
    ("file_system", "is_installed", "has_lmdb"),
    [("ext4", True, True), ("", True, True), ("nfs4", True, False), ("lustre", True, False), ("ext4", False, False)],
)
def test_lmdb_is_to_be_had_where_it_is_installed_and_the_disk_is_of_this_machine(
    tmp_path, monkeypatch, file_system, is_installed, has_lmdb
):
    monkeypatch.setattr(machine_module, "file_system_of", lambda folder: file_system)
    if not is_installed:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert survey("cpu", cache_folder=tmp_path).has_lmdb is has_lmdb


def test_a_cpu_has_no_memory_of_a_device_and_shares_what_places_in_memory_have(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_module, "shared_room_bytes", lambda: 12345)
    found = survey("cpu", cache_folder=tmp_path)
    assert (found.device_memory_bytes, found.device_free_bytes, found.shared_bytes) == (0, 0, 12345)
    assert found.memory_bytes > 0
    assert found.disk_bytes > 0
