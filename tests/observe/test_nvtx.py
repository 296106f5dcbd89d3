import pytest
import torch

from voxelocity.observe import nvtx, nvtx_range


class _Recorder:
    def __init__(self):
        self.events = []

    def rangePushA(self, name):  # noqa: N802
        self.events.append(name)

    def rangePop(self):  # noqa: N802
        self.events.append("<")


def test_a_range_surrounds_its_block_and_ends_with_an_error(monkeypatch):
    recorder = _Recorder()
    monkeypatch.setattr(torch._C, "_nvtx", recorder, raising=False)
    assert nvtx() is recorder
    with pytest.raises(ValueError, match="inside"), nvtx_range("outer"), nvtx_range("inner"):
        raise ValueError("inside")
    assert recorder.events == ["outer", "inner", "<", "<"]


def test_without_nvtx_nothing_happens(monkeypatch):
    monkeypatch.delattr(torch._C, "_nvtx", raising=False)
    assert nvtx() is None
    with nvtx_range("outer"):
        pass
