"""Trials of milliseconds: a script of a few lines in place of a training."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import pytest

import voxelocity as vx
from shared.limits import HANGS_S
from voxelocity.tuning.space import Knob
from voxelocity.tuning.study import Search, Study
from voxelocity.tuning.trial import TrialLimits

# Writes an answer as `write_answer` does, without importing us, which would take most of the time.
_ANSWERS = """
import json, os, pathlib, signal, sys, time
settings, answer = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])
def measured(**values):
    answer.write_text(json.dumps({"measurements": {name: [value] for name, value in values.items()}}))
"""


@pytest.fixture(scope="session")
def planned(tiny_msd, tiny_plan, tmp_path_factory):
    """The plan of a tiny training."""
    cache = tmp_path_factory.mktemp("cache")
    keys = {**tiny_plan, "planner.measure": "never", "data.cache.folder": str(cache)}
    return vx.plan(vx.open(tiny_msd), overrides=keys, cache_folder=cache)


@pytest.fixture
def script():
    """The command of a trial: Python lines that see `settings` and call `measured(seconds=...)`."""

    def make(lines: str):
        def command(settings, *, answer: Path, limits: TrialLimits):
            return [sys.executable, "-I", "-S", "-c", _ANSWERS + lines, json.dumps(settings), str(answer)]

        return command

    return make


@pytest.fixture
def quick_commits(monkeypatch):
    """Studies that do not wait for the disk: each of their hundred commits would take milliseconds."""
    connect = sqlite3.connect

    def connect_without_waiting(*args, **options):
        connection = connect(*args, **options)
        connection.execute("pragma synchronous = off")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_without_waiting)


@pytest.fixture
def study(tmp_path, script, quick_commits):
    """A study in a folder, over a size and a word, unless told otherwise."""

    def make(lines: str, *, folder: Path | None = None, **given):
        options = {name: given.pop(name) for name in ("overwrite", "on_trial", "clock", "cost") if name in given}
        options.setdefault("cost", lambda outcome, default: outcome.measurements["seconds"][0])
        search = Search(
            **{
                "knobs": (
                    Knob(name="size", choices=(1, 2, 4, 8, 16), default=1, grows_memory=True),
                    Knob(name="word", choices=("a", "b", "c"), default="a"),
                ),
                "limits": TrialLimits(seconds=HANGS_S),
                "num_trials": 6,
                "num_confirmations": 1,
                **given,
            }
        )
        return Study(folder or tmp_path / "study", search, command=script(lines), **options)

    return make
