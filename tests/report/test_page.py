import base64
import itertools
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.image import imread

from voxelocity.core.errors import InputError, OutputError
from voxelocity.report import LabeledRun, read_run, render_page, verdict

VOID = {"meta", "link", "img", "br", "hr", "input", "wbr"}


class Page(HTMLParser):
    """What a reader of the page meets: tags in order, text, and whether every tag is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text, self.misnested = [], [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.misnested.append(tag)

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data

    def all(self, *names):
        return [attrs for tag, attrs in self.tags if tag in names]

    @property
    def words(self):
        return " ".join(self.text.replace("\u00a0", " ").split())


@pytest.fixture(scope="module")
def text(finished_run, tmp_path_factory):
    """The page of the finished run."""
    return render_page(read_run(finished_run), tmp_path_factory.mktemp("page") / "r.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def draw(folder, path, **options):
    return Page(render_page(read_run(folder), path, **options).read_text(encoding="utf-8"))


def test_the_page_is_well_formed_and_says_its_language(page, text):
    assert not page.misnested
    assert not page.open
    assert page.all("html") == [{"lang": "en"}]
    assert text.startswith("<!doctype html>")


def test_the_page_asks_for_nothing_from_outside_and_runs_no_script(page, text):
    for attrs in (attrs for _, attrs in page.tags):
        for name in ("src", "href", "xlink:href", "data", "action", "poster", "srcset"):
            value = attrs.get(name) or "#"
            assert value.startswith(("#", "data:")), (name, value[:60])
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert not page.all("script", "iframe", "object", "embed")
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    policy = next(attrs["content"] for attrs in page.all("meta") if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")


def test_headings_go_down_one_level_at_a_time(page):
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))


def test_every_picture_has_words_and_every_head_a_direction(page):
    assert len(page.all("img")) == 8
    assert all(attrs.get("alt") for attrs in page.all("img"))
    assert all(attrs.get("scope") in ("col", "row", "rowgroup") for attrs in page.all("th"))
    assert all(attrs.get("aria-label") for _, attrs in page.tags if attrs.get("role") in ("img", "region"))
    assert all(attrs.get("tabindex") == "0" for _, attrs in page.tags if attrs.get("role") == "region")
    tables = len(page.all("table"))
    assert tables == len(page.all("caption")) == len(page.all("thead")) > 8


def test_ids_are_unique_and_links_within_the_page_lead_somewhere(write, events, tmp_path):
    events.insert(9, {"event": "warning", "time_s": 20.0, "text": "one scan has no foreground"})
    page = draw(write(events=events), tmp_path / "r.html")
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [attrs["href"][1:] for attrs in page.all("a")]
    assert links == ["main", "warnings"]
    assert set(links) <= set(ids)


def test_the_sections_follow_the_order_of_questions(text):
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", text) == [
        "Learning curves",
        "Slices",
        "Scores",
        "Where the time went",
        "The plan and its reasons",
        "Data set",
        "Machine",
        "Warnings",
        "Do it again",
    ]


def test_the_figures_of_the_run_stand_on_the_page(page, finished_run):
    words = page.words
    assert verdict(read_run(finished_run)) in words
    for phrase in (
        "Mean Dice 0.882 lowest case 0.4",
        "Images per second 704",
        "Total time 5 min 2 s of a budget of 10 min",
        "The other 32 cases",
        "data.cache.tier memory all 260 prepared cases take 61 MiB of 102 GiB of free memory",
        "Changes the results: another value trains or predicts differently Setting Value Why data.patch.shape_voxel",
        "Changes only speed and memory: results stay the same Setting Value Why data.cache.tier",
        "precision.channels_last yes measured here: a step takes 0.71 times as long (0.69 to 0.74, n = 5; 223",
        "--set KEY=VALUE",
        "NVIDIA H100 80GB HBM3",
        "voxelocity train Task04_Hippocampus -o runs/hippocampus --time-budget 10m",
        "training steps 4 min 20 s 86.1 %",
    ):
        assert phrase in words


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
    assert "Not held out: the network was judged on the cases it was trained on (fold = all)." in trained_on.words


@pytest.mark.parametrize("num_events", [0, 1, 5, 40, 200])
def test_a_run_can_be_drawn_at_any_moment(write, events, num_events, tmp_path):
    page = draw(write(events=events[:num_events]), tmp_path / "r.html")
    assert not page.misnested
    assert "This run has not finished" in page.words


def test_an_interrupted_run_says_how_to_go_on(write, events, tmp_path):
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


def test_a_baseline_called_like_the_run_is_refused(finished_run, tmp_path):
    with pytest.raises(InputError, match="two runs have the same label"):
        draw(finished_run, tmp_path / "r.html", baseline=LabeledRun(label="This run"))


def test_the_same_facts_give_the_same_bytes(text, finished_run, tmp_path):
    assert render_page(read_run(finished_run), tmp_path / "again.html").read_text(encoding="utf-8") == text


def test_a_path_that_cannot_be_written_is_an_output_error(finished_run):
    with pytest.raises(OutputError, match=r"report: cannot write"):
        render_page(read_run(finished_run), finished_run / "run.yaml" / "report.html")


def test_a_browser_shows_the_page_without_a_complaint(text, finished_run, browse, tmp_path):
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


def test_charts_and_style_sheet_agree_on_every_color(text):
    style = text[: text.index("</style>")]
    light, dark = style.split("prefers-color-scheme: dark")
    for variable in set(re.findall(r"var\((--[\w-]+)\)", text)) - {"--swatch"}:
        assert f"{variable}:" in light, variable
        assert f"{variable}:" in dark, variable


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
    assert sources[0] == sources[1], "truth and prediction of the first made-up slice are equal"
    assert sources[2] != sources[3]
