import importlib
import json
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "tables.py"


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
    environment = dict.fromkeys(("cpu", "num_cpus", "gpu", "torch", "monai", "commit"), "x") | {"memory_bytes": 1}
    (tmp_path / "bench_transforms.json").write_text(
        json.dumps({**record, "environment": environment, "comparisons": [comparison]})
    )
    return tmp_path / "bench_transforms.json"


def test_the_page_of_figures_shows_every_comparison_of_a_record(tables, record):
    lines = tables.measured_page().splitlines()
    assert "## Side by side: transforms" in lines
    assert "| Voxelocity | 70 | 60 | 1,234 | 5 | n/a |  |" in lines
    assert "| MONAI | 7 | 6 | 8 | 5 | 10× | two workers |" in lines
    assert "| TorchIO | n/a | n/a | n/a | 0 | n/a | not installed: torchio |" in lines


def test_a_concept_page_shows_the_comparisons_of_its_own_scenarios_in_short(tables, record):
    lines = tables.page_tables("augmentation.md").splitlines()
    assert lines[0] == "**patches**"
    assert "| Voxelocity | 70 | 60 to 1,234 | 5 | n/a |" in lines
    assert "| MONAI | 7 | 6 to 8 | 5 | 10× |" in lines
    assert "| TorchIO | n/a |  | 0 | not installed: torchio |" in lines
    assert lines[-1].startswith("`voxelocity bench transforms`, 2026-01-02, commit x, x, x cores, 1 B, GPU: x.")
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


def test_a_commit_is_known_if_it_leads_to_the_checkout(tables, monkeypatch):
    monkeypatch.undo()
    from tables_of.results import is_in_history

    head = subprocess.run(["git", "-C", SCRIPT.parent, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    assert is_in_history(head.strip())
    assert not is_in_history("0" * 40)
    assert not is_in_history("x")


def test_the_page_on_the_feed_shows_what_whole_trainings_waited(tables, tmp_path):
    job = {"scenario": "hippocampus", "time_budget": "5m", "wait_share": 0.0022, "date": "2026-01-02"}
    (tmp_path / "main_job_hippocampus_5m.json").write_text(json.dumps(job))
    runs = [{"label": "MONAI", "wait_share": 0.07}, {"label": "Voxelocity", "wait_share": 0.001}]
    (tmp_path / "fresh_clone.json").write_text(json.dumps({"demo": {"runs": runs}, "date": "2026-01-03"}))
    lines = tables.page_tables("feed.md").splitlines()
    assert "| hippocampus, 5m | Voxelocity | 0.2% | 1 | 2026-01-02 |" in lines
    assert "| the demo | MONAI | 7.0% | 1 | 2026-01-03 |" in lines


def test_the_readme_tells_of_races_to_a_target(tables, record, tmp_path):
    race = json.loads(record.read_text()) | {"target_dice": 0.88, "seconds_to_target": {"ours": [20.0, 40.0, 30.0]}}
    race["comparisons"][0]["title"] = "22 phantoms: time to Dice 0.88"
    (tmp_path / "bench_race_phantoms.json").write_text(json.dumps(race))
    row = "| 22 phantoms | Dice 0.88 after: ours 30 s (20 s to 40 s); n = 3 seeds | x cores of x, x |"
    assert row in tables.readme_table().splitlines()


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (
            {"mean": 0.02, "low": -0.01, "high": 0.05, "n": 5, "unit": "training"},
            "(+0.020 with ours, 95 % interval -0.010 to +0.050, n = 5 seeds)",
        ),
        (
            {"mean": 0.02, "low": None, "high": None, "n": 1, "unit": "case"},
            "(+0.020 with ours, n = 1 cases of one seed)",
        ),
    ],
)
def test_the_readme_tells_of_dice_after_a_fixed_time(tables, record, tmp_path, gain, words):
    race = json.loads(record.read_text()) | {"target_dice": None, "ours_higher_by": {"MONAI": gain}}
    race["comparisons"][0] = {
        "title": "22 phantoms: Dice after 1 min",
        "sides": [{"name": "ours", "median": 0.9}, {"name": "MONAI", "median": 0.88}],
    }
    (tmp_path / "bench_race_phantoms_1min.json").write_text(json.dumps(race))
    row = f"| 22 phantoms | Dice after 1 min: ours 0.900; MONAI 0.880 {words} | x cores of x, x |"
    assert row in tables.readme_table().splitlines()


