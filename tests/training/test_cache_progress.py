import io

from rich.console import Console

from voxelocity.data.pipeline import CachingFacts
from voxelocity.training.cache_progress import CacheProgress


def facts(**changes):
    values = {"num_found": 2, "num_prepared": 3, "num_bytes": 4 * 2**30, "seconds": 8.0, "num_kept": 5}
    return CachingFacts(**(values | {"num_with_foreground": 5} | changes))


def said(closing, *, is_terminal=False):
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=120, color_system=None)
    with CacheProgress(console, "disk", 5) as progress:
        for _ in range(5):
            progress.advance("a", 2**20)
    progress.finish(closing)
    return out.getvalue()


def test_closing_line_tells_what_was_done_and_how_fast():
    line = said(facts(num_found=0, num_prepared=5))
    assert line == "prepared 5 cases in 8.0 s: 4.00 GiB in the disk cache, 512 MiB/s\n"


def test_nothing_is_said_of_a_speed_where_cases_were_found_ready():
    line = said(facts())
    assert line == "prepared 5 cases in 8.0 s, 2 of them found ready: 4.00 GiB in the disk cache\n"


def test_cases_that_are_not_kept_are_told():
    assert "4.00 GiB in the disk cache, 1 of the cases" in said(facts(num_kept=1))
    assert "4.00 GiB not kept" in said(facts(num_kept=0))


def test_bar_in_a_terminal_shows_cases_and_bytes_a_second():
    text = said(facts(), is_terminal=True)
    assert "5/5" in text
    assert "iB/s" in text
