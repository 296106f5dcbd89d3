import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.monitor.exposition import Gauge, exposition, write_exposition

SIZE = Gauge(name="voxelocity_size_bytes", help="A size.", unit="bytes")
BARE = Gauge(name="voxelocity_bare", help="A number\nof \\ no unit.")


def test_the_text_is_the_one_that_the_standard_shows():
    assert exposition([(SIZE, [({"a": "b"}, 3)]), (BARE, [({}, 0.25)])]) == (
        "# HELP voxelocity_size_bytes A size.\n"
        "# TYPE voxelocity_size_bytes gauge\n"
        "# UNIT voxelocity_size_bytes bytes\n"
        'voxelocity_size_bytes{a="b"} 3.0\n'
        "# HELP voxelocity_bare A number\\nof \\\\ no unit.\n"
        "# TYPE voxelocity_bare gauge\n"
        "voxelocity_bare 0.25\n"
        "# EOF\n"
    )


def test_a_gauge_without_a_value_is_not_spoken_of():
    nothing = [({}, None), ({}, math.nan), ({}, math.inf)]
    assert exposition([(SIZE, nothing), (BARE, [])]) == "# EOF\n"


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from("abc"), st.text(min_size=1)), st.floats(allow_nan=False, allow_infinity=False))
def test_both_dialects_read_back_every_label_and_number(labels, value):
    text = exposition([(SIZE, [(labels, value)])])
    for parse in (parse_openmetrics, parse_prometheus):
        if parse is parse_prometheus and set("".join(labels.values())) & set("\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"):
            continue  # This reader of the older dialect takes more than "\n" for the end of a line.
        (family,) = parse(text)
        (sample,) = family.samples
        assert (sample.labels, sample.value) == (labels, value)


@pytest.mark.parametrize(("name", "unit"), [("voxelocity_size", "bytes"), ("Size", ""), ("size-of", "")])
def test_a_name_against_the_conventions_is_a_mistake_of_ours(name, unit):
    with pytest.raises(AssertionError):
        Gauge(name=name, help="", unit=unit)


def test_a_file_that_cannot_be_moved_into_place_leaves_nothing_behind(tmp_path):
    (tmp_path / "v.prom").mkdir()
    with pytest.raises(OutputError, match=r"observe.openmetrics: cannot write '.*v.prom': Is a directory; name a file"):
        write_exposition(tmp_path / "v.prom", "# EOF\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["v.prom"]