def test_the_demo_is_told_with_every_side_its_range_and_its_seeds(tables):
    from tables_of.results import demo_words

    seconds = {"MONAI": [60.0, None, None], "Voxelocity": [40.0, 30.0, 50.0]}
    assert demo_words({"target_dice": 0.9, "seconds_to_target": seconds}) == (
        "Dice 0.9 after: MONAI not, 2 of 3 not; Voxelocity 40 s (30 s to 50 s); n = 3 seeds"
    )


def test_the_page_on_monai_shows_each_case_of_the_parity_table(tables, tmp_path):
    environment = dict.fromkeys(("cpu", "num_cpus", "gpu", "commit"), "x") | {"memory_bytes": 1}
    row = {"transform": "RandFlipd", "arguments": "prob=1.0", "num_draws": 5, "keys": ["image", "label"],
           "largest": 0.0, "num_label_voxels": 0, "tolerance": 0.0, "smallest_p": None, "words": "", "monai_ms": 14.0,
           "our_ms": 1.3}  # fmt: skip
    other = {**row, "largest": 2e-3, "tolerance": 1e-6, "num_label_voxels": 7, "words": "shapes"}
    noise = {**row, "transform": "RandGaussianNoised", "smallest_p": 0.123, "num_label_voxels": None}
    record = {"command": "python benchmarks/monai_parity.py", "environment": environment, "rows": [row, other, noise]}
    (tmp_path / "monai_parity.json").write_text(json.dumps(record))
    lines = tables.monai.parity_lines()
    assert lines[2] == "| `RandFlipd` | `prob=1.0` | 5 | image, label | 0 | 0 | equal | 14 | 1.3 |"
    assert "| 2.0e-03; shapes | 7 | 1e-06 |" in lines[3]
    assert "| not compared; smallest p of 5: 0.12 | not touched | equal in distribution |" in lines[4]
    assert lines[-1].startswith("`python benchmarks/monai_parity.py`, commit x")


def test_the_page_on_monai_shows_its_deterministic_transforms(tables, tmp_path):
    environment = dict.fromkeys(("cpu", "num_cpus", "gpu", "commit"), "x") | {"memory_bytes": 1}
    sides = [{"median": 2.0, "n": 7}, {"median": 6.0, "ours_better_by": {"median": 3.0, "low": 2.5, "high": 3.5}}]
    record = {"command": "python y.py", "environment": environment,
              "comparisons": [{"title": "Spacingd", "sides": sides}]}  # fmt: skip
    (tmp_path / "monai_deterministic.json").write_text(json.dumps(record))
    lines = tables.monai.deterministic_lines()
    assert lines[4] == "| Spacingd | 2 | 6 | 3.0× | 2.5 to 3.5 | 7 |"
    assert lines[-1].startswith("`python y.py`, commit x")


def test_a_page_without_the_marks_is_named(tables):
    with pytest.raises(AssertionError, match=r"page\.md needs the marks <!-- figures: made by"):
        tables._filled("# Page\n", "", where="page.md")
    with pytest.raises(AssertionError, match=r"page\.md needs the marks <!-- figures of the curves: made by"):
        tables._filled(f"{tables._BEGIN}\n{tables._END}\n", "", where="page.md", name="the curves")


def test_tables_replace_what_stood_between_the_marks_and_nothing_else(tables):
    page = f"before\n{tables._BEGIN}\nold\n{tables._END}\nafter\n"
    assert tables._filled(page, "new", where="page") == f"before\n{tables._BEGIN}\nnew\n{tables._END}\nafter\n"


def marked(tables, name):
    begin, end = (mark.replace("figures", f"figures of {name}") for mark in (tables._BEGIN, tables._END))
    return f"# {name}\n\n{begin}\n{end}\n"


