import sys
import types

import pytest
import torch

from voxelocity_observe.spans import end_range, phase, span, start_range
from voxelocity_observe.spans.nvtx import has_nvtx, open_nvtx
from voxelocity_observe.spans.scope import LISTENERS


class TorchNvtx:
    def __init__(self):
        self.events = []

    def rangePushA(self, name):  # noqa: N802
        self.events.append(name)

    def rangePop(self):  # noqa: N802
        self.events.append("<")

    def rangeStartA(self, name):  # noqa: N802
        self.events.append(f"start {name}")
        return 7

    def rangeEnd(self, handle):  # noqa: N802
        self.events.append(f"end {handle}")


@pytest.fixture
def tool(monkeypatch):
    """A profiler is attached, and torch has a binding."""
    recorder = TorchNvtx()
    monkeypatch.setattr(torch._C, "_nvtx", recorder, raising=False)
    monkeypatch.setitem(sys.modules, "nvtx", None)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/opt/tool.so")
    LISTENERS.forget()
    return recorder


@pytest.fixture
def package(monkeypatch):
    """A profiler is attached, and NVIDIA's package is there."""
    events = []
    fake = types.SimpleNamespace(
        push_range=lambda name, color: events.append((name, color)),
        pop_range=lambda: events.append("<"),
        start_range=lambda name, color: (name, color),
        end_range=events.append,
    )
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/opt/tool.so")
    LISTENERS.forget()
    return events


def test_spans_are_ranges_that_end_with_an_error(tool):
    with pytest.raises(ValueError, match="inside"), phase("outer"), span("inner"):
        raise ValueError("inside")
    assert tool.events == ["outer", "inner", "<", "<"]


def test_ranges_that_cross_threads_are_ended_by_their_handle(tool):
    end_range(start_range("batch"))
    assert tool.events == ["start batch", "end 7"]


def test_no_range_is_made_while_no_tool_is_attached(tool, monkeypatch):
    monkeypatch.delenv("NVTX_INJECTION64_PATH")
    LISTENERS.forget()
    with span("quiet"):
        pass
    assert tool.events == []


def test_nvidias_package_is_given_the_color(package):
    with span("named", color="red"), span("hex", color="#2ca02c"), span("none"):
        pass
    end_range(start_range("batch", color="blue"))
    assert package == [("named", 0xFFFF0000), ("hex", 0xFF2CA02C), ("none", None), "<", "<", "<", ("batch", 0xFF0000FF)]


def test_a_color_that_is_none_is_reported_once_and_left_to_the_tool(package):
    warns = pytest.warns(UserWarning, match="'blurple' is not a color, so the profiler chooses one; write a name")
    with warns, span("a", color="blurple"):
        pass
    with span("a", color="blurple"):
        pass
    assert package == [("a", None), "<"] * 2


def test_without_any_binding_nothing_listens_to_the_tool(tool, monkeypatch):
    monkeypatch.delattr(torch._C, "_nvtx", raising=False)
    assert open_nvtx() is None
    with span("quiet"):
        pass


def test_nvtx_is_there_by_torch_or_by_the_package(monkeypatch):
    monkeypatch.setattr(torch._C, "_nvtx", object(), raising=False)
    assert has_nvtx()
    monkeypatch.delattr(torch._C, "_nvtx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not has_nvtx()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "nvtx" else None)
    assert has_nvtx()


def test_nvidias_own_package_takes_what_it_is_given(monkeypatch):
    pytest.importorskip("nvtx", reason="the extra 'nvtx' is not installed")
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/no/such/tool.so")
    LISTENERS.forget()
    with span("named", color="red"), span("plain"):
        end_range(start_range("batch", color="#00ff00"))
    assert len(LISTENERS.now) == 1
