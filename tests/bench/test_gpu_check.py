import importlib
from xml.etree import ElementTree

import pytest


@pytest.fixture(scope="module")
def gpu_check():
    return importlib.import_module("gpu_check")


def test_a_part_that_fails_or_has_no_time_left_is_a_row_and_the_others_are_run(gpu_check, capsys):
    now_s, asked = 0.0, []

    def slow(limit_s):
        nonlocal now_s
        now_s += 465.0
        asked.append(limit_s)
        return [{"what": "a kernel", "ms": 1.5}]

    def broken(limit_s):
        raise RuntimeError("no kernel image")

    parts = {"broken": (30.0, broken), "slow": (600.0, slow), "late": (30.0, slow)}
    rows = gpu_check.run_parts(parts, lambda: now_s)
    assert rows["broken"] == [{"what": "failed", "error": "RuntimeError: no kernel image"}]
    assert rows["slow"] == [{"what": "a kernel", "ms": 1.5}]
    assert "no time was left of 470 s" in rows["late"][0]["error"]
    assert asked == [470.0]
    told = capsys.readouterr().out
    assert "no kernel image" in told
    assert "a kernel  ms 1.5" in told


def test_tests_are_counted_by_module_with_those_that_were_skipped(gpu_check):
    report = ElementTree.fromstring(
        '<testsuites><testsuite><testcase classname="tests.a" name="x" time="1.5"/>'
        '<testcase classname="tests.a" name="y" time="1"><failure message="no"/></testcase>'
        '<testcase classname="tests.b" name="z" time="0"><skipped/></testcase></testsuite></testsuites>'
    )
    assert gpu_check.tests_by_module(list(report.iter("testcase"))) == [
        {"what": "tests.a", "passed": 1, "failed": 1, "skipped": 0, "seconds": 2.5},
        {"what": "tests.b", "passed": 0, "failed": 0, "skipped": 1, "seconds": 0.0},
    ]