@pytest.fixture
def monai_page(tables, tmp_path):
    page = tmp_path / "monai.md"
    page.write_text("\n".join(marked(tables, name) for name in tables._NAMED_TABLES["monai.md"]))
    return page


def test_tables_of_the_named_page_that_are_not_measured_yet_say_so(tables, monai_page):
    assert tables._named_page(monai_page).count("Not measured yet: run the commands above") == 2


def test_the_named_page_shows_chains_and_curves(tables, monai_page, record, tmp_path):
    kept = json.loads(record.read_text())
    quick = {"name": "MONAI, copy_cache=False", "note": "", "n": 5, "median": 35.0, "low": 30.0, "high": 40.0}
    first = {**kept["comparisons"][0], "title": "compile(chain, cache='memory') in a Dataset, small chain, 2 channels"}
    second = {**first, "title": "CacheDataset + DataLoader, small chain, 2 channels", "sides": [quick]}
    (tmp_path / "bench_monai.json").write_text(json.dumps({**kept, "comparisons": [first, second]}))
    head = {"command": "python x.py", "date": "2026-01-02", "environment": kept["environment"]}
    curve = {"data_set": "Dataset", "loader": "DataLoader", "optimizer": "SGD", "num_steps": 20,
             "largest_difference": 2e-6, "held_out_difference": 0.0}  # fmt: skip
    noise = {"n": [60, 60], "mann_whitney_p": 0.61, "kolmogorov_smirnov_p": 0.4, "confidence": 0.95,
             "difference_of_means": [-0.004, 0.011], "margin": 0.02, "is_equivalent": True}  # fmt: skip
    (tmp_path / "monai_curves.json").write_text(
        json.dumps({**head, "tolerance": 1e-3, "curves": [curve], "noise": noise})
    )
    text = tables._named_page(monai_page)
    assert "Not measured yet" not in text
    assert "| MONAI | 7 | 6 to 8 | 5 | 10× |" in text
    ours, theirs = (
        "70 (compile(chain, cache='memory') in a Dataset)",
        "35 (CacheDataset + DataLoader, copy_cache=False)",
    )
    assert f"| small chain, 2 channels | {ours} | {theirs} | 2.0× |" in text
    assert "| Dataset | DataLoader | SGD | 20 | 2.0e-06 | 0.0e+00 |" in text
    assert "Mann-Whitney p = 0.61" in text
    assert "is -0.40% to +1.10% of MONAI's (95% interval), within the 2% set before." in text


def figure(median):
    return {"median": median, "low": median / 2, "high": median * 2, "n": 5}


ENVIRONMENT = dict.fromkeys(("cpu", "num_cpus", "gpu", "torch", "monai", "commit"), "x") | {"memory_bytes": 1}


def test_the_page_on_spans_shows_what_they_and_the_watchers_cost(tables, tmp_path):
    watcher = {"watcher": "voxelocity monitor --period 0.5", "program": "cpu", "note": ""}
    watcher |= {"own_share": figure(0.004), "wall_share": figure(0.01), "told_share": figure(0.002)}
    absent = {"watcher": "voxelocity diagnose", "program": "training", "note": "could not be run: x"}
    step = {"share": figure(0.001), "step_cpu_s": figure(0.2), "spans_per_step": 7}
    record = {"span_off_us": figure(0.4), "span_on_us": figure(2.5), "training_step": step, "load_average": 1.0}
    record |= {"command": "python x.py", "environment": ENVIRONMENT, "watchers": [watcher, absent]}
    (tmp_path / "own_cost.json").write_text(json.dumps(record))
    lines = tables.watching.own_cost_lines()
    assert "| a span, nobody listens | 0.4 (0.2 to 0.8) | µs of CPU | 5 |" in lines
    assert "| a span, recorded with the host's clock | 2.5 (1.25 to 5) | µs of CPU | 5 |" in lines
    step = "| recording the 7 spans of a training step of the demo (0.20 s) | 0.10% (0.05% to 0.20%) |"
    assert f"{step} of its CPU time, pair by pair; this many times the line above is 0.01% | 5 |" in lines
    around = "| `voxelocity monitor --period 0.5` around a CPU-bound program:"
    assert (
        f"{around} its own CPU time, start-up included | 0.40% (0.20% to 0.80%) | of the program's time | 5 |" in lines
    )
    told = "its own CPU time while it watches, as it tells it | 0.20% (0.10% to 0.40%) | of one core | 5 |"
    assert f"{around} {told}" in lines
    assert f"{around} what it adds to the program | 1.00% (0.50% to 2.00%) | of the program's time | 5 |" in lines
    assert "| `voxelocity diagnose` around a training program | n/a | could not be run: x | 0 |" in lines
    assert lines[-1].startswith("Load average before: 1.0. `python x.py`")


