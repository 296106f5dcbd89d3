"""What `benchmarks/tables.py` makes of records; `tests/docs` compares the pages with those of the repository."""

import importlib
import json
import subprocess
from xml.etree import ElementTree

import pytest

from voxelocity_observe.core.environment import CHECKOUT

SCRIPT = CHECKOUT / "packages" / "voxelocity-lab" / "benchmarks" / "tables.py"


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """The script, with its result files in a folder of the test's own."""
    tables = importlib.import_module("tables")
    monkeypatch.setattr("tables_of.results.RESULTS", tmp_path)
    monkeypatch.setattr("tables_of.results.is_in_history", lambda commit: commit != "unheard of")
    return tables


@pytest.fixture
def record(tmp_path):
    """A record of `voxelocity bench transforms`, written where the script looks."""
    sides = [
        {"name": "Voxelocity", "note": "", "n": 5, "median": 70.0, "low": 60.0, "high": 1234.5},
        {"name": "MONAI", "note": "two workers", "n": 5, "median": 7.0, "low": 6.0, "high": 8.0,
         "ours_better_by": {"median": 10.0, "low": 9.0, "high": 11.0}},
        {"name": "TorchIO", "note": "not installed: torchio", "n": 0},
    ]  # fmt: skip
    comparison = {"title": "patches", "unit": "patches/s", "better": "larger", "note": "crop", "sides": sides}
    record = {"benchmark": "transforms", "command": "voxelocity bench transforms", "date": "2026-01-02"}
    environment = dict.fromkeys(("cpu", "gpu", "torch", "monai", "commit"), "x") | {"num_cpus": 2, "memory_bytes": 1}
    (tmp_path / "bench_transforms.json").write_text(
        json.dumps({**record, "environment": environment, "comparisons": [comparison]})
    )
    return tmp_path / "bench_transforms.json"


def test_a_concept_page_shows_the_comparisons_of_its_own_scenarios_in_short(tables, record):
    lines = tables.page_tables("augmentation.md").splitlines()
    assert lines[0] == "**patches**"
    assert "| Voxelocity | 70 | 60 to 1,234 | 5 | n/a |" in lines
    assert "| MONAI | 7 | 6 to 8 | 5 | 10× |" in lines
    assert "| TorchIO | n/a |  | 0 | not installed: torchio |" in lines
    assert lines[-1].startswith("`voxelocity bench transforms`, 2026-01-02, commit x, x, 2 cores, 1 B, GPU: x.")
    assert tables.page_tables("patches.md") == "Not measured at a clean commit yet: no result file"


@pytest.mark.parametrize(
    ("commit", "reason"),
    [
        ("a" * 40 + "-dirty", "measured with uncommitted changes"),
        ("unheard of", "measured at commit unheard of, which this repository does not hold"),
    ],
)
def test_a_record_that_nobody_could_repeat_stands_in_no_table_but_is_named(tables, record, commit, reason):
    kept = json.loads(record.read_text())
    kept["environment"]["commit"] = commit
    record.write_text(json.dumps(kept))
    assert tables.page_tables("augmentation.md").endswith(f"bench_transforms.json: {reason}")
    page = tables.measured_page()
    assert f"- bench_transforms.json: {reason}" in page
    assert "MONAI | 7 |" not in page


def test_rows_of_several_calls_are_named_with_their_own_commits(tables, record, tmp_path):
    from tables_of.results import load, refusal, source_line

    kept = json.loads(record.read_text()) | {"command": "python tune.py --rounds 2 --only 'thick slices'"}
    rows = {"thin": {"commit": "b" * 40}, "thick slices": {}, "coarse": {}}
    line = source_line(kept, rows)
    assert line.startswith(f"thin: commit {'b' * 12}. coarse: commit not recorded. `python tune.py --rounds 2`, ")
    assert "commit x, x, 2 cores" in line
    assert source_line({**kept, "commits": {"coarse": "x"}}, rows).startswith(f"thin: commit {'b' * 12}. `python tune")
    elsewhere = {**kept, "commits": {"coarse": "x"}, "cpus": {"coarse": "another one"}}
    assert "coarse: commit x, another one. `python tune" in source_line(elsewhere, rows)
    assert source_line(kept).startswith("`python tune.py --rounds 2 --only 'thick slices'`")
    # One that nobody could repeat is one too many.
    assert "uncommitted" in refusal({**kept, "commits": {"thin": "a-dirty"}})
    assert load("bench_transforms.json")


