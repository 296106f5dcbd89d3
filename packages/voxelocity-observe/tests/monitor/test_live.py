"""The live view: its lines at each width, and what a terminal that scrolls a part of itself shows."""

import io
import os
import re

import pytest
from rich.cells import cell_len

from voxelocity_observe.monitor.live import LiveView, live_lines, open_live_view
from voxelocity_observe.monitor.samples import GpuSample, HostSample, Sample

GIB = 2**30
CODES = re.compile(r"\x1b\[[0-9;]*m")
GPU = GpuSample(
    index=0,
    busy_share=0.95,
    memory_used_bytes=10 * GIB,
    memory_total_bytes=80 * GIB,
    power_w=250.0,
    temperature_c=55.0,
    throttle_reasons=("HwThermalSlowdown",),
)
HOST = HostSample(
    core_shares=(1.0, 0.5),
    program_cores=1.2,
    throttled_share=0.3,
    memory_used_bytes=4 * GIB,
    memory_available_bytes=12 * GIB,
    program_memory_bytes=GIB,
    swap_in_bytes_per_s=5.0,
    disk_read_bytes_per_s=2**20,
    disk_write_bytes_per_s=0.0,
)
SAMPLE = Sample(time_s=75.0, period_s=0.5, host=HOST, gpus=(GPU,))


def lines(sample=SAMPLE, *, width=100, max_lines=9, has_color=False, is_ascii=False):
    return live_lines(
        sample, title="python train.py", width=width, max_lines=max_lines, has_color=has_color, is_ascii=is_ascii
    )


def test_lines_tell_time_cpu_memory_traffic_and_gpus():
    assert [CODES.sub("", line) for line in lines()] == [
        "── 1 min 15 s ── python train.py",
        "CPU     ████████░░  1.5 of 2 cores busy, program 1.2, held back 30.0 %",
        "memory  ██░░░░░░░░  4.00 GiB of 16.0 GiB, program 1.00 GiB, swapping",
        "disk    read 1.00 MiB/s, write 0 B/s, network n/a",
        "GPU 0   ██████████  95.0 %, 10.0 GiB of 80.0 GiB, 250 W, 55 °C, HwThermalSlowdown",
    ]


@pytest.mark.parametrize("width", [40, 60, 79])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_no_line_is_wider_than_the_terminal(width, is_ascii):
    for line in lines(width=width, is_ascii=is_ascii, has_color=True):
        assert cell_len(CODES.sub("", line)) <= width
        assert "\n" not in line


def test_a_terminal_without_utf_8_gets_ascii():
    assert "".join(lines(is_ascii=True)).isascii()


def test_without_color_nothing_is_colored_and_with_it_a_full_bar_is_red():
    assert not [code for code in CODES.findall("".join(lines())) if re.search(r"[\[;]3[0-9]", code)]
    assert "\x1b[31m██████████" in lines(has_color=True)[4]


def test_an_empty_sample_and_none_at_all_have_lines_too():
    empty = Sample(time_s=1.0, period_s=1.0, host=HostSample(), gpus=(GpuSample(index=2, slice=1),))
    texts = [CODES.sub("", line) for line in lines(empty)]
    assert texts[1].rstrip() == "CPU                 not known"
    assert texts[4].startswith("GPU 2.1             n/a of n/a")
    assert [CODES.sub("", line) for line in lines(None)] == ["── starting ── python train.py"]


def test_of_many_gpus_those_without_room_are_counted():
    many = Sample(time_s=1.0, period_s=1.0, host=HOST, gpus=tuple(GpuSample(index=i) for i in range(8)))
    shown = lines(many, max_lines=6)
    assert len(shown) == 6
    assert CODES.sub("", shown[-1]) == "and 7 more"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def view(monkeypatch):
    """A view on a made-up terminal of 80 columns and 24 rows; `view.written` is what it was sent."""
    size, written = [80, 24], []
    made = LiveView(Terminal(), environ={}, size=lambda: tuple(size), write=written.append)
    monkeypatch.setattr(made, "_is_in_foreground", lambda: True)
    made.size, made.written = size, written
    return made


