"""The runner of experiments on a GPU, on experiments that it finds in a folder of the test."""

import importlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from shared.limits import HANGS_S

_MODULE = """
from gpu.experiment import Experiment

def run(setting):
    setting.report("first", {{"what": "a kernel", "ms": 1.5, "n": setting.number("n", 7, tiny=3)}})
    {body}

EXPERIMENT = Experiment(id="{id}", question="Is it {id}?", seconds={seconds}, run=run)
"""


@pytest.fixture(scope="module")
def gpu_run():
    return importlib.import_module("gpu.run")


@pytest.fixture(scope="module")
def correct():
    return importlib.import_module("gpu.e10_correct")


@pytest.fixture
def folder(tmp_path):
    """E1 ends well, E2 fails, E3 cannot be imported, E10 never ends, nor does a program that it has started."""
    made = tmp_path / "experiments"
    made.mkdir()
    hangs = f"""
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
    setting.report("first", {{"what": "began"}})
    time.sleep(600)
    """
    bodies = {1: "pass", 2: "raise RuntimeError('no kernel image')", 10: hangs.strip()}
    for number, body in bodies.items():
        text = _MODULE.format(id=f"E{number}", seconds=1.0, body=body)
        (made / f"e{number:02d}_it.py").write_text(text)
    (made / "e03_it.py").write_text("import a_package_that_nobody_has\n")
    (made / "experiment.py").write_text("")
    return made


def call_of(gpu_run, logs, **options):
    return gpu_run.Call(device="cpu", is_tiny=True, logs=logs, options=options)


def test_experiments_are_found_by_number_and_a_broken_module_is_one_of_them(gpu_run, folder):
    found = gpu_run.find_experiments(folder)
    assert [experiment.id for experiment in found] == ["E1", "E2", "E3", "E10"]
    assert "a_package_that_nobody_has" in found[2].error
    lines = gpu_run.listed(found, [])
    assert lines[2] == "| E1 | Is it E1? | 1 | no |"
    assert "a_package_that_nobody_has" in lines[4]


def test_rows_of_experiments_that_fail_are_kept_and_the_others_are_run(gpu_run, folder, tmp_path, capsys):
    found = gpu_run.find_experiments(folder)[:3]
    kept = []
    results = gpu_run.run_all(found, call_of(gpu_run, tmp_path, E1={"n": "5"}), math.inf, lambda r: kept.append(len(r)))
    assert kept == [1, 2, 3]
    assert [result["status"] for result in results.values()] == ["done", "failed", "failed"]
    assert results["E1"]["tables"] == {"first": [{"what": "a kernel", "ms": 1.5, "n": 5.0}]}
    assert results["E2"]["tables"]["first"][0]["n"] == 3
    assert "no kernel image" in results["E2"]["error"]
    assert len(results["E2"]["error"]) <= 300
    printed = capsys.readouterr().out
    assert "a kernel  ms 1.5" in printed
    assert "no kernel image" in printed


def test_an_experiment_over_its_time_is_ended_with_what_it_has_started(gpu_run, folder, tmp_path, monkeypatch):
    (found,) = (experiment for experiment in gpu_run.find_experiments(folder) if experiment.id == "E10")
    limit_s, wait = 20.0, subprocess.Popen.wait

    def wait_until_it_has_begun(process, timeout=None):
        if timeout != limit_s:
            return wait(process, timeout)
        rows, end_s = tmp_path / "gpu_rows.jsonl", time.monotonic() + HANGS_S
        while not (rows.exists() and "began" in rows.read_text()):
            assert process.poll() is None
            assert time.monotonic() < end_s
            time.sleep(0.01)
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_until_it_has_begun)
    result = gpu_run.run_experiment(found, call_of(gpu_run, tmp_path), limit_s)
    assert result["status"] == "out of time"
    assert result["tables"]["first"][-1] == {"what": "began"}
    child, end_s = tmp_path / "child", time.monotonic() + HANGS_S
    while True:
        try:
            state = Path(f"/proc/{child.read_text()}/stat").read_text().split()[2]
        except FileNotFoundError:
            break
        if state == "Z":
            break
        assert time.monotonic() < end_s, "the program still runs"
        time.sleep(0.01)


