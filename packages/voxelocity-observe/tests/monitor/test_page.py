from __future__ import annotations

import re
from dataclasses import replace

import pytest
from matplotlib.image import imread

from shared.page import Page, assert_accessible, assert_colored, assert_golden, assert_safe, assert_shown
from voxelocity_observe.monitor.files import MonitorFiles
from voxelocity_observe.monitor.page import draw_again, monitor_document, render_monitor_page, render_monitor_png
from voxelocity_observe.monitor.samples import HostSample, RankSample, Sample


def draw(record, folder):
    return Page(render_monitor_page(record, folder / "page.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def full(record, gpu, mark):
    """A record with everything a page can show."""
    phases = [mark("cache", 0.0, 20.0), mark("train", 20.0, 30.0), mark("validate", 50.0, 8.0, color="#cc3366")]
    return record(60, gpus=[gpu(0), gpu(1, busy_share=0.4)], phases=phases, missing=["NVML: no PCIe counters"])


@pytest.fixture(scope="module")
def full_path(full, tmp_path_factory):
    """Its page, drawn once."""
    return render_monitor_page(full, tmp_path_factory.mktemp("full") / "page.html")


@pytest.fixture
def full_page(full_path):
    return Page(full_path.read_text(encoding="utf-8"))


def test_the_page_reads_as_agreed(full_page):
    assert_golden(full_page, "monitor")


def test_a_gpu_looks_the_same_in_line_and_legend(record, gpu, tmp_path):
    text = render_monitor_page(record(20, gpus=[gpu(i) for i in range(8)]), tmp_path / "p.html").read_text("utf-8")
    legend = re.findall(r'<span class="swatch([^"]*)" style="--swatch: ([^"]+)"></span>(GPU \d)', text)[:8]
    assert [look for *look, _ in legend[:4]] == [
        ["", "var(--accent)"], ["", "var(--class-1)"], ["", "var(--class-2)"], [" dashed", "var(--accent)"],
    ]  # fmt: skip
    assert legend[6][0] == " dotted"
    assert len({(stroke, color) for stroke, color, _ in legend}) == 8


def test_a_phase_that_others_fill_is_in_the_table_and_not_in_the_legend(record, mark, tmp_path):
    marks = [mark("epoch", 0.0, 20.0), mark("training", 0.0, 15.0), mark("validation", 15.0, 5.0)]
    text = render_monitor_page(record(20, phases=marks), tmp_path / "p.html").read_text("utf-8")
    legend = re.findall(r"</span>(epoch|training|validation)</li>", text)
    assert legend == ["training", "validation"]
    assert '<th scope="row" role="rowheader">epoch</th>' in text


def test_a_cost_too_small_for_a_digit_is_not_called_none(record, tmp_path):
    words = draw(record(600, own_cpu_s=0.05), tmp_path).words
    assert "cost 50 ms of CPU time, less than 0.1 % of one core while it watched." in words


def test_the_page_is_safe_and_a_reader_without_eyes_or_mouse_finds_everything(full_page):
    assert_safe(full_page)
    assert_accessible(full_page)
    assert_colored(full_page.source)
    assert len([element for element in full_page.all("figure") if element["class"] == "chart"]) == 4 + 6


def test_a_color_that_was_given_is_taken_and_none_of_the_stand_ins_is_left(full_page):
    assert "#cc3366" in full_page.source
    assert not re.search(r"#010[123]", full_page.source)


def test_without_a_gpu_the_page_has_no_word_and_no_chart_of_one(record, tmp_path):
    page = draw(record(30), tmp_path)
    assert "GPU" not in page.words
    assert "Phases" not in page.words
    assert len(page.all("figure")) == 4
    assert "Everything requested was measured." in page.words


@pytest.mark.parametrize("count", [0, 1])
def test_the_shortest_records_have_a_page(record, gpu, tmp_path, count):
    page = draw(record(count, gpus=[gpu()]), tmp_path)
    assert not page.misnested
    assert bool(page.all("figure")) == (count > 0)
    assert ("No sample was taken" in page.words) == (count == 0)


def test_a_program_that_was_killed_and_one_that_continues_are_distinguished(record):
    documents = [monitor_document(record(0, **ended)) for ended in ({"status": -9}, {"status": None})]
    assert [document.status for document in documents] == ["was ended by SIGKILL", "unfinished"]
    assert monitor_document(record(0, command=(), status=None)).status == ""


@pytest.mark.draws
def test_several_thousand_samples_make_a_page_no_larger_than_a_few_hundred_do(record, tmp_path):
    few, many = (draw(record(count), tmp_path) for count in (400, 4_000))
    assert len(many.source) < 1.2 * len(few.source)


def test_many_cores_and_gpus_are_drawn(record, gpu, tmp_path):
    page = draw(record(300, core_shares=(0.5,) * 128, gpus=[gpu(i) for i in range(8)]), tmp_path)
    assert "64.0 of 128 cores were busy" in page.words
    assert page.words.count("GPU 7") == 6 + 1


@pytest.mark.draws
def test_names_from_a_program_cannot_break_out(record, gpu, mark, tmp_path):
    evil = "\"'><script>alert(1)</script><b>&amp;"
    made = record(
        5,
        gpus=[gpu(name=evil, throttle_reasons=(evil,))],
        phases=[mark(evil, 0.0, 2.0, color=evil)],
        command=(evil,),
        missing=[evil],
        environment={evil: evil},
    )
    page = draw(made, tmp_path)
    assert not page.misnested
    assert not page.all("script", "b")
    assert page.text.count(evil) >= 6


def test_only_the_first_of_several_ranks_is_shown_and_that_is_said(record, mark, tmp_path):
    marks = [mark("train", 0.0, 2.0, rank=rank) for rank in range(3)]
    assert "Phases of the first of 3 ranks." in draw(record(5, phases=marks), tmp_path).words


@pytest.mark.draws
def test_the_same_record_gives_the_same_bytes(full, full_path, tmp_path):
    assert render_monitor_page(full, tmp_path / "b.html").read_bytes() == full_path.read_bytes()


def test_a_machine_that_answers_nothing_has_a_page_without_charts(record, tmp_path):
    silent = replace(record(0), samples=[Sample(time_s=1.0, period_s=1.0, host=HostSample())])
    page = draw(silent, tmp_path)
    assert not page.all("figure")
    assert "Host" not in page.words


def test_a_browser_shows_the_page_without_a_complaint_and_nothing_sticks_out(full_path, tmp_path):
    pixels = assert_shown(full_path, tmp_path, width=500, height=4500)
    assert pixels[:, -12:].std(axis=(0, 1)).max() < 0.02, "the margin holds the color of the page alone"


@pytest.mark.draws
def test_a_picture_has_a_row_for_each_chart(record, gpu, mark, tmp_path):
    ranks = tuple(RankSample(rank=rank, cores=1.0, memory_bytes=2**30) for rank in range(2))
    made = record(30, gpus=[gpu()], ranks=ranks, phases=[mark("$train$", 0.0, 9.0)])
    assert render_monitor_png(made, tmp_path / "p.png") == tmp_path / "p.png"
    picture = imread(tmp_path / "p.png")
    assert picture.shape[0] == round((0.6 + 2.0 * (4 + 2 + 6)) * 110)
    assert picture.std() > 0.05


@pytest.mark.draws
def test_a_command_with_a_name_that_is_not_utf_8_has_page_and_picture(record, tmp_path):
    made = record(3, command=("python", "M\udcfcller's\ntrain.py"))
    render_monitor_png(made, tmp_path / "p.png")
    assert "M?ller" in draw(made, tmp_path).words


@pytest.mark.draws
def test_a_record_without_samples_has_a_picture_that_says_so(record, tmp_path):
    assert imread(render_monitor_png(record(0), tmp_path / "empty.png")).shape[0] < 400


@pytest.mark.draws
def test_a_phase_is_seen_in_the_picture(record, mark, tmp_path):
    shaded = record(2, phases=[mark("train", 0.0, 2.0, color="#ff0000")])
    picture = imread(render_monitor_png(shaded, tmp_path / "p.png"))[:, :, :3]
    # Nothing else in it is red.
    assert ((picture[:, :, 0] - picture[:, :, 1]) > 0.15).mean() > 0.3


@pytest.fixture
def folder(record, tmp_path):
    made = record(5)
    files = MonitorFiles(tmp_path / "watched", pytest.fail)
    for sample in made.samples:
        files.add(sample, [])
    files.describe(made, begin_s=0.0, gpus=[], is_over=True)
    files.close()
    return tmp_path / "watched"


def test_page_and_picture_are_drawn_again_from_the_files(folder):
    assert draw_again(folder) == folder / "monitor.html"
    assert (folder / "monitor.png").read_bytes().startswith(b"\x89PNG")
    assert "mean of 2 cores" in (folder / "monitor.html").read_text()


def test_elsewhere_only_the_page_is_drawn(folder, tmp_path):
    assert draw_again(folder, tmp_path / "mine.html") == tmp_path / "mine.html"
    assert sorted(path.name for path in folder.iterdir()) == ["monitor.json", "samples.csv"]
