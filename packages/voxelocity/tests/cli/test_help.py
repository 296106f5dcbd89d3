from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import voxelocity as package
from shared.examples import widths
from voxelocity.data.cache import DiskTier, entry_key
from voxelocity.testing.tier_contract import example_volume
from voxelocity_observe.core.environment import python_path

_LOOK = """
import sys
import voxelocity
from voxelocity_observe.cli import main
try:
    main.main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {"torch", "monai", "blosc2"}
if sys.argv[1] == "--help":
    heavy |= {"nibabel", "matplotlib", "scipy", "numpy", "rich"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
"""
COMMANDS = (
    "demo", "init", "plan", "train", "launch", "predict", "export", "evaluate", "report", "diagnose", "bench",
    "monitor", "explain", "doctor",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "shown"), [("--help", [*COMMANDS, "cache"]), ("explain VX101", ["# VX101"]), ("cache ls", ["2 entries"])]
)
def test_what_needs_no_tensor_is_answered_without_loading_torch_or_monai(tmp_path, words, shown):
    for name in "ab":
        DiskTier(tmp_path / "voxelocity").put(entry_key(name, ""), example_volume())
    paths = {"PYTHONPATH": python_path(), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", _LOOK, *words.split()]
    ended = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert all(text in ended.stdout for text in shown)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_tells_what_it_does(voxelocity, command):
    told = voxelocity(command, "--help")
    assert told.status == 0
    assert f"{command} [OPTIONS]" in told.out
    assert voxelocity(command, "-h").out == told.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_values_as_users_write_them(voxelocity, command):
    told = voxelocity(command, "--help").out.replace("OUT/<same name>", "")
    assert "<" not in told
    # The fields of a pattern are in quotes.
    assert not re.search(r"\{(?!case\}|channel\}|class\})", told)
    assert "VALUE" not in told


@pytest.mark.parametrize("command", ["ls", "verify", "clear"])
def test_each_command_of_the_cache_tells_what_it_does(voxelocity, command):
    told = voxelocity("cache", command, "-h")
    assert told.status == 0
    assert f"cache {command} [OPTIONS] [FOLDER]" in " ".join(told.out.split())


def test_the_version_is_that_of_the_package(voxelocity):
    assert voxelocity("--version").out == f"voxelocity {package.__version__}\n"


def test_without_a_command_the_help_is_shown(voxelocity):
    assert "train" in voxelocity().out


def test_the_help_has_four_groups_and_three_examples(voxelocity):
    lines = voxelocity("--help").succeeded().out.splitlines()
    heads = ["Options:", "Train:", "Use:", "Understand:", "Maintain:"]
    assert [line for line in lines if line.endswith(":") and not line.startswith(" ")] == heads
    examples = lines[lines.index("  Examples:") + 1 :]
    assert [line.split()[:2] for line in examples if line.strip()] == [
        ["voxelocity", name] for name in ("train", "predict", "diagnose")
    ]
    assert examples[2].split()[2:4] == ["--", "python"], "a script alone is no command"


@pytest.mark.parametrize("words", [(), ("cache",), *((command,) for command in COMMANDS)])
def test_no_help_loses_a_letter_at_any_width(voxelocity, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "10000")
    whole = voxelocity(*words, "--help").succeeded().out
    for width in widths():
        monkeypatch.setenv("COLUMNS", str(width))
        narrow = voxelocity(*words, "--help").succeeded().out
        assert "".join(narrow.split()) == "".join(whole.split()), width
        assert "\u2026" not in narrow


def test_a_shell_completes_commands_and_options():
    run = "import sys; sys.argv = ['voxelocity']; from voxelocity_observe.cli.main import main; main()"
    for words, number, expected in (("voxelocity pred", 1, "predict"), ("voxelocity train --time", 2, "--time-budget")):
        asked = {"_VOXELOCITY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
        environment = {**os.environ, **asked, "PYTHONPATH": python_path()}
        ended = subprocess.run(
            [sys.executable, "-c", run], env=environment, capture_output=True, text=True, check=False
        )
        assert ended.stdout.split() == [expected], ended.stderr