def test_the_page_on_diagnosis_shows_each_script_with_the_commit_it_was_measured_at(tables, tmp_path):
    first = {"code": "VX104", "title": "Too many"}
    slow = {"name": "many", "stands_for": "16 workers", "expected": ["VX104"], "first": first, "is_right": True}
    slow |= {"predicted": 1.9, "achieved": {"median": 1.7, "low": 1.6, "high": 1.8}, "n": 3, "commit": "a" * 40}
    wrong = {**slow, "name": "other", "is_right": False, "commit": None}
    clean = {"name": "clean", "stands_for": "all well", "expected": [], "first": None, "is_right": True}
    clean |= {"predicted": None, "commit": "b" * 40}
    record = {"command": "python x.py", "environment": ENVIRONMENT, "scripts": [slow, wrong, clean]}
    (tmp_path / "diagnose_scripts.json").write_text(json.dumps(record))
    lines = tables.watching.diagnosed_lines()
    assert tables.watching.held_out_lines() == []
    (tmp_path / "diagnose_scripts.json").rename(tmp_path / "diagnose_held_out.json")
    assert (tables.watching.diagnosed_lines(), tables.watching.held_out_lines()) == ([], lines)
    assert "| 16 workers (`many`) | VX104 Too many | 1.9× | 1.7× | 1.60 to 1.80 | 3 | aaaaaaaaaaaa |" in lines
    assert "| 16 workers (`other`) | VX104 Too many (wrong) | 1.9× | 1.7× | 1.60 to 1.80 | 3 | unknown |" in lines
    assert "| all well (`clean`) | nothing is wrong |  |  |  |  | bbbbbbbbbbbb |" in lines


def test_the_page_on_diagnosis_shows_which_checkpoints_are_equal(tables, tmp_path):
    one = {"name": "plain", "stands_for": "a loop", "steps": 100, "undone_steps": 9, "num_checkpoints": 3}
    one |= {"num_equal": 2, "is_last_untouched": True, "commit": "a" * 40}
    record = {
        "command": "python x.py",
        "environment": ENVIRONMENT,
        "scripts": [one, {**one, "is_last_untouched": False}],
    }
    (tmp_path / "diagnose_checkpoints.json").write_text(json.dumps(record))
    lines = tables.watching.checkpoint_lines()
    assert "| a loop (`plain`) | 100 | 9 | 2 of 3 | as before | aaaaaaaaaaaa |" in lines
    assert "| a loop (`plain`) | 100 | 9 | 2 of 3 | REPLACED | aaaaaaaaaaaa |" in lines


def test_the_page_on_diagnosis_shows_what_was_waited_and_what_was_reported(tables, tmp_path):
    share = {"planted": 0.3, "waited": [0.29, 0.31, 0.3], "reported": [0.3, 0.32, 0.31], "largest_difference": 0.0123}
    record = {"command": "python x.py", "environment": ENVIRONMENT, "shares": [{**share, "n": 3}]}
    (tmp_path / "planted_wait.json").write_text(json.dumps(record))
    lines = tables.watching.planted_lines()
    assert "| 30% | 30.0% (29.0% to 31.0%) | 31.0% (30.0% to 32.0%) | 1.2 points | 3 |" in lines


def test_a_setting_off_and_on_is_not_called_ours_against_others(tables, record, tmp_path):
    assert "ours better by" in tables.measured_page()
    path = tmp_path / "bench_transforms.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "comparison": {}}))
    assert "the first better by" in tables.measured_page()
    assert "ours better by" not in tables.measured_page()
