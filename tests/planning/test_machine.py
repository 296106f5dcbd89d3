import importlib.util
from types import SimpleNamespace

import pytest
import torch

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


def test_the_device_is_the_one_that_is_current_where_the_machine_was_asked_about(tmp_path, monkeypatch):
    """torchrun's processes call `torch.cuda.set_device`; other threads begin with device 0."""
    bytes_of = {0: (1, 2), 2: (30, 40)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: bytes_of[index])
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(name=f"GPU {index}", total_memory=bytes_of[index][1], major=8),
    )
    found = survey("auto", cache_folder=tmp_path)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert found.torch_device == torch.device("cuda", 2)
    assert (found.device_name, found.device_memory_bytes, found.device_free_bytes) == ("GPU 2", 40, 30)
    assert survey("cpu", cache_folder=tmp_path).torch_device == torch.device("cpu")
