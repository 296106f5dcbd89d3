from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import voxelocity as package

_LOOK = """
import sys
import voxelocity
from voxelocity.cli import main
sys.argv = ["voxelocity", "--help"]
try:
    main.main()
except SystemExit as end:
    assert not end.code, end.code
loaded = [name for name in ("torch", "monai", "nibabel", "matplotlib", "scipy", "numpy") if name in sys.modules]
assert not loaded, f"loaded: {loaded}"
"""


COMMANDS = (
    "demo",
    "init",
    "plan",
    "train",
    "launch",
    "predict",
    "export",
    "evaluate",
    "report",
    "diagnose",
    "bench",
    "monitor",
    "explain",
    "doctor",
)


def test_help_comes_without_loading_torch_monai_or_numpy():
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    ended = subprocess.run(
        [sys.executable, "-c", _LOOK], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert all(command in ended.stdout for command in (*COMMANDS, "cache"))


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_tells_what_it_does(voxelocity, command):
    told = voxelocity(command, "--help")
    assert told.status == 0
    assert f"{command} [OPTIONS]" in told.out
    assert voxelocity(command, "-h").out == told.out


@pytest.mark.parametrize("command", ["ls", "verify", "clear"])
def test_each_command_of_the_cache_tells_what_it_does(voxelocity, command):
    told = voxelocity("cache", command, "-h")
    assert told.status == 0
    assert f"cache {command} [OPTIONS] [folder]" in " ".join(told.out.split())


def test_the_version_is_that_of_the_package(voxelocity):
    assert voxelocity("--version").out == f"voxelocity {package.__version__}\n"


def test_without_a_command_the_help_is_shown(voxelocity):
    assert "train" in voxelocity().out
