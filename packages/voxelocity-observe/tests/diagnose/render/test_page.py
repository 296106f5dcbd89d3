import dataclasses
import re
from html import escape

import pytest

from shared.diagnoses import NAMES, with_facts
from shared.page import Page, assert_accessible, assert_colored, assert_golden, assert_safe, assert_shown
from voxelocity_observe.diagnose.facts.whole import RefusedWrite
from voxelocity_observe.diagnose.render.page import render_diagnosis_page

TRACES = {"on a GPU": "recording/trace.json.gz"}


def drawn(diagnosis, path, **options):
    return Page(render_diagnosis_page(diagnosis, path, **options).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pages(example_diagnosis, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {
        name: drawn(example_diagnosis(name), folder / f"{number}.html", trace=TRACES.get(name, ""))
        for number, name in enumerate(NAMES)
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_safe_and_a_reader_without_eyes_or_mouse_finds_everything(pages, name):
    assert_safe(pages[name])
    assert_accessible(pages[name])
    assert_colored(pages[name].source)


@pytest.mark.parametrize(("name", "golden"), [("data-bound", "diagnosis"), ("on a GPU", "diagnosis-gpu")])
def test_the_page_reads_as_agreed(pages, name, golden):
    assert_golden(pages[name], golden)


def test_files_that_stayed_unwritten_are_on_the_page(example_diagnosis, tmp_path):
    diagnosis = example_diagnosis("data-bound")
    writes = (RefusedWrite(path="/runs/<last>.pt", where="train.py:57"),)
    page = drawn(with_facts(diagnosis, refused_writes=writes), tmp_path / "page.html")
    assert not page.open
    assert not page.misnested
    assert "Not written because the program was being ended" in page.text
    assert "/runs/<last>.pt, at train.py:57" in page.text


def test_a_file_whose_name_is_not_utf_8_does_not_cost_the_page(example_diagnosis, tmp_path):
    diagnosis = with_facts(example_diagnosis("data-bound"), command=["python", "M\udcfcller.py"])
    assert r"M\udcfcller.py" in drawn(diagnosis, tmp_path / "page.html").text


def test_what_to_change_first_stands_below_the_verdict_with_what_it_brings(pages):
    page = pages["data-bound"]
    above = page.words[: page.words.index(" Steps per second")]
    assert above.endswith(
        "one after the other. Change first: "
        "Batches are made in the training's own thread, one after the other: about 2.5 times faster (measured) "
        "The same fixed preparation is done again each epoch: about 1.8 times faster (estimated) "
        "The CPU is faster in bfloat16, and the network computes in float32: about 5 % less time (estimated), "
        "changes results"
    )
    assert "What to change:" in pages["on a GPU"].words
    assert "Change first:" not in pages["clean"].words
    targets = {attrs["href"][1:] for attrs in page.all("a")}
    assert targets == {"main", "finding-1", "finding-2", "finding-3"}
    assert targets <= {attrs["id"] for _, attrs in page.tags if "id" in attrs}


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_of_a_wide_table_carries_its_head_for_narrow_screens(pages, name):
    page = pages[name]
    heads = {attrs.get("data-head") for attrs in page.all("td")} - {None}
    assert all(f">{escape(head)}</th>" in page.source for head in heads)
    assert bool(heads) == ('class="stacks"' in page.source)
    assert len(page.all("table")) > page.source.count('class="stacks" role="table"') or name == "nothing seen"


def test_steps_beyond_the_top_of_the_chart_are_counted_and_short_ones_are_told_in_ms(example_diagnosis, tmp_path):
    diagnosis = example_diagnosis("on a GPU")
    steps = list(diagnosis.facts.steps)
    slow = next(place for place, step in enumerate(steps) if step.phase == "watched")
    steps[slow] = dataclasses.replace(steps[slow], parts={"wait": 9.0}, seconds=9.0)
    made = with_facts(diagnosis, steps=steps)
    words = drawn(made, tmp_path / "page.html").words
    assert "Time of each counted step; 1 of 200 reaches beyond the top" in words
    assert "time (ms)" in words


def test_a_word_of_the_command_stays_in_one_line(pages):
    assert '<span class="word">--nproc-per-node=1</span> gpu.py</h1>' in pages["on a GPU"].source


def test_the_change_can_be_taken_as_it_is(pages):
    code = re.findall(r'<pre class="copy" tabindex="0"><code>(.*?)</code></pre>', pages["data-bound"].source, re.DOTALL)
    assert code[0] == "loader = DataLoader(\n    dataset, batch_size=4, num_workers=2, persistent_workers=True\n)"


def test_rows_with_a_share_have_a_bar_of_that_width(pages):
    source = pages["data-bound"].source
    assert source.count('class="share"') == 5 + 3 + 3
    assert '<rect width="69.7%" height="100%">' in source


def test_both_bars_of_the_ceiling_have_one_scale(pages):
    source = pages["data-bound"].source
    bars = source[source.index('aria-label="One step, as measured') :]
    bars = re.findall(r"<svg.*?</svg>", bars[: bars.index("</figure>")], re.DOTALL)
    widths = [[float(w) for w in re.findall(r'width="([\d.]+)%"', bar)] for bar in bars]
    assert sum(widths[0]) == pytest.approx(100.0)
    assert widths[0][0] == widths[1][0] == pytest.approx(39.0)


def test_a_program_that_was_killed_and_one_never_seen_are_told_as_such(pages):
    assert "The program was killed after 4 counted steps" in pages["killed"].words
    words = pages["nothing seen"].words
    assert "the program never imported torch" in words
    assert "Where the time went" not in words
    assert "No training was recorded, so there is nothing to analyze." in words
    assert "holds this program back" not in words
    assert "Nothing was found that holds this program back." in pages["clean"].words


def test_text_of_the_program_cannot_break_out(example_diagnosis, tmp_path):
    evil = "\"'><script>alert(1)</script><b>&amp;"
    diagnosis = example_diagnosis("on a GPU")
    finding = dataclasses.replace(
        diagnosis.findings[0], title=evil, cause=evil, change=evil, where=evil, code=evil, evidence=[evil]
    )
    facts = dataclasses.replace(diagnosis.facts, command=[evil], environment={evil: evil})
    diagnosis = dataclasses.replace(diagnosis, verdict=evil, findings=[finding], not_measured=[evil], facts=facts)
    page = drawn(diagnosis, tmp_path / "page.html")
    assert not page.misnested
    assert not page.all("script", "b")
    assert page.text.count(evil) >= 8


def test_the_same_diagnosis_gives_the_same_bytes(example_diagnosis, pages, tmp_path):
    again = render_diagnosis_page(example_diagnosis("data-bound"), tmp_path / "again.html")
    assert again.read_text(encoding="utf-8") == pages["data-bound"].source


def test_many_steps_make_no_larger_picture_than_few(example_diagnosis, pages, tmp_path):
    diagnosis = example_diagnosis("on a GPU")
    steps = [dataclasses.replace(s, start_s=s.start_s + 20 * n) for n in range(50) for s in diagnosis.facts.steps]
    many = with_facts(diagnosis, steps=steps)
    assert len(drawn(many, tmp_path / "many.html").source) < 1.5 * len(pages["on a GPU"].source)


def test_a_browser_shows_the_page_without_a_complaint(example_diagnosis, tmp_path):
    page = render_diagnosis_page(example_diagnosis("data-bound"), tmp_path / "page.html")
    assert_shown(page, tmp_path, width=1200, height=4000)
