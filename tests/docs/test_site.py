"""What the site is made of; `make docs` builds it and follows every link."""

import re

import pytest
import site_pages
import typer.main

from voxelocity.core.config import check_key
from voxelocity.planning import Plan
from voxelocity_observe.cli.main import app

DOCS = site_pages.ROOT / "docs"
PAGES = [site_pages.ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


@pytest.mark.parametrize(
    ("link", "repository", "expected"),
    [
        ("[plan](plan.md#a)", "", "[plan](plan.md#a)"),
        ("[VX101](../packages/x/VX101.md)", "", "VX101"),
        ("[code](../packages/x/core)", "https://host/us", "[code](https://host/us/blob/main/packages/x/core)"),
        ("[book](notebooks/own-data.ipynb)", "", "[book](notebooks/own-data.md)"),
        ("[tests](../tests/README.md)", "", "[tests](project/tests.md)"),
        ("[there](https://pytorch.org)", "", "[there](https://pytorch.org)"),
        ("```\n[as](code.md)\n```", "", "```\n[as](code.md)\n```"),
    ],
)
def test_a_link_leads_to_a_page_or_to_the_repository_or_is_text(link, repository, expected):
    known = {"plan.md", "project/tests.md", "notebooks/own-data.md", "notebooks/own-data.ipynb"}
    assert site_pages.with_site_links(link, "docs/runs.md", "runs.md", known=known, repository=repository) == expected


def test_every_page_from_elsewhere_exists():
    assert [path for path in site_pages.ELSEWHERE if not (site_pages.ROOT / path).is_file()] == []


def test_dead_links_and_anchors_are_found(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="a/">a</a><a href="a/#there">b</a><img src="no.png"><a href="#x">c</a>'
    )
    (tmp_path / "a" / "index.html").write_text(
        '<h2 id="there">T</h2><a href="../gone/">d</a><a href="https://x.org/">e</a>'
    )
    assert site_pages.dead_links(tmp_path) == [
        "a/index.html: ../gone/",
        "index.html: #x (no such heading)",
        "index.html: no.png",
    ]


def test_the_page_of_commands_has_every_command_and_option():
    text = site_pages.commands_text()
    for name, command in typer.main.get_command(app).commands.items():
        assert f"### voxelocity {name}\n" in text
        options = [item for item in command.params if item.param_type_name == "option" and not item.hidden]
        assert [item.name for item in options if item.opts[0] not in text] == []


def test_keywords_are_those_of_the_call():
    text = site_pages.keyword_table("voxelocity.core.requests.train.TrainRequest")
    assert "| `time_budget_s`, or `time_budget` as text | `'auto'` |" in text
    assert "| `out` |  |" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_keys_of_a_plan_exist(page):
    sections = "|".join(Plan.model_fields)
    of_files = r"(?:onnx|xml|bin|pt2|ep)`"
    for key in set(re.findall(rf"`(?:--set )?((?:{sections})\.(?!{of_files})[a-z_0-9.]+)[=`]", page.read_text())):
        check_key(Plan, key)
