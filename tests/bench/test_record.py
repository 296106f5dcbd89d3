import json
from dataclasses import dataclass, replace

import pytest
from rich.console import Console

from voxelocity.bench import Record, comparison_section
from voxelocity.bench.paired import Comparison, Figure
from voxelocity.core.errors import OutputError
from voxelocity.report import section_view


@dataclass(frozen=True)
class Settings:
    size: int = 3


def figure(name, *values, note=""):
    return Figure(name=name, note=note, values=values)


COMPARISON = Comparison(
    title="patches from memory",
    unit="patches/s",
    better="larger",
    figures=(
        figure("Voxelocity", 60.0, 70.0, 80.0),
        figure("MONAI", 6.0, 7.0, 8.0, note="two workers"),
        figure("TorchIO", note="not installed: torchio"),
    ),
    note="image and label",
)
RECORD = Record(
    name="transforms",
    command="voxelocity bench transforms",
    date="2026-01-02",
    environment={"cpu": "x"},
    settings=Settings(),
    comparisons=(COMPARISON,),
)


def shown(comparison, width=100):
    console = Console(width=width, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(section_view(comparison_section(comparison)))
    return console.export_text()


def test_a_record_keeps_what_is_needed_to_repeat_it(tmp_path):
    page, path = RECORD.write(tmp_path / "results")
    assert path == tmp_path / "results" / "bench_transforms.json"
    assert "matches or beats every peer in 1 of 1 comparison" in page.read_text()
    kept = json.loads(path.read_text())
    assert kept["command"] == "voxelocity bench transforms"
    assert (kept["environment"], kept["settings"]) == ({"cpu": "x"}, {"size": 3})
    assert kept["comparisons"][0]["sides"][1]["ours_better_by"]["median"] == 10.0


def test_a_record_that_cannot_be_written_says_where(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write '.*file/bench_transforms\.html'"):
        RECORD.write(tmp_path / "file")


def test_the_table_tells_median_spread_count_and_factor():
    lines = shown(COMPARISON).splitlines()
    (ours,) = [line.split() for line in lines if line.startswith("Voxelocity")]
    peer = next(line.split() for line in lines if line.startswith("MONAI"))
    assert ours == ["Voxelocity", "70", "60", "to", "80", "3"]
    assert peer == ["MONAI", "7", "6", "to", "8", "3", "10×"]


def test_the_table_names_a_peer_that_is_not_installed():
    text = shown(COMPARISON)
    assert "TorchIO: not installed: torchio" in text
    assert next(line for line in text.splitlines() if line.startswith("TorchIO ")).split() == ["TorchIO", "n/a"]


def test_the_table_stays_within_60_columns():
    assert all(len(line.rstrip()) <= 60 for line in shown(COMPARISON, width=60).splitlines())


def test_the_key_figure_of_a_comparison_is_against_the_best_peer_that_was_measured():
    slower = replace(COMPARISON, title="from disk", figures=(figure("Voxelocity", 4.0), figure("MONAI", 8.0, 8.0)))
    alone = replace(COMPARISON, title="alone", figures=(figure("Voxelocity", 4.0), figure("TorchIO")))
    document = replace(RECORD, comparisons=(COMPARISON, slower, alone)).document()
    assert [(card.value, card.is_worse) for card in document.cards] == [("10×", False), ("0.50×", True)]
    assert document.cards[0].note == "MONAI 7, ours 70 patches/s"
    assert document.verdict == "Voxelocity matches or beats every peer in 1 of 2 comparisons."
    assert replace(RECORD, comparisons=(alone,)).document().verdict == "No peer was measured."
