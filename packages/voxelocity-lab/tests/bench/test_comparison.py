import io
import json
from dataclasses import replace

from rich.console import Console

from voxelocity_lab.bench.comparison import BenchSide, Comparison, Figure, Record, compare, comparison_section
from voxelocity_observe.document import section_view


def comparison(better, *values, names=("ours", "peer", "third")):
    figures = [Figure(name=name, note="", values=tuple(v)) for name, v in zip(names, values, strict=False)]
    return Comparison(title="t", unit="u", better=better, figures=tuple(figures))


def test_sides_take_turns_and_no_side_always_begins():
    calls = []
    sides = [BenchSide(name=name, once=lambda name=name: calls.append(name) or 1.0) for name in "abc"]
    compare("t", "u/s", sides, repeats=3, warmup=1)
    rounds = ["".join(calls[i : i + 3]) for i in range(0, 12, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert {order[0] for order in rounds[1:]} == {"a", "b", "c"}


def test_rounds_of_warm_up_do_not_count():
    values = iter([100.0, 1.0, 2.0, 3.0])
    found = compare("t", "u/s", [BenchSide(name="a", once=lambda: next(values))], repeats=3, warmup=1)
    assert found.figures[0].values == (1.0, 2.0, 3.0)
    assert found.figures[0].median == 2.0


def test_a_ratio_compares_the_same_round_and_not_the_medians():
    found = comparison("larger", [10.0, 40.0, 20.0], [5.0, 20.0, 1.0])
    assert found.ratios(found.figures[1]) == (2.0, 2.0, 20.0)


def test_where_smaller_is_better_the_ratio_is_turned_round():
    found = comparison("smaller", [2.0, 4.0], [6.0, 4.0])
    assert found.ratios(found.figures[1]) == (3.0, 1.0)


def test_ours_has_no_ratio_to_itself_and_none_to_a_side_that_was_not_run():
    found = comparison("larger", [1.0], [])
    assert found.ratios(found.figures[0]) == ()
    assert found.ratios(found.figures[1]) == ()


def test_a_side_that_cannot_run_is_kept_with_its_reason():
    sides = [BenchSide(name="a", once=lambda: 1.0), BenchSide(name="b", once=None, note="not installed: lmdb")]
    plain = compare("t", "u/s", sides, repeats=2).to_plain()
    assert plain["sides"][1] == {"name": "b", "note": "not installed: lmdb", "n": 0}


def test_plain_values_hold_median_spread_and_ratio():
    plain = comparison("larger", [1.0, 2.0, 6.0], [1.0, 1.0, 1.0]).to_plain()
    ours, peer = plain["sides"]
    assert ours == {"name": "ours", "note": "", "n": 3, "median": 2.0, "low": 1.0, "high": 6.0}
    assert peer["ours_better_by"] == {"median": 2.0, "low": 1.0, "high": 6.0}


def test_a_peer_that_came_to_nothing_gives_a_ratio_that_json_can_keep():
    plain = comparison("larger", [3.0], [0.0]).to_plain()
    assert json.loads(json.dumps(plain, allow_nan=False))["sides"][1]["ours_better_by"]["median"] is None


def test_of_rates_larger_is_better_and_of_everything_else_smaller():
    side = BenchSide(name="a", once=lambda: 1.0)
    units = {unit: compare("t", unit, [side], repeats=1).better for unit in ("patches/s", "s", "MiB (PSS)", "CPU-ms")}
    assert units == {"patches/s": "larger", "s": "smaller", "MiB (PSS)": "smaller", "CPU-ms": "smaller"}


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
    settings={"size": 3},
    comparisons=(COMPARISON,),
)


def shown(comparison):
    file = io.StringIO()
    Console(width=100, file=file).print(section_view(comparison_section(comparison)))
    return file.getvalue()


def test_a_record_keeps_what_is_needed_to_repeat_it(tmp_path):
    page, path = RECORD.write(tmp_path / "results")
    assert path == tmp_path / "results" / "bench_transforms.json"
    assert "matches or beats every peer in 1 of 1 comparison" in page.read_text()
    kept = json.loads(path.read_text())
    assert kept["command"] == "voxelocity bench transforms"
    assert (kept["environment"], kept["settings"]) == ({"cpu": "x"}, {"size": 3})
    assert kept["comparisons"][0]["sides"][1]["ours_better_by"]["median"] == 10.0


def test_a_record_does_not_say_whose_home_the_cache_lies_in(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    record = replace(RECORD, name="memory-format", details={"folder": str(tmp_path / "me" / "cache")})
    _, path = record.write(tmp_path)
    assert path.name == "bench_memory_format.json"
    kept = json.loads(path.read_text())
    assert (kept["benchmark"], kept["folder"]) == ("memory-format", "~/cache")


def test_the_table_tells_median_spread_count_and_factor_and_names_a_peer_that_is_not_installed():
    lines = shown(COMPARISON).splitlines()
    (ours,) = [line.split() for line in lines if line.startswith("Voxelocity")]
    peer = next(line.split() for line in lines if line.startswith("MONAI"))
    assert ours == ["Voxelocity", "70", "60", "to", "80", "3"]
    assert peer == ["MONAI", "7", "6", "to", "8", "3", "10×"]
    assert next(line.split() for line in lines if line.startswith("TorchIO ")) == ["TorchIO", "n/a"]
    assert any("TorchIO: not installed: torchio" in line for line in lines)


def test_the_key_figure_leaves_out_other_ways_of_ours():
    figures = (figure("Voxelocity", 4.0), figure("Voxelocity, dense", 9.0), figure("MONAI", 2.0))
    (card,) = replace(RECORD, comparisons=(replace(COMPARISON, figures=figures),)).document().cards
    assert card.value == "2.0×"
    assert card.note.startswith("MONAI ")


def test_the_key_figure_of_a_comparison_is_against_the_best_peer_that_was_measured():
    slower = replace(COMPARISON, title="from disk", figures=(figure("Voxelocity", 4.0), figure("MONAI", 8.0, 8.0)))
    alone = replace(COMPARISON, title="alone", figures=(figure("Voxelocity", 4.0), figure("TorchIO")))
    document = replace(RECORD, comparisons=(COMPARISON, slower, alone)).document()
    assert [(card.value, card.is_worse) for card in document.cards] == [("10×", False), ("0.50×", True)]
    assert document.cards[0].note == "MONAI 7, ours 70 patches/s"
    assert document.verdict == "Voxelocity matches or beats every peer in 1 of 2 comparisons."
    assert replace(RECORD, comparisons=(alone,)).document().verdict == "No peer was measured."


def test_a_table_marks_only_factors_of_peers_that_were_faster_as_worse():
    figures = (figure("Voxelocity", 4.0), figure("MONAI", 8.0), figure("fast MONAI", 2.0), figure("TorchIO"))
    table, *_ = comparison_section(replace(COMPARISON, figures=figures)).blocks
    assert table.worse_cells == {(1, 4)}
