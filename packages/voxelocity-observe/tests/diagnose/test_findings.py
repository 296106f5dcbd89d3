"""Each rule has its page and each page its rule; the pages say what a reader needs."""

from __future__ import annotations

import ast
import re

import pytest

from voxelocity_observe.core.environment import CHECKOUT
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.diagnose import findings
from voxelocity_observe.diagnose.rules import RULES

ROOT = CHECKOUT
SECTIONS = ["How it was seen", "Why it costs", "The change", "When not to do it", "Further reading"]


def test_every_rule_has_a_page_with_its_title_and_every_page_a_rule():
    assert {code: findings.title(code) for code in findings.codes()} == {rule.code: rule.title for rule in RULES}


def test_there_are_enough_rules_and_no_code_twice():
    codes = [rule.code for rule in RULES]
    assert len(codes) == len(set(codes)) >= 30
    assert all(re.fullmatch(r"VX[1-6]\d\d", code) for code in codes)


@pytest.mark.parametrize("code", findings.codes())
def test_a_page_tells_all_and_its_code_is_code(code):
    text = findings.page(code)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    lead, *sections = re.split(r"^## .+$", text, flags=re.MULTILINE)
    for name, section in zip(["lead", *SECTIONS], [lead.partition("\n")[2], *sections], strict=True):
        assert len(section.split()) >= (5 if name != "Further reading" else 2), f"{code}: {name} says nothing"
    ((language, body),) = re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    before, _, after = body.partition("# after\n")
    assert before.startswith("# before\n")
    assert after.strip()
    assert before.removeprefix("# before\n").strip() != after.strip()
    if language == "python":
        ast.parse(body)


def test_the_list_in_the_documents_is_the_one_of_the_package():
    assert (ROOT / "docs" / "findings" / "README.md").read_text() == findings.index(), (
        "voxelocity explain --index > docs/findings/README.md"
    )


def test_the_list_links_to_each_page():
    folder = ROOT / "docs" / "findings"
    links = re.findall(r"\]\((\S+)\)", findings.index())
    assert len(links) == len(RULES)
    assert all((folder / link).is_file() for link in links)


@pytest.mark.parametrize("written", ["VX353", "vx353", "353", " VX353 "])
def test_a_code_may_be_written_in_several_ways(written):
    assert findings.page(written).startswith("# VX353: Threads that wait spin")


def test_an_unknown_code_names_the_nearest_ones():
    with pytest.raises(InputError) as error:
        findings.page("VX1O1")
    assert str(error.value) == (
        "explain: there is no finding 'VX1O1'; did you mean VX101 or VX111 or VX121? `voxelocity explain` lists "
        "all of them"
    )
    with pytest.raises(InputError, match="there is no finding 'nonsense'; `voxelocity explain` lists all of them"):
        findings.page("nonsense")
