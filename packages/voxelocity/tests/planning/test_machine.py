from types import SimpleNamespace

import pytest
import torch

from voxelocity.planning import machine as machine_module
from voxelocity.planning import survey
from voxelocity_observe.core.device import all_gpus


def test_a_cpu_has_no_memory_of_a_device_and_shares_what_places_in_memory_have(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_module, "shared_free_bytes", lambda: 12345)
    found = survey("cpu", cache_folder=tmp_path)
    assert (found.device_memory_bytes, found.device_free_bytes, found.shared_bytes) == (0, 0, 12345)
    assert found.memory_bytes > 0
    assert found.disk_bytes > 0


def test_the_device_is_the_one_that_is_current_where_the_machine_was_asked_about(tmp_path, monkeypatch):
    """torchrun's processes call `torch.cuda.set_device`; other threads begin with device 0."""
    bytes_of = {0: (1, 2), 2: (30, 40)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: bytes_of[index])
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(name=f"GPU {index}", total_memory=bytes_of[index][1], major=8, minor=0),
    )
    found = survey("auto", cache_folder=tmp_path)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert found.torch_device == torch.device("cuda", 2)
    assert (found.device_name, found.device_memory_bytes, found.device_free_bytes) == ("GPU 2", 40, 30)
    assert survey("cpu", cache_folder=tmp_path).torch_device == torch.device("cpu")


def gpus(monkeypatch, used_bytes, *, current=0):
    """As many GPUs of 100 bytes as there are numbers of used bytes; an error in place of a number is raised."""
    state = {"current": current}

    def used(index):
        if isinstance(used_bytes[index], Exception):
            raise used_bytes[index]
        return used_bytes[index]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(used_bytes))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: state["current"])
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: state.update(current=index))
    monkeypatch.setattr(torch.cuda, "device_memory_used", used)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (100, 100))
    properties = SimpleNamespace(name="GPU", total_memory=100, major=8, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    return state


@pytest.mark.parametrize(
    ("used_bytes", "current", "chosen"),
    [
        ([50, 80, 10], 0, 2),
        ([10, 10], 0, 0),
        ([50, 10], 1, 1),
        ([50, 80, 10], 1, 1),  # the program chose it
        ([50, ModuleNotFoundError("No module named 'pynvml'")], 0, 0),
        ([ModuleNotFoundError("No module named 'pynvml'")], 0, 0),  # the only one is not asked
    ],
)
def test_of_several_gpus_the_one_with_the_most_free_memory_becomes_current(
    tmp_path, monkeypatch, used_bytes, current, chosen
):
    state = gpus(monkeypatch, used_bytes, current=current)
    assert survey("auto", cache_folder=tmp_path).torch_device == torch.device("cuda", chosen)
    assert state["current"] == chosen
    assert all_gpus()[0] == torch.device("cuda", chosen)
    assert {gpu.index for gpu in all_gpus()} == set(range(len(used_bytes)))
