from contextlib import nullcontext

import pytest
import torch

from voxelocity_observe.core.device import as_current, numbered
from voxelocity_observe.core.errors import ConfigError


def test_cuda_without_a_number_is_the_current_device_of_the_calling_thread(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert numbered("cuda") == numbered(torch.device("cuda")) == torch.device("cuda", 3)
    assert numbered("cuda:1") == torch.device("cuda", 1)
    assert numbered("cpu") == torch.device("cpu")


def test_cuda_without_a_device_is_refused_with_the_cure(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"'cuda' was requested.*sees no CUDA device; use 'cpu'"):
        numbered("cuda")


def test_only_a_cuda_device_is_made_current(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(f"entered {device}"))
    with as_current(torch.device("cuda:2")) as entered:
        assert entered == "entered cuda:2"
    with as_current(torch.device("cpu")) as entered:
        assert entered is None
