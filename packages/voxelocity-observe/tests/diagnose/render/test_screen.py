import dataclasses
import io
import itertools
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from shared.diagnoses import NAMES, with_facts
from voxelocity_observe.core.environment import CHECKOUT
from voxelocity_observe.diagnose.facts.whole import RefusedWrite
from voxelocity_observe.diagnose.render.screen import DiagnosisFiles, print_screen, screen_lines
from voxelocity_observe.diagnose.rules import RULES

FILES = DiagnosisFiles(page=Path("d/diagnosis.html"), json=Path("d/diagnosis.json"), trace=Path("d/trace.json.gz"))


def shown(diagnosis, *, width=80, encoding="utf-8", has_evidence=False, **options):
    """What stands on a console with this width, encoding and these options of rich."""
    content = io.BytesIO()
    file = io.TextIOWrapper(content, encoding=encoding)
    console = Console(file=file, width=width, **options)
    print_screen(diagnosis, console, files=FILES, has_evidence=has_evidence)
    file.flush()
    return content.getvalue().decode(encoding)


def test_the_first_screen_tells_all_that_a_person_needs(example_diagnosis):
    text = shown(example_diagnosis("data-bound"))
    for words in (
        "Diagnosis of python train.py --lr 1e-3",
        "The network spends 61 % of the training time waiting for data: batches are made\nin the training's own",
        "W waiting for data 60 %   F forward 14 %   B backward 21 %   O optimizer 2 %",
        "Watched: 40 steps in 20 s, 1.98 steps/s, 7.92 images/s.",
        "a step takes 0.20 s instead of 0.50 s\n(measured), about 2.6 times faster.",
        "1. Batches are made in the training's own thread, one after the other [VX101]",
        "   Gain: about 2.5 times faster (measured). Risk: safe: same results.",
        "   Change at train.py:38:\n     loader = DataLoader(\n         dataset, batch_size=4, num_workers=2, "
        "persistent_workers=True\n     )\n",
        "3. The CPU is faster in bfloat16, and the network computes in float32 [VX303]",
        "Gain: about 5 % less time (estimated). Risk: changes results.",
        "Also seen\nVX112 Unpacking gzip is most of making a batch; about 2 % less time (estimated)",
        "Not measured\n- kernels: there is no CUDA device\n",
        "Page     d/diagnosis.html\nTrace    d/trace.json.gz\nJSON     d/diagnosis.json\n",
        "Watching took 1 % of the watched time.",
        "--evidence prints all evidence; voxelocity explain VX101 says more.",
    ):
        assert words in text, words
    assert "Time of a step" not in text


@pytest.mark.parametrize("width", range(40, 100, 7))
def test_no_line_begins_with_the_unit_of_a_figure(example_diagnosis, width):
    lines = [line for name in NAMES for line in shown(example_diagnosis(name), width=width).splitlines()]
    assert not [line for line in lines if re.match(r"\s*(%|s|ms|times)\b|\s*% ", line)]


def test_starts_of_epochs_stand_beside_the_ceiling_of_a_step_where_they_are_much(example_diagnosis):
    diagnosis = example_diagnosis("data-bound")
    told = "The 40 % that pass before the first batch of an epoch come on top."
    split = [part for part in diagnosis.split if part.name != "epoch start"]
    for share, is_told in ((0.4, True), (0.02, False)):
        starts = dataclasses.replace(split[0], name="epoch start", share=share)
        text = shown(dataclasses.replace(diagnosis, split=[*split, starts]), width=200)
        assert (told in " ".join(text.split())) is is_told


def test_a_gain_that_is_not_known_is_said_once(example_diagnosis):
    diagnosis = example_diagnosis("data-bound")
    unknown = dataclasses.replace(diagnosis.findings[0], saves_s=None)
    text = shown(dataclasses.replace(diagnosis, findings=[unknown]))
    assert "   Gain: unknown. Risk: safe: same results.\n" in text


def test_more_than_three_cures_are_named_and_the_rest_is_counted(example_diagnosis):
    diagnosis = example_diagnosis("data-bound")
    first = diagnosis.findings[0]
    many = [dataclasses.replace(first, code=f"VX1{n}", saves_s=None) for n in range(10, 17)]
    text = shown(dataclasses.replace(diagnosis, findings=many))
    assert "3. Batches" in text
    assert "4. Batches" not in text
    assert "VX113 Batches are made in the training's own thread, one after the other; gain" in text
    assert "VX115" in text
    assert "VX116" not in text
    assert "and 1 more on the page" in text


def test_a_program_at_its_ceiling_gets_no_cure(example_diagnosis):
    text = shown(example_diagnosis("clean"))
    assert "Nothing holds this program back" in text
    assert "What to change" not in text


def test_examples_are_called_as_their_rules_are(example_diagnosis):
    titles = {rule.code: rule.title for rule in RULES}
    found = [finding for name in NAMES for finding in example_diagnosis(name).findings]
    assert {finding.code: finding.title for finding in found} == {
        finding.code: titles[finding.code] for finding in found
    }


