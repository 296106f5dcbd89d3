from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from voxelocity_observe.diagnose.doctor import Check, CheckUp, show

LONG = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130"
CHECKS = [
    Check("GPU", "driver", "NVIDIA 580.65.06, CUDA up to 13.0; 1 GPU"),
    Check("GPU", "GPU 0 link", "PCIe x8 of x16").warning(
        "batches reach the GPU at 50% of the possible speed, and each step waits for them that much longer",
        LONG,
        "https://example.org/a-very-long-address/that-no-line-of-sixty-columns/can/hold.html",
    ),
    Check("variables", "NAME", "=[red]x[/red] \x1b[31m").note(""),
]
CHECK_UP = CheckUp(verdict="Training runs on one GPU. To look at: 1 warning, 1 note.", checks=CHECKS)


def shown(columns=80, **options):
    out = io.StringIO()
    show(CHECK_UP, Console(file=out, width=columns, **options))
    return out.getvalue()


def test_the_verdict_comes_first_and_sections_are_headed_once():
    lines = shown().splitlines()
    assert lines[0] == CHECK_UP.verdict
    assert [line for line in lines if line in ("GPU", "variables")] == ["GPU", "variables"]
    assert "  ok       driver: NVIDIA 580.65.06, CUDA up to 13.0; 1 GPU" in lines
    assert "  warning  GPU 0 link: PCIe x8 of x16" in lines


def test_at_60_columns_only_words_that_cannot_be_broken_stick_out():
    narrow = shown(60)
    assert all(len(line) < 60 or len(line.split()) <= 2 for line in narrow.splitlines())
    for word in ("https://download.pytorch.org/whl/cu130", CHECKS[1].source, "--force-reinstall"):
        assert word in narrow


def test_a_pipe_gets_no_escapes_and_text_of_others_is_no_markup():
    assert "\x1b" not in shown()
    assert "NAME=[red]x[/red] ?[31m" in shown()


def test_color_repeats_the_words_and_no_color_turns_it_off(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    color = re.compile(r"\x1b\[[0-9;]*3\dm")
    assert color.search(shown(force_terminal=True, color_system="standard"))
    monkeypatch.setenv("NO_COLOR", "1")
    plain = shown(force_terminal=True, color_system="standard")
    assert not color.search(plain)
    assert "warning" in plain


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_terminal_of_ascii_letters_shows_what_it_can(encoding):
    raw = io.BytesIO()
    named = Check("disk", "room", "1 GiB free below /home/jürgen")
    with io.TextIOWrapper(raw, encoding=encoding, write_through=True) as terminal:
        show(CheckUp(verdict="Fine.", checks=[named]), Console(file=terminal, width=80))
        written = raw.getvalue()
    assert f"below /home/{'j?rgen' if encoding == 'ascii' else 'jürgen'}" in written.decode(encoding)


def test_the_last_three_lines_are_the_verdict_what_to_do_first_and_what_is_missing():
    missing = [Check("packages", f"extra {name}", "not installed", level="missing") for name in ("ray", "slides")]
    assert shown(200).splitlines()[-3:] == [
        CHECK_UP.verdict,
        f"First: GPU, GPU 0 link: {LONG}",
        "Missing: nothing",
    ]
    assert CheckUp(verdict="Fine.", checks=missing).in_short == (
        "Fine.",
        "First: no action needed",
        "Missing: ray, slides: pip install 'voxelocity[ray,slides]'",
    )
