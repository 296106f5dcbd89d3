import base64
import re

import numpy as np
import pytest
from matplotlib.image import imread

from shared.page import Page, assert_accessible, assert_colored, assert_golden, assert_safe, browse
from voxelocity.report import LabeledRun, read_run, render_page
from voxelocity.report.summary import verdict


@pytest.fixture(scope="module")
def text(finished_run, tmp_path_factory):
    """The page of the finished run."""
    return render_page(read_run(finished_run), tmp_path_factory.mktemp("page") / "r.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def draw(folder, path, **options):
    return Page(render_page(read_run(folder), path, **options).read_text(encoding="utf-8"))


def test_the_page_says_its_language(page, text):
    assert page.all("html") == [{"lang": "en"}]
    assert text.startswith("<!doctype html>")


def test_the_page_is_safe_and_a_reader_without_eyes_or_mouse_finds_everything(page):
    assert_safe(page)
    assert_accessible(page)
    assert_colored(page.source)
    assert len(page.all("img")) == 4 * 2 * 4, "four cases, two planes, the scan and three layers"
    assert len(page.all("table")) > 8
    policy = next(attrs["content"] for attrs in page.all("meta") if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")


def test_ids_are_unique_and_links_within_the_page_lead_somewhere(write, events, tmp_path):
    events.insert(9, {"event": "warning", "time_s": 20.0, "text": "one scan has no foreground"})
    page = draw(write(events=events), tmp_path / "r.html")
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [attrs["href"][1:] for attrs in page.all("a")]
    assert links == ["main", "warnings"]
    assert set(links) <= set(ids)


def test_the_page_reads_as_agreed(page, finished_run):
    assert verdict(read_run(finished_run)) in page.words
    assert_golden(page, "run")


def test_text_from_data_cannot_break_out(write, record, events, scores, tmp_path):
    evil = "\"'><script>alert(1)</script><b>&amp;"
    record["dataset"] |= {"name": evil, "classes": ["background", evil], "path": evil, "channels": [evil]}
    record["command"] = evil
    record["choices"][0] |= {"key": evil, "value": evil, "reason": evil}
    record["fingerprint"][evil] = evil
    record["plan"][evil] = {evil: evil}
    events[0]["environment"] = {evil: evil}
    events[1] |= {"name": evil}
    events.append({"event": "warning", "time_s": 303.0, "text": evil})
    events[5]["parts"] = {evil: 0.1}
    scores = [{"case_id": evil, "dice": {evil: 0.5}, "hd95_mm": {evil: 1.0}}]
    plane = np.eye(8, dtype=np.uint8)
    slices = {"0_image": plane, "0_truth": plane, "0_prediction": plane, "0_title": np.array(evil)}
    folder = write(record=record, events=events, scores=scores, slices=slices)
    page = draw(folder, tmp_path / "r.html", baseline=LabeledRun(label=evil, wall_s=1.0))
    assert not page.misnested
    assert not page.all("script", "b")
    assert page.text.count(evil) > 15
    assert page.all("img")[0]["alt"].startswith(evil)


def test_cases_that_were_trained_on_are_called_so(page, write, record, events, scores, tmp_path):
    assert "Not held out" not in page.words
    record["dataset"] |= {"held_out": False, "fold": "all"}
    trained_on = draw(write(record=record, events=events, scores=scores), tmp_path / "r.html")
    assert "Not held out: the network was scored on its training cases (fold = all)." in trained_on.words


@pytest.mark.parametrize("num_events", [0, 1, 5, 40, 200])
def test_a_run_can_be_drawn_at_any_moment(write, events, num_events, tmp_path):
    page = draw(write(events=events[:num_events]), tmp_path / "r.html")
    assert not page.misnested
    assert "This run has not finished" in page.words


def test_an_interrupted_run_says_how_to_continue(write, events, tmp_path):
    stop = {"event": "interrupted", "time_s": 60.0, "signal": 2}
    page = draw(write(events=[*events[:40], stop]), tmp_path / "r.html")
    assert "Interrupted by Ctrl-C" in page.words
    assert "the same command continues from there" in page.words


def test_a_run_stopped_before_its_first_step_claims_no_saved_state(write, events, tmp_path):
    stop = {"event": "interrupted", "time_s": 14.0, "signal": 2}
    page = draw(write(events=[*events[:4], stop]), tmp_path / "r.html")
    assert "stopped before its first training step; the same command trains it" in page.words
    assert "saved its state" not in page.words


def test_factors_appear_only_beside_a_baseline(page, finished_run, tmp_path):
    assert "Compared with the baseline" not in page.words
    baseline = LabeledRun(label="Plain", seconds_to_target=512.0)
    words = draw(finished_run, tmp_path / "r.html", baseline=baseline).words
    assert "Compared with the baseline" in words
    assert "Time to Dice 0.85 8 min 32 s 2 min 8 s 4.0×" in words


def test_the_same_facts_give_the_same_bytes(text, finished_run, tmp_path):
    assert render_page(read_run(finished_run), tmp_path / "again.html").read_text(encoding="utf-8") == text


def test_a_browser_shows_the_page_without_a_complaint(text, finished_run, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(text, encoding="utf-8")
    picture = tmp_path / "page.png"
    dump = browse(path, tmp_path / "one", "--dump-dom")
    assert verdict(read_run(finished_run)) in Page(dump.stdout).words
    shot = browse(path, tmp_path / "two", f"--screenshot={picture}", "--window-size=1200,4000", "--hide-scrollbars")
    complaints = [line for line in (dump.stderr + shot.stderr).splitlines() if "CONSOLE" in line]
    assert complaints == []
    pixels = imread(picture)
    assert pixels.shape[:2] == (4000, 1200)
    for part in np.split(pixels[:3000, :, :3], 6):
        assert part.std() > 0.02, "a blank stretch"


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_keep_the_contrast_that_wcag_asks_for(text, scheme):
    light, dark = text[: text.index("@media (max-width")].split("prefers-color-scheme: dark")
    colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light if scheme == "light" else dark))

    def contrast(a, b):
        high, low = sorted((luminance(colors[a]), luminance(colors[b])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    words = [("ink", "page"), ("muted", "page"), ("muted", "surface"), ("accent", "page"), ("chart-ink", "page")]
    for pair in [*words, ("accent", "accent-soft"), ("warn", "warn-soft")]:
        assert contrast(*pair) >= 4.5, pair
    for line in ["accent", "baseline", "chart-target", *(f"class-{i}" for i in range(1, 8))]:
        assert contrast(line, "page") >= 3.0, line


def test_slices_stand_on_the_page_as_pictures(page):
    sources = [attrs["src"] for attrs in page.all("img")]
    assert all(base64.b64decode(source.split(",")[1]).startswith(b"\x89PNG") for source in sources)
    assert sources[1] == sources[2], "truth and prediction of the first made-up case are equal"
    assert sources[9] != sources[10]


def test_a_reader_chooses_what_lies_over_the_scan_without_a_script(page):
    chosen = [attrs["class"] for attrs in page.all("input") if "checked" in attrs]
    assert chosen == ["show-prediction", "opacity-50"]
    assert {attrs["name"] for attrs in page.all("input")} == {"layer", "opacity"}
    assert len([attrs for attrs in page.all("span") if "stop" in attrs.get("class", "")]) == 4 * (3 + 2)


def test_the_one_slice_of_earlier_versions_is_shown_too(write, tmp_path):
    plane = np.eye(8, dtype=np.uint8)
    slices = {"0_image": plane, "0_truth": plane, "0_prediction": plane, "0_title": np.array("old, Dice 0.5")}
    page = draw(write(slices=slices), tmp_path / "r.html")
    assert next(attrs["alt"] for attrs in page.all("img")) == "old, Dice 0.5: axial slices of the scan"