def test_the_tutorial_shows_the_screen_as_it_is(example_diagnosis):
    tutorial = CHECKOUT / "docs" / "diagnose.md"
    files = DiagnosisFiles(
        page=Path("diagnosis/diagnosis.html"),
        json=Path("diagnosis/diagnosis.json"),
        trace=Path("diagnosis/recording/trace.json.gz"),
    )
    lines = screen_lines(example_diagnosis("data-bound"), width=80, has_color=False, files=files)
    assert "\n".join(line.plain for line in lines) in tutorial.read_text()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal_but_for_code_and_paths(example_diagnosis, name, width):
    diagnosis = example_diagnosis(name)
    code = {line.strip() for finding in diagnosis.findings for line in finding.change.splitlines()}
    for line in shown(diagnosis, width=width, has_evidence=True).splitlines():
        assert cell_len(line) <= width or line.strip() in code or " " not in line.split(": ")[-1].strip(), line


@pytest.mark.parametrize("columns", [24, 60, 97])
def test_the_bar_fills_its_width_and_its_parts_keep_their_order(example_diagnosis, columns):
    bar = next(line for line in shown(example_diagnosis("data-bound"), width=columns).splitlines() if "WWW" in line)
    assert len(bar) == columns
    assert "".join(dict.fromkeys(bar)) == "WFBOE-"
    assert bar.count("W") == pytest.approx(0.6 * columns, abs=2)


def test_colors_stand_beside_letters_and_never_alone(example_diagnosis):
    colored = shown(example_diagnosis("data-bound"), force_terminal=True, color_system="standard", width=60)
    assert "\x1b[30;43mW" in colored
    assert "waiting for data 60 %" in colored


@pytest.mark.parametrize(
    "options", [{"force_terminal": True, "no_color": True}, {"force_terminal": True, "color_system": None}, {}]
)
def test_without_color_the_bar_is_made_of_letters(example_diagnosis, options, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    text = shown(example_diagnosis("data-bound"), width=60, **options)
    assert "W" * 30 in text
    assert not any(f"\x1b[{color}m" in text for color in range(30, 48))


def test_a_dumb_terminal_and_no_color_get_plain_text(example_diagnosis, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    for name, value in (("TERM", "dumb"), ("NO_COLOR", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            text = shown(example_diagnosis("data-bound"), width=None, force_terminal=True)
        bar = next(line for line in text.splitlines() if "WWW" in line)
        assert (len(bar), set(bar)) == (60, set("WFBOE-")), name


@pytest.mark.parametrize("name", NAMES)
def test_a_console_of_ascii_gets_ascii(example_diagnosis, name):
    diagnosis = example_diagnosis(name)
    words = "4 × 1 patches … “wait” ≥ 2 µs, \N{SNOWMAN}"
    diagnosis = dataclasses.replace(diagnosis, not_measured=[words])
    text = shown(diagnosis, encoding="ascii", has_evidence=True)
    assert '- 4 x 1 patches ... "wait" >= 2 us, ?' in text


def test_texts_of_a_program_give_no_orders_to_the_terminal(example_diagnosis):
    diagnosis = example_diagnosis("data-bound")
    evil = "[red]\x1b[31mred\x07\x1b]0;title"
    first = dataclasses.replace(diagnosis.findings[0], title=evil, cause=evil, change=evil, where=evil)
    facts = dataclasses.replace(diagnosis.facts, command=["python", evil])
    text = shown(
        dataclasses.replace(diagnosis, findings=[first], verdict=evil, not_measured=[evil], facts=facts),
        has_evidence=True,
    )
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.count("[red]") >= 6


def test_files_that_stayed_unwritten_are_listed_with_the_line_that_asked_for_them(example_diagnosis):
    diagnosis = example_diagnosis("data-bound")
    assert "Not written" not in shown(diagnosis)
    writes = (RefusedWrite(path="/runs/last.pt", where="train.py:57"), RefusedWrite(path="/runs/\x1b[31mred.pt"))
    text = shown(with_facts(diagnosis, refused_writes=writes))
    told = "Not written because the program was being ended\n- /runs/last.pt, at train.py:57\n- /runs/?[31mred.pt\n"
    assert told in text


def test_evidence_follows_where_it_is_asked_for(example_diagnosis):
    text = shown(example_diagnosis("on a GPU"), has_evidence=True, width=100)
    for words in ("Kernel groups", "Tensor-core kernels", "gpu.py:51", "NVIDIA H100", "SW power cap (2.0 %)"):
        assert words in text
    assert "--evidence prints" not in text


def test_what_was_never_seen_leaves_no_gap(example_diagnosis):
    lines = [line.plain for line in screen_lines(example_diagnosis("nothing seen"), width=80, has_color=False)]
    assert not any(a == b == "" for a, b in itertools.pairwise(lines))
    assert "Watched" not in " ".join(lines)