def test_a_commit_is_known_if_it_leads_to_the_checkout(tables, monkeypatch):
    monkeypatch.undo()
    from tables_of.results import is_in_history

    head = subprocess.run(["git", "-C", SCRIPT.parent, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    assert is_in_history(head.strip())
    assert not is_in_history("0" * 40)
    assert not is_in_history("x")


def test_a_target_is_reported_with_every_side_its_range_and_its_seeds(tables):
    from tables_of.results import times_to_target

    seconds = {"MONAI": [60.0, None, None], "Voxelocity": [40.0, 30.0, 50.0]}
    assert times_to_target({"limit_s": 120.0, "seconds_to_target": seconds}) == {
        "MONAI": "not within 2 min in 2 of 3", "Voxelocity": "40 s (30 s to 50 s)",
    }  # fmt: skip


def test_a_fresh_clone_is_reported_by_command_and_by_home_folder(tables):
    run = {"status": 0, "wall_s": 121.0, "cpu_s": 200.4}
    trainings = [{"cpu_s": cpu_s, "first_step_s": cpu_s / 2} for cpu_s in (16.0, 14.0, 19.0)]
    found = {
        "install": run | {"command": "make loops"}, "test": run | {"command": "make test"}, "help_s": 0.2,
        "demo": {"runs": [run | {"command": "make demo"}] * 2, "verdict": "Quicker."},
        "trainings": {"empty": trainings, "used": trainings[:1]},
    }  # fmt: skip
    lines = importlib.import_module("tables_of.measured").fresh_clone_lines({"found": found})
    assert "| `make demo`, again | 0 | 2 min 1 s | 200 |" in lines
    assert "| empty | 8.0 (7.0 to 9.5) | 16.0 (14.0 to 19.0) | 3 |" in lines
    assert "| used | 8.0 (8.0 to 8.0) | 16.0 (16.0 to 16.0) | 1 |" in lines


def test_a_page_without_the_marks_is_named(tables):
    with pytest.raises(AssertionError, match=r"page\.md needs the marks <!-- figures: made by"):
        tables._filled("# Page\n", "", where="page.md")
    with pytest.raises(AssertionError, match=r"page\.md needs the marks <!-- figures of the curves: made by"):
        tables._filled(f"{tables._BEGIN}\n{tables._END}\n", "", where="page.md", name="the curves")


def test_tables_replace_what_stood_between_the_marks_and_nothing_else(tables):
    page = f"before\n{tables._BEGIN}\nold\n{tables._END}\nafter\n"
    assert tables._filled(page, "new", where="page") == f"before\n{tables._BEGIN}\nnew\n{tables._END}\nafter\n"


def test_tables_of_the_named_page_that_are_not_measured_yet_say_so(tables, tmp_path):
    page = tmp_path / "spans.md"
    begin, end = (mark.replace("figures", "figures of the own cost") for mark in (tables._BEGIN, tables._END))
    page.write_text(f"# Spans\n\n{begin}\n{end}\n")
    assert (
        tables._named_page(page, tables._NAMED_TABLES["spans.md"]).count("Not measured yet: run the commands above")
        == 1
    )


ENVIRONMENT = dict.fromkeys(("cpu", "gpu", "torch", "monai", "commit"), "x") | {"num_cpus": 2, "memory_bytes": 1}


def test_the_page_on_auto3dseg_shows_what_each_search_chose_and_whether_it_ran(tables, tmp_path):
    ran = {"kind": "finished", "seconds": 30.0, "patches": 60, "peak_bytes": 2**30}
    theirs = {"trials": 8, "failed": 2, "seconds": 80.0, "chosen": {"training#num_images_per_batch": 7}}
    ours = {"trials": 4, "failed": 0, "seconds": 40.0, "chosen": {"training#num_patches_per_iter": 3}, "runs": [ran]}
    sides = {
        "default": {"runs": [ran, {**ran, "kind": "out_of_memory"}]},
        "theirs": {**theirs, "would_have_ended_at": 5, "runs": [ran, {**ran, "seconds": 36.0}]},
        "ours": ours,
    }
    record = {"command": "python x.py", "environment": ENVIRONMENT, "found": {"dints": sides}}
    (tmp_path / "auto3dseg.json").write_text(json.dumps(record))
    none, theirs, ours = (line for line in tables.tuning.auto3dseg_lines() if line.startswith("| dints"))
    assert "finished, out of memory" in none
    assert "8 in 1 min 20 s, 2 failed, would have ended at trial 5" in theirs
    assert "`num_images_per_batch` 7 | yes | 33 s (30 s to 36 s, n = 2) | 60 | 0.55 | 1.00 GiB |" in theirs
    assert "`num_patches_per_iter` 3 | yes |" in ours
    assert "| 0.5 | 1.00 GiB |" in ours


def test_the_page_on_auto3dseg_shows_trainings_before_and_after_with_their_curves(tables, tmp_path):
    def training(seconds, dice):
        curves = {"loss": [[1.0, 2.0, 0.5], [seconds, 12.0, 0.25]], "dice": [[seconds, 12.0, dice]]}
        return {"kind": "finished", "seconds": seconds, "patches": 60, "peak_bytes": 2**30, "curves": curves}

    search = {"trials": 4, "failed": 0, "seconds": 40.0, "chosen": {"training#num_patches_per_iter": 3}}
    found = {"search": search, "target_dice": 0.7, "before": {"runs": [training(80.0, 0.7), training(40.0, 0.8)]}}
    found["after"] = {"runs": [training(40.0, 0.9), training(40.0, 0.9)]}
    head = {"command": "python x.py", "environment": ENVIRONMENT, "load_average": 3.0, "networks": "small"}
    (tmp_path / "auto3dseg_curves.json").write_text(json.dumps({**head, "found": {"dints": found}}))
    lines = tables.tuning.auto3dseg_curve_lines()
    assert lines[0] == "**dints**, small networks; chosen: `num_patches_per_iter` 3"
    assert "| time to Dice 0.7 | 1 min | 40 s | 1.5× | 1.0× to 2.0× |" in lines
    assert "| CPU time to Dice 0.7 | 12 s | 12 s | 1.0× | 1.0× to 1.0× |" in lines
    assert "| best Dice | 0.750 | 0.900 |  |  |" in lines
    assert "| 40 s | 0.500 | 0.250 |  | 0.900 |" in lines, "halfway through the longer training"
    assert "| 1 min 20 s | 0.250 | 0.250 | 0.700 | 0.900 |" in lines
    assert lines[-1].startswith("n = 2 pairs")


def test_the_settings_are_shown_off_and_on_with_the_ratios_of_pairs(tables, tmp_path):
    def comparison(title, unit, off, on, ratio):
        ratios = {"median": ratio, "low": ratio - 0.5, "high": ratio + 0.5}
        sides = [{"name": "cached", "median": on}, {"name": "read again", "median": off}]
        sides = [{**side, "n": 3, "note": ""} for side in sides]
        sides[1]["ours_better_by"] = ratios
        return {"title": title, "unit": unit, "better": "smaller", "note": "", "sides": sides}

    found = [
        comparison("cases kept: training on 12 volumes", "images/s", 5.0, 20.0, 4.0),
        comparison("More time for the first steps", "s", 1.0, 1.0, 1.0),
        comparison("Peak main memory", "MiB", 800.0, 1600.0, 0.5),
        comparison("Epochs to Dice 0.7", "epochs", 30.0, 10.0, 3.0),
        comparison("Steps to Dice 0.7", "steps", 300.0, 100.0, 3.0),
    ]
    head = {"benchmark": "caching", "command": "voxelocity bench caching", "date": "2026-01-02", "load_average": 2.5}
    record = {
        **head,
        "environment": ENVIRONMENT,
        "settings": {"on_environ": {}},
        "comparisons": found,
        "comparison": {},
    }
    (tmp_path / "bench_caching.json").write_text(json.dumps(record))
    (tmp_path / "bench_feed.json").write_text(json.dumps({**record, "settings": {}}))
    lines = tables.comparisons.switch_lines()
    assert lines[:3] == [
        "**cases kept: training on 12 volumes**",
        "",
        "|  | read again | cached | better by | least to most |",
    ]
    rows = [line for line in lines if line.startswith("| ")][1:]
    assert rows == [
        "| training, images/s | 5 | 20 | 4.0× | 3.5× to 4.5× |",
        "| Peak main memory | 800 MiB | 1.56 GiB | 0.50× | 0.00× to 1.0× |",
        "| Epochs to Dice 0.7 | 30 | 10 | 3.0× | 2.5× to 3.5× |",
    ]
    assert lines[-1].startswith("n = 3 pairs of trainings, load average 2.5. `voxelocity bench caching`, 2026-01-02")
    assert "`voxelocity bench caching`, 2026-01-02, load average 2.5" in tables.measured_page()


def test_a_setting_off_and_on_is_not_called_ours_against_others(tables, record, tmp_path):
    assert "ours better by" in tables.measured_page()
    path = tmp_path / "bench_transforms.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "comparison": {}}))
    assert "the first better by" in tables.measured_page()
    assert "ours better by" not in tables.measured_page()


def test_the_kernels_are_shown_by_name_over_forms_and_architectures(tables, record, tmp_path):
    same = {"kernel": "crop", "shared_bytes": 0, "machine_code_bytes": 9, "spill_store_bytes": 0, "spill_load_bytes": 0}
    rows = [
        {**same, "form": "i16", "registers": 56, "accesses": {"load8": 2, "load16": 1, "store4": 1}},
        {**same, "form": "u8", "registers": "56 64", "spill_load_bytes": "0 8", "accesses": {"load1": 2}},
        {**same, "kernel": "touch", "form": "fp32", "registers": 8, "accesses": {"store4": 1}},
    ]
    made = {**json.loads(record.read_text()), "triton": "3.7", "architectures": ["sm_80", "sm_90"], "kernels": rows}
    (tmp_path / "triton_kernels.json").write_text(json.dumps(made))
    page = tables.measured_page().splitlines()
    assert "| `crop` | 2 | 64 | 16 and 4 | 8 |" in page
    assert "| `touch` | 1 | 8 | 0 and 4 | 0 |" in page


def race_record(task, *, target, seconds, limit_s=480.0):
    """A race of two sides, of which the peer reached the target in these seconds."""
    peer = "MONAI, fast recipe"
    found = {peer: seconds, "MONAI, plain script": [None, None, 90.0], "Voxelocity": [20.0, 10.0, 30.0]}
    sides = [{"name": "Voxelocity", "median": 0.9}, {"name": peer, "median": 0.8}]
    gain = {"mean": 0.1, "low": None, "high": None, "n": 3, "unit": "training"}
    return {
        "environment": ENVIRONMENT, "settings": {"task": task, "is_equal": False}, "limit_s": limit_s,
        "seeds": [0, 1, 2],
        "target_dice": target, "seconds_to_target": found, "ours_higher_by": {peer: gain},
        "comparisons": [{"title": f"{task}: a race", "sides": sides}],
    }  # fmt: skip


def test_the_readme_has_the_dice_after_the_longest_time_and_the_full_tables_every_time(tables, tmp_path):
    races = {
        "bodies": race_record("bodies", target=0.85, seconds=[60.0, None, 50.0]),
        "phantoms": race_record("phantoms", target=0.88, seconds=[27.0, 30.0, 20.0]),
        "bodies_1min": race_record("bodies", target=None, seconds=[], limit_s=60.0),
        "bodies_2min": race_record("bodies", target=None, seconds=[], limit_s=120.0),
        "bodies_20min": race_record("bodies", target=None, seconds=[], limit_s=1200.0),
    }
    for name, record in races.items():
        (tmp_path / f"bench_race_{name}.json").write_text(json.dumps(record))
    (last,) = (line for line in tables.readme_table().splitlines() if line.startswith("After 20 min on 2 cores of x"))
    assert last.endswith("MONAI's fast recipe by +0.100 to +0.100, on 1 data set (3 seeds each).")
    full = "\n".join(importlib.import_module("tables_of.races").full_lines())
    assert "| bodies | 0.85 | MONAI, fast recipe | 1 min | 50 s | 1 min | 2 | 3 | 2 cores of x, x |" in full
    assert (
        "| bodies | 2 min | MONAI, fast recipe | 0.800 | 0.900 | +0.100 | n/a | n/a | 3 | seeds | 2 cores of x, x |"
        in full
    )


def test_the_picture_of_the_readme_has_a_bar_for_each_side_and_the_same_network_first(tables, tmp_path):
    assert tables.target_picture() == "", "nothing was measured"
    for name, target, seconds in (("bodies", 0.85, [60.0, None, 50.0]), ("phantoms", 0.88, [27.0, 30.0, 20.0])):
        record = race_record(name, target=target, seconds=seconds)
        (tmp_path / f"bench_race_{name}.json").write_text(json.dumps(record))
    picture = ElementTree.fromstring(tables.target_picture())
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    legend, first, second = texts[:3], texts[3:8], texts[8:]
    assert legend == ["MONAI, fast recipe", "MONAI, plain script", "Voxelocity"]
    assert first == ["phantoms, same", "network: Dice 0.88", "27 s", "more than 8 min", "20 s"]
    assert second == ["bodies: Dice 0.85", "1 min", "more than 8 min", "20 s"]
    widths = [float(element.get("width")) for element in picture.iter("{http://www.w3.org/2000/svg}rect")][4:]
    assert widths[0] > widths[2], "27 s is longer than 20 s"
    assert widths[1] > widths[0], "what was not reached is longest"


def test_a_race_in_empty_homes_has_a_table_of_factors_and_a_bar_of_equal_sides(tables, tmp_path):
    record = race_record("phantoms", target=0.88, seconds=[27.0, 30.0, 20.0])
    equal, peers = "Voxelocity, the peers' network", ("MONAI, fast recipe", "MONAI, plain script")
    found = {**record["seconds_to_target"], equal: [14.0] * 3}
    record["cold"] = {"seconds_to_target": found, "seeds": record["seeds"]}
    record["seconds_to_target"] = {**found, peers[1]: [90.0] * 3}
    (tmp_path / "bench_race_phantoms.json").write_text(json.dumps(record))
    lines = tables.readme_table().splitlines()
    assert max(line.count("|") - 1 for line in lines) == 5
    assert "| MONAI, fast recipe | 1.9 | 1.9 | 1.4 | 1.4 |" in lines
    assert "| MONAI, plain script | at least 34.3 | 6.4 | at least 24.0 | 4.5 |" in lines
    (tmp_path / "bench_race_bodies.json").write_text(
        json.dumps(race_record("bodies", target=0.85, seconds=[60.0, None, 50.0]))
    )
    picture = ElementTree.fromstring(tables.target_picture())
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == [
        *(*peers, equal, "Voxelocity"),
        *("phantoms, same", "network: Dice 0.88", "27 s", "1 min 30 s", "14 s", "20 s"),
        *("bodies: Dice 0.85", "1 min", "more than 8 min", "20 s"),
    ]
