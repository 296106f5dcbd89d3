import importlib
from xml.etree import ElementTree

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


def test_trials_that_failed_or_never_began_are_counted_as_not_clean():
    module = importlib.import_module("fault_trials")
    suite = module.read_suite("kills", list(ElementTree.fromstring(_REPORT).iter("testcase")))
    assert (suite.num_trials, suite.num_clean) == (9, 6)
    assert suite.figures == {"a": {"seconds": "57.1 58.0"}}
    assert suite.skipped == ("d: needs root",)
    assert suite.failures == ("b: 2 of 3 trials failed", "c: broken fixture")
