import importlib.util

import pytest
import torch

from voxelocity.core.errors import ConfigError
from voxelocity.step import check_compiler
from voxelocity.step.compiled import compiled

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_the_mode_none_leaves_the_network_as_it_is():
    network = torch.nn.Linear(2, 2)
    assert compiled(network, "none", CPU) is network


def test_compiling_is_left_to_torch_with_the_mode_that_was_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda network, **options: asked.append((network, options)) or network)
    network = torch.nn.Linear(2, 2)
    compiled(network, "max-autotune", CPU)
    assert asked == [(network, {"mode": "max-autotune", "dynamic": False})]


def test_a_missing_compiler_is_named_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ConfigError) as error:
        check_compiler("default", CPU, environ={"CXX": "clang++-99"})
    assert str(error.value) == (
        "step: precision.compile=default generates C++ code, but there is no compiler 'clang++-99' here; install "
        "g++, name another in the variable CXX, or leave precision.compile=none"
    )
    with pytest.raises(ConfigError, match=r"no compiler 'g\+\+' here"):
        compiled(torch.nn.Linear(2, 2), "default", CPU)


def test_a_cuda_device_needs_triton_and_no_compiler_of_ours(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "triton" else None)
    check_compiler("default", CUDA)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"precision\.compile=default needs Triton on a CUDA device, which is not"):
        check_compiler("default", CUDA)
