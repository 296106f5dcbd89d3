"""The structure of `benchmarks/diagnose_scripts.py`, on scripts that only print; its figures mean nothing here."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

import pytest

from voxelocity_observe.diagnose import findings


@pytest.fixture(scope="module")
def runner():
    return importlib.import_module("diagnose_scripts")


def finding(code, *, saves_s=5.0, is_cause=True):
    return {
        "code": code, "title": code, "basis": "estimated", "change": "x = 1", "is_cause": is_cause, "saves_s": saves_s,
        "of_s": 10.0, "speedup": 10.0 / (10.0 - saves_s),
    }  # fmt: skip


def report_of(*findings):
    return {"verdict": "v", "findings": list(findings), "own_share": 0.01}


def case_of(runner, *, codes=("VX116",), needs=(), cured=None):
    environ = {"CURED": "1"} if cured is None else cured
    return runner.Case(name="x", stands_for="y", codes=codes, epochs=3, cured_environ=environ, needs=needs)


def test_every_program_has_a_cured_form_and_expects_a_finding_that_has_a_page(runner):
    assert {path.stem for path in runner.HELD_OUT.glob("*.py")} == {case.name for case in runner.CASES}
    pages = Path(findings.__file__).parent
    for case in runner.CASES:
        assert 'os.environ.get("CURED") == "1"' in (runner.HELD_OUT / f"{case.name}.py").read_text()
        assert case.cured_environ["CURED"] == "1"
        assert case.codes
        assert all((pages / f"{code}.md").is_file() for code in case.codes)


def test_every_idiom_of_the_guides_has_a_changed_line_and_a_finding_with_a_page(runner, tmp_path):
    assert {path.stem for path in runner.GUIDES.glob("*.py")} == {case.name for case in runner.GUIDE_CASES}
    pages = Path(findings.__file__).parent
    for case in runner.GUIDE_CASES:
        cured = case.cured(tmp_path)
        compile(cured.read_text(), cured.name, "exec")
        assert cured.read_text() != case.script.read_text()
        assert case.lines()
        assert all((pages / f"{code}.md").is_file() for code in case.codes)


def test_a_change_that_a_program_does_not_contain_is_refused(runner, tmp_path):
    (tmp_path / "x.py").write_text("a = 1\nb = 2\n")
    case = runner.Case(name="x", stands_for="y", needs=(), folder=tmp_path, changes={"b = 2": "b = 3"})
    assert case.lines() == {2}
    assert case.cured(tmp_path / "cured").read_text() == "a = 1\nb = 3\n"
    wrong = runner.Case(name="x", stands_for="y", needs=(), folder=tmp_path, changes={"c": "d"})
    with pytest.raises(ValueError, match=r"x\.py: 'c' stands in it 0 times.*mend `changes`"):
        wrong.cured(tmp_path / "cured")


def test_the_machines_own_trouble_is_not_taken_for_the_scripts_cause(runner):
    case = case_of(runner)
    found = runner.judged(case, report_of(finding("VX504"), finding("VX116"), finding("VX313", is_cause=False)))
    assert (found["is_right"], found["predicted"], found["machine"]) == (True, 2.0, ["VX504"])
    assert not runner.judged(case, report_of(finding("VX101"), finding("VX116")))["is_right"]
    assert not runner.judged(case, report_of())["is_right"]


def test_memory_that_grows_is_the_scripts_cause_where_it_was_planted(runner):
    case = case_of(runner, codes=("VX508",))
    found = runner.judged(case, report_of(finding("VX504"), finding("VX508"), finding("VX101")))
    assert (found["is_right"], found["causes"], found["machine"]) == (True, ["VX508", "VX101"], ["VX504"])


@pytest.mark.parametrize(
    ("predicted", "achieved", "kept"), [(1.5, 1.0, True), (1.0, 1.5, True), (1.6, 1.0, False), (1.0, 1.6, False)]
)
def test_a_promise_is_kept_within_a_factor_of_one_and_a_half(runner, predicted, achieved, kept):
    assert runner.is_kept(predicted, achieved) is kept


def test_a_script_and_its_cured_form_are_timed_in_turn_by_what_they_print(runner, tmp_path):
    text = (
        "import os\nfor number in range(int(os.environ['EPOCHS'])):\n    print(f'epoch {number + 1}: x, {SECONDS} s')\n"
    )
    (tmp_path / "slow.py").write_text(text.replace("SECONDS", 'os.environ.get("CURED", "2.5")'))
    case = case_of(runner, cured={"CURED": "0.5"})
    found = runner.time_both(tmp_path / "slow.py", tmp_path / "slow.py", case, rounds=2, environ=os.environ)
    assert found["achieved"] == {"median": 5.0, "low": 5.0, "high": 5.0}
    assert (found["epoch_s"], found["cured_epoch_s"], found["n"]) == (2.5, 0.5, 2)


def test_a_script_that_prints_too_little_is_named_with_the_cure(runner):
    with pytest.raises(ValueError, match=r"fewer than two lines .* give it EPOCHS=2"):
        runner.epoch_s("epoch 1: loss 1, 0.5 s\n")


def test_what_was_measured_stays_when_another_script_is_written(runner, tmp_path):
    begin = {"command": "python x.py", "environment": {"commit": "c0ffee"}}
    for name in ("many_workers", "decode_in_loop", "many_workers"):
        order = ["decode_in_loop", "many_workers"]
        runner.write({"name": name, "n": 1}, "diagnose_scripts", out=tmp_path / "results", begin=begin, order=order)
    kept = json.loads((tmp_path / "results" / "diagnose_scripts.json").read_text())
    assert [script["name"] for script in kept["scripts"]] == ["decode_in_loop", "many_workers"]
    assert kept["command"] == "python x.py"
    assert [script["commit"] for script in kept["scripts"]] == ["c0ffee"] * 2


def test_quick_looks_at_one_script_once_and_writes_nothing(runner, tmp_path, monkeypatch, capsys):
    asked = []

    def diagnose(script, folder, *, seconds, environ):
        asked.append((script.name, seconds))
        return report_of(finding("VX101"))

    def time_both(script, cured, case, *, rounds, environ):
        asked.append((script.name, rounds))
        return {"achieved": {"median": 4.0, "low": 4.0, "high": 4.0}}

    # As if its packages were installed.
    monkeypatch.setattr(runner.Case, "missing", lambda case: [])
    monkeypatch.setattr(runner, "diagnose", diagnose)
    monkeypatch.setattr(runner, "time_both", time_both)
    status = runner.main(["--quick", "--only", "torchio_queue", "--only", "nnunet_npz", "--out", str(tmp_path)])
    assert asked == [("torchio_queue.py", 2), ("torchio_queue.py", 1)]
    assert not list(tmp_path.iterdir())
    # Twice as fast was promised, four times came.
    assert capsys.readouterr().out.endswith("right; predicted 2.00, achieved 4.00 (4.00 to 4.00), NOT KEPT\n")
    assert status == 1


def test_what_is_missing_or_differs_beside_an_undiagnosed_run_is_harm(runner):
    good = {"num_checkpoints": 2, "num_equal": 2, "num_alone": 2, "is_last_untouched": True}
    assert runner.is_unharmed(good)
    for bad in ({"num_equal": 1}, {"num_alone": 3}, {"is_last_untouched": False}, dict.fromkeys(good, 0)):
        assert not runner.is_unharmed({**good, **bad})


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["saving_plain", "saving_monai", "saving_lightning"])
def test_checkpoints_under_a_diagnosis_are_those_of_an_undiagnosed_run(runner, tmp_path, name):
    (saving,) = [case for case in runner.SAVING if case.name == name]
    if missing := saving.missing():
        pytest.skip(f"{', '.join(missing)} is not installed, so {name}.py cannot run")
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = runner.compare_saved(saving, tmp_path, scripts=runner.SCRIPTS, seconds=4, environ=environ)
    assert runner.is_unharmed(found), found
    assert found["undone_steps"] > 0
    assert found["refused"]


def test_a_script_whose_packages_are_missing_is_left_out_in_one_line(runner, tmp_path, monkeypatch, capsys):
    case = case_of(runner, needs=("torch", "torch<2", "no-such-package>=1"))
    monkeypatch.setattr(runner, "CASES", (case,))
    assert runner.main(["--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "x: left out; not installed: torch<2, no-such-package>=1\n"
    assert not list(tmp_path.iterdir())