def test_the_lines_above_ours_scroll_and_ours_are_drawn_with_the_cursor_put_back(view):
    view.draw(SAMPLE, ["sleep", "3"])
    (text,) = view.written
    assert text.startswith("\n\n\n\n\n\x1b[5A\x1b7\x1b[1;19r\x1b8\x1b7")
    assert [row for row in range(1, 25) if f"\x1b[{row};1H" in text] == [20, 21, 22, 23, 24]
    assert text.endswith("\x1b8")
    view.draw(SAMPLE, ["sleep", "3"])
    assert "r" not in re.findall(r"\x1b\[[0-9;]*([a-zA-Z])", view.written[1])


def test_a_command_cannot_put_codes_into_the_title(view):
    view.draw(SAMPLE, ["echo", "\x1b[2Ja\nb"])
    assert "echo ?[2Ja b" in view.written[0]


def test_closing_gives_the_whole_terminal_back_once(view):
    view.draw(SAMPLE, [])
    view.close()
    view.close()
    assert len(view.written) == 2
    assert view.written[1].startswith("\x1b7\x1b[r")
    assert view.written[1].endswith("\x1b8")
    assert view.written[1].count("\x1b[2K") == 5


def test_a_terminal_that_was_resized_is_given_back_and_taken_again(view):
    view.draw(SAMPLE, [])
    view.size[1] = 30
    view.draw(SAMPLE, [])
    assert view.written[1].index("\x1b[r") < view.written[1].index("\x1b[1;25r")


def test_more_gpus_take_more_lines_up_to_a_third_of_the_terminal(view):
    many = Sample(time_s=1.0, period_s=1.0, host=HOST, gpus=tuple(GpuSample(index=i) for i in range(8)))
    view.draw(None, [])
    view.draw(many, [])
    assert "\x1b[1;20r" in view.written[0]
    assert "\x1b[1;16r" in view.written[1]
    assert "and 5 more" in view.written[1]


def test_a_terminal_that_is_too_small_is_left_alone(view):
    view.draw(SAMPLE, [])
    view.size[:] = [80, 10]
    view.draw(SAMPLE, [])
    view.draw(SAMPLE, [])
    assert len(view.written) == 2
    assert "\x1b[r" in view.written[1]


def test_a_command_in_the_background_is_not_drawn(view, monkeypatch):
    monkeypatch.setattr(view, "_is_in_foreground", lambda: False)
    view.draw(SAMPLE, [])
    assert view.written == []


@pytest.mark.parametrize(("environ", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)])
def test_color_follows_no_color(view, environ, colored):
    made = LiveView(Terminal(), environ=environ, size=lambda: (80, 24), write=view.written.append)
    made._is_in_foreground = lambda: True
    made.draw(SAMPLE, [])
    assert ("\x1b[31m" in view.written[0]) is colored


def test_columns_that_a_person_set_are_kept_to(view):
    made = LiveView(Terminal(), environ={"COLUMNS": "50"}, size=lambda: (200, 24), write=view.written.append)
    made._is_in_foreground = lambda: True
    made.draw(SAMPLE, ["x" * 300])
    rows = re.split(r"\x1b\[\d+;1H", CODES.sub("", view.written[0]))
    assert max(cell_len(re.sub(r"\x1b(\[[0-9;]*[a-zA-Z]|[78])", "", row)) for row in rows[1:]) == 49


@pytest.mark.parametrize(
    ("is_terminal", "term", "words"),
    [
        (False, "xterm", "--live shows nothing: stderr is not a terminal"),
        (True, "dumb", "--live shows nothing: this terminal (TERM=dumb) cannot move its cursor"),
        (True, None, "--live shows nothing: this terminal (TERM=dumb) cannot move its cursor"),
    ],
)
def test_where_it_cannot_be_shown_one_line_says_why(is_terminal, term, words):
    messages = []
    stream = Terminal()
    stream.isatty = lambda: is_terminal
    environ = {} if term is None else {"TERM": term}
    assert open_live_view(stream, messages.append, environ=environ) is None
    assert messages == [words]


def test_a_real_terminal_gets_it_in_one_piece():
    own, other = os.openpty()
    try:
        with open(other, "w", encoding="utf-8", closefd=False) as stream:
            messages = []
            view = open_live_view(stream, messages.append, environ={"TERM": "xterm"})
            assert messages == []
            view._size = lambda: (80, 24)
            view._is_in_foreground = lambda: True
            view.draw(SAMPLE, [])
        # The terminal may hand it on in parts.
        seen = ""
        while "memory" not in seen:
            seen += os.read(own, 100_000).decode()
    finally:
        os.close(own)
        os.close(other)
