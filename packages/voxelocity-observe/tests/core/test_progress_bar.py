"""A bar is in a terminal or in a notebook's cell, and leaves nothing behind."""

import io
import sys
import types

import pytest
from rich.progress import BarColumn, TextColumn

from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.core.progress_bar import PlainProgress


@pytest.fixture
def cell(monkeypatch):
    """What a notebook was asked to show, last first."""
    shown = []
    module = types.ModuleType("IPython.display")
    module.HTML = str
    handle = types.SimpleNamespace(update=lambda text: shown.insert(0, text))

    def display(text, display_id):
        shown.insert(0, text)
        return handle

    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def bar(console, times):
    return PlainProgress(TextColumn("<training>"), BarColumn(), TextColumn("{task.fields[facts]}"), console=console,
                         clock=lambda: times[0])  # fmt: skip


def test_a_notebook_sees_one_picture_that_changes_and_disappears(cell, monkeypatch):
    times = [0.0]
    # As kernels do.
    monkeypatch.setenv("FORCE_COLOR", "1")
    progress = bar(PlainConsole(file=io.StringIO(), force_jupyter=True, width=60), times)
    task = progress.add_task("", total=10, facts="")
    with progress:
        assert progress.is_shown
        progress.update(task, completed=1, facts="loss 0.9")
        progress.update(task, completed=2, facts="loss 0.8")
        times[0] = 1.0
        progress.update(task, completed=3, facts="loss 0.7")
        assert [text.count("loss") for text in cell] == [1, 1, 0]
        assert "&lt;training&gt;" in cell[0]
        assert "loss 0.7" in cell[0]
        assert "\x1b" not in cell[0]
    assert cell[0] == ""


def test_a_pipe_has_no_bar(cell):
    file = io.StringIO()
    progress = bar(PlainConsole(file=file, force_jupyter=False, force_terminal=False), [0.0])
    task = progress.add_task("", total=10, facts="")
    with progress:
        progress.update(task, completed=5, facts="half")
    assert not progress.is_shown
    assert file.getvalue() == ""
    assert cell == []


def test_a_terminal_has_a_bar():
    file = io.StringIO()
    progress = bar(PlainConsole(file=file, force_jupyter=False, force_terminal=True, width=60), [0.0])
    task = progress.add_task("", total=10, facts="half")
    with progress:
        progress.update(task, completed=5)
        progress.refresh()
    assert progress.is_shown
    assert "half" in file.getvalue()