def test_too_little_time_is_no_reason_to_begin(gpu_run, folder, tmp_path):
    (found, *_) = gpu_run.find_experiments(folder)
    call = gpu_run.Call(device="cuda", is_tiny=False, logs=tmp_path, options={})
    assert gpu_run.limit_of(found, call, 0.5) == 0.0
    assert gpu_run.limit_of(found, call, 10.0) == 10.0
    assert gpu_run.limit_of(found, call, 100.0) == 31.0
    longer = gpu_run.Call(device="cuda", is_tiny=False, logs=tmp_path, options={"E1": {"expected": "100"}})
    assert gpu_run.limit_of(found, longer, 60.0) == 0.0
    assert gpu_run.limit_of(found, longer, 500.0) == 150.0
    result = gpu_run.run_experiment(found, call, 0.0)
    assert result["status"] == "not begun"
    assert not (tmp_path / "gpu.log").exists()


def test_a_dry_run_writes_a_record_and_one_made_later_keeps_what_was_not_run(
    gpu_run, folder, tmp_path, monkeypatch, capsys
):
    def run_experiment(found, call, limit_s):
        status = "failed" if found.id == "E2" else "done"
        rows = [{"what": "a kernel", "n": call.options.get(found.id, {}).get("n", "3")}]
        question = found.experiment.question
        return {"question": question, "status": status, "seconds": 1.0, "error": "", "tables": {"first": rows}}

    monkeypatch.setattr(gpu_run, "run_experiment", run_experiment)
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as end:
        gpu_run.main(["--dry-run", "--only", "E2,E1", "--out", str(out)], folder=folder)
    assert end.value.code
    first = json.loads((out / "gpu_dry_run.json").read_text())
    with pytest.raises(SystemExit) as end:
        gpu_run.main(["--dry-run", "--only", "E1", "--set", "E1.n=9", "--out", str(out)], folder=folder)
    assert not end.value.code
    record = json.loads((out / "gpu_dry_run.json").read_text())
    assert record["experiments"]["E2"] == first["experiments"]["E2"]
    assert record["experiments"]["E1"]["tables"]["first"][0]["n"] == "9"
    assert record["experiments"]["E1"]["command"].endswith(f"--only E1 --set E1.n=9 --out {out}")
    for key in ("device", "driver", "torch", "triton", "date"):
        assert key in record
        assert key in record["experiments"]["E1"]
    assert "E1   done" in capsys.readouterr().out
    assert gpu_run.listed(gpu_run.find_experiments(folder), [out / "gpu_dry_run.json"])[3].startswith(
        "| E2 | Is it E2? | 1 | dry run: failed, "
    )


