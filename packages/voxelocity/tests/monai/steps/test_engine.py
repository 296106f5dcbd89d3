"""What computes the steps of a patch, by the device of its tensors and by what is installed."""

from __future__ import annotations

import pytest
import torch

from voxelocity.monai.steps import engine
from voxelocity.monai.steps.engine import step_engine

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture(autouse=True)
def _asked_again() -> None:
    engine._launches.cache_clear()


def test_each_device_has_its_fastest_engine_and_torch_is_the_off_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "has_triton", lambda: True)
    monkeypatch.setattr(engine, "has_loops", lambda: True)
    monkeypatch.setattr("voxelocity.monai.steps.triton_probe.try_kernel", lambda device: None)
    assert [step_engine("auto", device) for device in (CPU, CUDA, torch.device("mps"))] == ["native", "triton", "torch"]
    assert [step_engine("torch", device) for device in (CPU, CUDA)] == ["torch", "torch"]
    assert step_engine("triton", CPU) == "triton"
    monkeypatch.setattr(engine, "has_triton", lambda: False)
    monkeypatch.setattr(engine, "has_loops", lambda: False)
    assert [step_engine("auto", device) for device in (CPU, CUDA)] == ["torch", "torch"]


def test_where_triton_cannot_compile_torch_makes_the_patches_and_that_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(device: torch.device) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(engine, "has_triton", lambda: True)
    monkeypatch.setattr("voxelocity.monai.steps.triton_probe.try_kernel", fail)
    with pytest.warns(UserWarning, match=r"Triton cannot compile kernels for cuda:0 \(RuntimeError: Failed to find C"):
        assert step_engine("auto", CUDA) == "torch"
    assert step_engine("auto", CUDA) == "torch"
