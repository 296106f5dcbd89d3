"""A bar is in a terminal or in a notebook's cell, and leaves nothing behind."""

import io
import sys
import types

import pytest
from rich.progress import BarColumn, TextColumn

from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.core.progress_bar import PlainProgress, WorkProgress


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


@pytest.mark.parametrize(("is_terminal", "kind"), [(False, "xterm"), (True, "dumb")])
def test_a_log_gets_a_line_every_few_seconds_with_the_time_left(is_terminal, kind):
    clock, file = FakeClock(), io.StringIO()
    console = PlainConsole(
        file=file, force_jupyter=False, force_terminal=is_terminal, width=40, color_system=None, _environ={"TERM": kind}
    )
    with WorkProgress(console, clock=clock) as progress:
        assert not progress.is_bar
        for _ in progress.each(range(10), "predicting the piece [b]"):
            clock.advance(60.0)
    lines = file.getvalue().splitlines()
    assert len(lines) == 9
    assert lines[4] == " 50%  predicting the piece [b] 6 of 10  5 min left"


@pytest.mark.parametrize("width", [*range(40, 201, 20), 101])
def test_the_words_next_to_a_bar_lose_no_letter_at_any_width(width):
    words = "prepared 6789 of 12,345 cases of [b]Task04_HippocampusInVeryManyPieces[/b]  123.4 MiB/s  12 min 13 s left"
    progress = WorkProgress(PlainConsole(file=io.StringIO(), width=width, force_terminal=True))
    progress.update(0.5, words)
    console = PlainConsole(file=io.StringIO(), width=width)
    console.print(progress._bar.get_renderable())
    text = "".join(console.file.getvalue().split()).replace("\u2501", "").replace("\u2578", "").replace("\u257a", "")
    assert text == "".join(words.split())
