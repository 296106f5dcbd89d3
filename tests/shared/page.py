"""A page as its reader meets it, and what must hold for every page."""

import difflib
import itertools
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from shared.limits import HANGS_S

_GOLDEN = Path(__file__).resolve().parents[1] / "golden"
_LINES = {"h1", "h2", "h3", "h4", "p", "li", "tr", "dl", "caption", "summary", "pre", "figcaption", "details", "figure"}
_CELLS = {"th", "td", "dt", "dd", "span"}
_MARKS = {"h1": "# ", "h2": "## ", "h3": "### ", "caption": "table: ", "summary": "+ ", "li": "- ", "p": ""}
_VOID = {"meta", "link", "img", "br", "hr", "input", "wbr"}
_ADDRESSES = ("src", "href", "xlink:href", "data", "action", "poster", "srcset")


class Page(HTMLParser):
    """Tags in order, the text of the page, and tags that are not closed in order."""

    def __init__(self, source):
        super().__init__()
        self.source, self.tags, self.open, self.text, self.misnested = source, [], [], "", []
        self._outline = [""]
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)
        if tag in _LINES:
            self._outline.append(_MARKS.get(tag, ""))
        elif tag in _CELLS or tag in ("img", "svg"):
            self._outline[-1] += " | "
        if dict(attrs).get("role") == "img" or tag == "img":
            self._outline[-1] += dict(attrs).get("alt") or dict(attrs)["aria-label"]

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.misnested.append(tag)
        if tag in _LINES:
            self._outline.append("")

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data
            if "svg" not in self.open:
                self._outline[-1] += data

    def all(self, *names):
        return [attrs for tag, attrs in self.tags if tag in names]

    @property
    def words(self):
        return " ".join(self.text.replace("\u00a0", " ").split())

    @property
    def outline(self):
        """What is read on the page, top to bottom: a line for each heading, paragraph, row and item."""
        lines = (" ".join(line.replace("\u00a0", " ").split()) for line in self._outline)
        lines = (re.sub(r"(\| )+\|(?= |$)", "|", line).strip("| ") for line in lines)
        return "".join(f"{line}\n" for line in lines if line and line not in ("-", "+", "#", "##", "###"))


def assert_golden(page, name):
    """The page reads as `golden/NAME.txt` says; with UPDATE_GOLDEN=1 that file is written instead."""
    path = _GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(page.outline, encoding="utf-8")
    kept = path.read_text(encoding="utf-8").splitlines()
    changes = list(difflib.unified_diff(kept, page.outline.splitlines(), str(path), "the page", lineterm="", n=1))
    assert not changes, "\n".join([*changes, "If this is meant, UPDATE_GOLDEN=1 takes it over."])


def assert_safe(page):
    """It is well formed, asks for nothing from outside and runs no script."""
    assert not page.misnested
    assert not page.open
    for attrs in (attrs for _, attrs in page.tags):
        for name in _ADDRESSES:
            value = attrs.get(name) or "#"
            assert value.startswith(("#", "data:")), (name, value[:60])
        assert not any(name.startswith("on") for name in attrs)
    assert not re.search(r"url\((?!#)|@import", page.source)
    assert not page.all("script", "iframe", "object", "embed")


def assert_accessible(page):
    """A reader without eyes or mouse finds everything: headings, tables, pictures, scrolling regions."""
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))
    assert all(attrs.get("scope") in ("col", "row", "rowgroup") for attrs in page.all("th"))
    assert all(attrs.get("alt") for attrs in page.all("img"))
    assert all(attrs.get("aria-label") for _, attrs in page.tags if attrs.get("role") in ("img", "region"))
    assert all(attrs.get("tabindex") == "0" for _, attrs in page.tags if attrs.get("role") == "region")
    assert all(attrs.get("tabindex") == "0" for attrs in page.all("pre"))
    assert len(page.all("table")) == len(page.all("caption")) == len(page.all("thead"))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))


def assert_colored(source):
    """Every color variable has a light and a dark form."""
    light, dark = source[: source.index("</style>")].split("prefers-color-scheme: dark")
    for variable in set(re.findall(r"var\((--[\w-]+)\)", source)) - {"--swatch", "--count", "--ratio"}:
        assert f"{variable}:" in light, variable
        assert f"{variable}:" in dark, variable


_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def browse(page, profile, *options):
    """Chromium's answer to a page, as a completed process."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(_BROWSERS)} is on PATH")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={profile}", "--enable-logging=stderr", *options, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=True)


def assert_shown(page, folder, *, width, height):
    """Chromium shows the page without a complaint or a blank stretch. Returns its pixels (y, x, color)."""
    import numpy as np
    from matplotlib.image import imread

    picture = folder / "page.png"
    options = (f"--screenshot={picture}", f"--window-size={width},{height}", "--hide-scrollbars")
    shot = browse(page, folder / "profile", *options)
    assert [line for line in shot.stderr.splitlines() if "CONSOLE" in line] == []
    pixels = imread(picture)[:, :, :3]
    assert pixels.shape[:2] == (height, width)
    for part in np.split(pixels[:3000], 6):
        assert part.std() > 0.01, "a blank stretch"
    return pixels
