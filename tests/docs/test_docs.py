"""What the documents say must be true: snippets run, options exist, links lead somewhere, tables match the results."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import typer.main

from voxelocity.planning.memory_estimate import LibraryMemory
from voxelocity_observe.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.md"))
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING")),
    ROOT / "tests" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *RECIPES,
]
FINDINGS = ROOT / "packages/voxelocity-observe/src/voxelocity_observe/diagnose/findings"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
DAYS = sorted((ROOT / "docs" / "log").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language, pages=PAGES):
    return [
        pytest.param(body, id=f"{page.name}-{number}")
        for page in pages
        for number, (found, body) in enumerate(BLOCK.findall(page.read_text()))
        if found == language
    ]


@pytest.mark.parametrize("snippet", blocks("python"))
def test_python_snippets_run(snippet, tiny_msd, tiny_plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DATASET").symlink_to(tiny_msd)
    # As MONAI's search for a DiNTS leaves it.
    torch.save({"arch_code_a": np.ones((2, 10)), "arch_code_c": np.ones((2, 10), int)}, tmp_path / "search_code.pt")
    # It takes a process of its own, as tests/training do.
    libraries = LibraryMemory(preparing_bytes=2**28, training_bytes=2**29)
    monkeypatch.setattr("voxelocity.training.library_memory.measure_libraries", lambda planned: libraries)
    short = re.sub('time_budget_s=300|time_budget="5m"', f"overrides={tiny_plan!r}", snippet)
    assert short != snippet or not {"vx.plan(", "vx.train("} & set(re.findall(r"vx\.\w+\(", snippet)), (
        "the snippet would train for minutes"
    )
    exec(compile(short, "snippet", "exec"), {})
    assert "vx.train(" not in snippet or (tmp_path / "runs" / "first" / "report.html").exists()


COMMANDED = [*PAGES, *sorted((ROOT / "packages").glob("*/README.md")), *sorted(FINDINGS.glob("VX*.md"))]


@pytest.mark.parametrize("block", [*blocks("", COMMANDED), *blocks("bash", COMMANDED)])
def test_commands_in_the_documents_are_read_as_printed(block):
    for line in block.replace("\\\n", " ").splitlines():
        if line.strip().startswith("voxelocity "):
            read_command(line)


@pytest.mark.parametrize("page", COMMANDED, ids=lambda page: f"{page.parent.name}-{page.name}")
def test_commands_within_a_text_exist_with_their_options(page):
    for line in re.findall(r"`(voxelocity\s[^`<>|]+)`", BLOCK.sub("", page.read_text())):
        read_command(line.replace(" ...", ""), is_whole=False)


def read_command(line, *, is_whole=True):
    """Reads a command as the command line does, up to running it; a text may leave out arguments."""
    group = typer.main.get_command(app)
    words = shlex.split(line, comments=True)[1:]
    if words[0] in {"COMMAND", "--help"}:
        return
    command = group.commands[words[0]]
    while hasattr(command, "commands"):
        words = words[1:]
        command = command.commands[words[0]]
    try:
        context = command.make_context(words[0], words[1:])
    # The base of all errors in a command line's form, of the click that typer brings along.
    except typer.BadParameter.__bases__[0] as error:
        if is_whole or type(error).__name__ != "MissingParameter":
            pytest.fail(f"{line}: {error.format_message()}")
        return
    if words[0] == "launch" and context.args:
        read_command(shlex.join(["voxelocity", *context.args]), is_whole=is_whole)


@pytest.mark.parametrize(
    "page", [*COMMANDED, ROOT / "Dockerfile", ROOT / "environment.yml"], ids=lambda page: page.name
)
def test_extras_that_the_documents_name_exist(page):
    for distribution, names in re.findall(r"(voxelocity(?:-observe|-lab)?)\[([a-z,-]+)\]", page.read_text()):
        project = tomllib.loads((ROOT / "packages" / distribution / "pyproject.toml").read_text())["project"]
        assert set(names.split(",")) <= set(project["optional-dependencies"])


def links(page):
    return [target for target in re.findall(r"\]\(([^)#]+)", page.read_text()) if "://" not in target]


@pytest.mark.parametrize("page", [*PAGES, *DECISIONS, *DAYS], ids=lambda page: f"{page.parent.name}-{page.name}")
def test_links_between_the_documents_lead_somewhere(page):
    assert [target for target in links(page) if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("folder", ["decisions", "log"])
def test_an_index_lists_every_page_of_its_folder(folder):
    index = ROOT / "docs" / folder / "README.md"
    own = [target for target in links(index) if "/" not in target]
    assert sorted(own) == sorted(page.name for page in index.parent.glob("[0-9]*.md"))


CODE = re.compile(r"`([a-z][\w*-]*/[\w./*-]+)`")


@pytest.mark.parametrize(
    "page",
    [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md", *DECISIONS],
    ids=lambda page: f"{page.parent.name}-{page.name}",
)
def test_files_that_a_page_names_exist(page):
    def exists(name):
        parts = ("", "src/", "src/*/", "tests/")
        below = (ROOT, ROOT / "tests", *(folder for part in parts for folder in ROOT.glob(f"packages/*/{part}")))
        return any([*folder.glob(name), *folder.glob(f"{name}.py")] for folder in below)

    assert [name for name in CODE.findall(page.read_text()) if not exists(name)] == []


def test_documents_that_the_code_names_exist():
    named = {
        path.rstrip(".")
        for file in ROOT.glob("packages/*/src/**/*.py")
        for path in re.findall(r"(?<![\w./])docs/[\w./-]+", file.read_text())
    }
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_tables_are_what_the_result_files_say():
    shallow = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    if shallow.stdout.strip() == "true":
        pytest.skip("a shallow clone lacks the commits of the records: git fetch --unshallow")
    script = ROOT / "packages" / "voxelocity-lab" / "benchmarks" / "tables.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
