"""What all commands print: nothing loses a letter at any width, and one of a thing is called one."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections import Counter

import pytest

from shared.examples import widths
from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.core.progress_bar import WorkProgress

# Words that end like a plural and are none, or that count something else: "1 is", "fold 1 has".
_NO_PLURALS = {"loss", "class", "pass", "this", "was", "has", "is", "its", "channels_last", "axis"}


@pytest.fixture
def screens(monkeypatch):
    """What was printed with a console, as it can be printed again, and where bars began."""
    kept = []
    for name in ("print", "rule"):
        method = getattr(PlainConsole, name)

        def keep(self, *objects, _name=name, _method=method, **options):
            kept.append((_name, objects, options))
            _method(self, *objects, **options)

        monkeypatch.setattr(PlainConsole, name, keep)
    enter = WorkProgress.__enter__

    def begin(self):
        kept.append(("bar", (), {}))
        return enter(self)

    monkeypatch.setattr(WorkProgress, "__enter__", begin)
    yield kept
    monkeypatch.undo()


def text_of(screen, width):
    name, objects, options = screen
    console = PlainConsole(file=io.StringIO(), width=width)
    getattr(console, name)(*objects, **options)
    return console.file.getvalue()


def assert_whole(screens):
    """Of what must not be lost: letters and digits. What is shown twice in narrow terminals may be."""
    for screen in (screen for screen in screens if screen[0] != "bar"):
        # A narrow plan is "setting = value" and, below that, why.
        wide = re.sub(r"^setting +value +why$", "", text_of(screen, 10_000), flags=re.MULTILINE)
        whole = Counter(filter(str.isalnum, wide))
        for width in widths():
            text = text_of(screen, width)
            assert not whole - Counter(filter(str.isalnum, text)), (width, text)
            assert "\u2026" not in text, (width, text)


def lines_before_the_first_bar(screens):
    """In a terminal of 100 columns."""
    names = [screen[0] for screen in screens]
    return sum(len(text_of(screen, 100).splitlines()) for screen in screens[: names.index("bar")])


def plurals_of_one(text):
    return [found[0] for found in re.finditer(r"(?<![\d.,])1 (?!of )([a-z]+s)\b", text) if found[1] not in _NO_PLURALS]


def test_no_command_loses_a_letter_at_any_width_or_prints_much_before_its_first_bar(
    voxelocity, screens, own_msd, tiny_sets, tmp_path
):
    long_name = "A_patient_whose_name_is_longer_than_a_narrow_terminal_is_wide"
    for folder in ("imagesTr", "labelsTr"):
        shutil.move(own_msd / folder / "case_0.nii.gz", own_msd / folder / f"{long_name}.nii.gz")
    described = own_msd / "dataset.json"
    described.write_text(described.read_text().replace("case_0", long_name))
    run, cv, predicted = tmp_path / "run", tmp_path / "cv", tmp_path / "predicted"
    sets, shown = (*tiny_sets, "--device", "cpu"), []
    for most, words in (
        (12, ("train", own_msd, "-o", run, *sets)),
        (12, ("train", own_msd, "-o", cv, "--folds", "0,1", *sets)),
        (3, ("predict", run, own_msd / "imagesTr", "-o", predicted, "--device", "cpu")),
        (3, ("evaluate", predicted, own_msd, "-o", tmp_path / "evaluated")),
        (None, ("plan", own_msd, *sets, "--memory")),
        (None, ("report", run, cv / "fold_1", "-o", tmp_path / "comparison.html")),
        (None, ("report", run, "-o", tmp_path / "page.html")),
    ):
        screens.clear()
        ended = voxelocity(*words).succeeded()
        assert most is None or lines_before_the_first_bar(screens) <= most, words[0]
        assert not plurals_of_one(ended.out)
        shown += screens
    described.unlink()
    voxelocity("init", own_msd).succeeded()
    assert len(shown) > 30
    assert_whole([*shown, *screens])


def test_one_of_a_thing_is_called_one(voxelocity, own_msd, tiny_sets, tmp_path):
    described = json.loads((own_msd / "dataset.json").read_text())
    described["training"] = [
        {**entry, "fold": int(number > 0)} for number, entry in enumerate(described["training"][:2])
    ]
    (own_msd / "dataset.json").write_text(json.dumps(described))
    run, scan = tmp_path / "run", own_msd / "imagesTr" / "case_0.nii.gz"
    sets = (*tiny_sets, "--device", "cpu", "--set", "train.steps=1")
    truth = tmp_path / "truth"
    truth.mkdir()
    shutil.copy(own_msd / "labelsTr" / "case_0.nii.gz", truth)
    texts = [
        ended.succeeded().out + ended.err
        for words in (
            ("train", own_msd, "-o", run, *sets, "--verbose"),
            ("train", own_msd, "-o", tmp_path / "short", *sets),
            ("train", own_msd, "-o", tmp_path / "cv", "--folds", "all", *sets),
            ("predict", run, scan, "-o", tmp_path / "predicted", "--device", "cpu"),
            ("evaluate", tmp_path / "predicted", truth, "-o", tmp_path / "evaluated"),
            ("plan", own_msd, *sets, "--memory"),
            ("report", run, tmp_path / "short", "-o", tmp_path / "comparison.html"),
        )
        for ended in [voxelocity(*words)]
    ]
    assert not plurals_of_one("\n".join(texts))
    pages = [path.read_text() for path in tmp_path.rglob("*.html")]
    assert len(pages) >= 6
    words = [re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL) for page in pages]
    assert not [found for page in words for found in plurals_of_one(re.sub(r"<[^>]*>", " | ", page))]
