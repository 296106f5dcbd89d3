from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "fault_trials.py"

_REPORT = """<testsuites><testsuite>
<testcase name="a"><properties>
<property name="trials" value="5"/><property name="failed" value="0"/><property name="seconds" value="57.1 58.0"/>
</properties></testcase>
<testcase name="b"><properties>
<property name="trials" value="3"/><property name="failed" value="2"/>
</properties><error message="2 of 3 trials failed"/></testcase>
<testcase name="c"><failure message="broken fixture"/></testcase>
<testcase name="d"><skipped message="needs root"/></testcase>
</testsuite></testsuites>"""


def test_trials_that_failed_or_never_began_are_counted_as_not_clean(tmp_path):
    spec = importlib.util.spec_from_file_location("fault_trials", _PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fault_trials"] = module
    spec.loader.exec_module(module)
    (tmp_path / "report.xml").write_text(_REPORT)
    suite = module.read_suite("kills", tmp_path / "report.xml")
    assert (suite.num_trials, suite.num_clean) == (9, 6)
    assert suite.figures == {"a": {"seconds": "57.1 58.0"}}
    assert suite.skipped == ("d: needs root",)
    assert suite.failures == ("b: 2 of 3 trials failed", "c: broken fixture")