def test_without_a_device_only_a_dry_run_is_possible(gpu_run, folder, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA device"):
        gpu_run.main(["--only", "E1"], folder=folder)
    with pytest.raises(SystemExit, match="E7"):
        gpu_run.main(["--dry-run", "--only", "E7"], folder=folder)


def test_a_run_without_rows_replaces_no_earlier_rows(gpu_run):
    before = {"experiments": {"E1": {"status": "done", "tables": {"a": [{"what": "x"}]}}}}
    failed = {"E1": {"status": "failed", "tables": {}}}
    assert gpu_run.merged(before, failed) == before["experiments"]
    assert gpu_run.merged({}, failed) == failed
    again = {"E1": {"status": "failed", "tables": {"a": [{"what": "y"}]}}, "E11": failed["E1"], "E2": failed["E1"]}
    assert gpu_run.merged(before, again) == {name: again[name] for name in ("E1", "E2", "E11")}


def test_values_of_numpy_and_torch_become_plain_and_what_is_no_number_becomes_text(gpu_run):
    values = [np.float32(1.5), np.int64(3), torch.tensor(2.0), np.bool_(True), float("nan"), (1, 2), None, "x"]
    plain = [gpu_run.plain(value) for value in values]
    assert plain == [1.5, 3, 2.0, True, "nan", "(1, 2)", None, "x"]
    json.dumps(plain, allow_nan=False)


def test_a_row_that_was_cut_off_and_those_of_others_are_left_out(gpu_run):
    lines = [json.dumps({"experiment": name, "table": "t", "row": {"what": name}}) for name in ("E1", "E2")]
    assert gpu_run.tables_of("\n".join([*lines, lines[0][:20]]), "E1") == {"t": [{"what": "E1"}]}


def test_printed_rows_are_few_and_plans_stay_in_the_record(gpu_run):
    tables = {"plan": [{"what": "p", "seed": 0}], "t": [{"what": "a", "ms": 1.23456789}] * 50}
    lines = gpu_run.lines_of(tables, 100)
    assert lines[:2] == [" t", "  a  ms 1.235"]
    assert lines[-1] == "  ... the record has the rest"
    assert len(lines) < 12


def test_the_list_of_the_readme_is_up_to_date(gpu_run):
    text = gpu_run.README.read_text()
    lines = gpu_run.listed(gpu_run.find_experiments(), gpu_run.known_records())
    hint = "run python benchmarks/gpu/run.py --list --update"
    assert gpu_run.with_list(text, lines) == text, hint
    assert not [experiment.error for experiment in gpu_run.find_experiments() if experiment.error]


def test_tests_are_counted_by_module_with_those_that_were_skipped(correct):
    report = ElementTree.fromstring(
        '<testsuites><testsuite><testcase classname="tests.a" name="x" time="1.5"/>'
        '<testcase classname="tests.a" name="y" time="1"><failure message="no"/></testcase>'
        '<testcase classname="tests.b" name="z" time="0"><skipped/></testcase></testsuite></testsuites>'
    )
    cases = list(report.iter("testcase"))
    assert correct.tests_by_module(cases) == [
        {"what": "tests.a", "passed": 1, "failed": 1, "skipped": 0, "seconds": 2.5},
        {"what": "tests.b", "passed": 0, "failed": 0, "skipped": 1, "seconds": 0.0},
    ]
    assert correct.failed_tests(cases) == [{"what": "tests.a::y", "error": "no"}]


def test_the_sanitizer_is_asked_about_our_kernels_and_initcheck_about_all(correct, tmp_path):
    names = correct.own_kernels()
    assert {"gather", "measure", "blur_along"} <= set(names)
    part = correct.small_parts()[0]
    command = correct.sanitizer_command("memcheck", part, tmp_path / "log", 49152)
    assert "kernel_name=gather" in command
    assert sys.executable in command
    assert "packages/voxelocity/tests/data/augment/test_engines.py" in command
    assert "--kernel-name" not in correct.sanitizer_command("initcheck", part, tmp_path / "log", 49152)


def test_what_a_sanitizer_says_becomes_a_row(correct):
    said = (
        "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n"
        "=========     at gather+0x10\n========= ERROR SUMMARY: 3 errors\n"
    )
    row = correct.sanitizer_row(said, "....\n== 25 passed in 3 s ==\n", 86)
    assert row["errors"] == 3
    assert row["is_complete"]
    assert row["tests"] == "25 passed in 3 s"
    assert row["first"] == "Invalid __global__ write of size 4 bytes"
    clean = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
    assert correct.sanitizer_row(clean, "", 0) == {"errors": 0, "is_complete": True, "status": 0, "tests": ""}
    ended = correct.sanitizer_row("========= COMPUTE-SANITIZER\n", "..", -9)
    assert (ended["errors"], ended["is_complete"], ended["status"]) == (0, False, -9)


def test_sanitizers_see_a_few_of_the_parameters_of_each_test():
    few = importlib.import_module("gpu.few")
    assert few.spread([1, 2, 3]) == [1, 2, 3]
    assert few.spread(list(range(20))) == [0, 6, 13, 19]


def test_what_nobody_writes_is_seen_where_new_tensors_are_poisoned():
    poison = importlib.import_module("gpu.poison")
    before = torch.are_deterministic_algorithms_enabled()
    try:
        poison.pytest_configure()
        assert torch.empty(4).isnan().all()
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.nightly
@pytest.mark.data
def test_a_dry_run_of_every_experiment_reports_rows(gpu_run, tmp_path, real_data):
    names = [found.id for found in gpu_run.find_experiments()]
    os.environ.setdefault("VOXELOCITY_DATA", str(real_data))
    with pytest.raises(SystemExit) as end:
        gpu_run.main(["--dry-run", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "gpu_dry_run.json").read_text())
    assert not end.value.code, {name: result.get("error") for name, result in record["experiments"].items()}
    assert list(record["experiments"]) == names
    assert all(result["tables"] for result in record["experiments"].values())
