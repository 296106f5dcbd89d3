"""`voxelocity explain`: a page, the list, the list as Markdown."""

from __future__ import annotations

from shared.refused import assert_refused
from voxelocity_observe.diagnose import findings


def test_a_code_prints_its_page_as_it_is_written(voxelocity):
    told = voxelocity("explain", "vx101")
    assert told.status == 0
    assert told.out == findings.page("VX101")


def test_without_a_code_all_are_listed_a_line_each(voxelocity):
    lines = voxelocity("explain").out.splitlines()
    assert len(lines) == len(findings.codes())
    assert "VX104  More workers than cores get into each other's way" in lines


def test_the_list_as_markdown_is_that_of_the_documents(voxelocity):
    assert voxelocity("explain", "--index").out == findings.index()


def test_an_unknown_code_ends_with_status_2_and_near_ones(voxelocity):
    assert_refused(voxelocity("explain", "VX199"), "there is no finding 'VX199'; did you mean VX109 or")
