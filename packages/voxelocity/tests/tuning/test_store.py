"""The file of a study."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import struct
import sys

import pytest

from voxelocity.tuning.space import Knob
from voxelocity.tuning.store import STUDY_FILE, open_store
from voxelocity.tuning.trial import TrialOutcome
from voxelocity_observe.core.errors import InputError, OutputError

optuna = pytest.importorskip("optuna")

KNOBS = (
    Knob(name="shape", choices=([1, 1, 1], [2, 2, 2]), default=[1, 1, 1]),
    Knob(name="word", choices=("a",), default="a"),
)


@pytest.mark.parametrize("name", ["plain", "a?b #1 50%41 {x}"])
def test_a_trial_is_there_again_after_the_file_was_closed(tmp_path, name):
    outcome = TrialOutcome(kind="finished", seconds=1.0, measurements={"seconds": (2.0,)})
    folder = tmp_path / name
    folder.mkdir()
    with open_store(folder, KNOBS, about={"what": "test"}, seed=0) as store:
        trial, settings = store.begin("search", {"shape": [2, 2, 2], "word": "a"})
        store.end(trial, outcome, 2.0)
    assert settings == {"shape": [2, 2, 2], "word": "a"}
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with open_store(folder, KNOBS, about={"what": "test"}, seed=0) as store:
        (record,) = store.records()
    assert (record.settings, record.outcome, record.cost, record.phase) == (settings, outcome, 2.0, "search")


def test_optunas_own_tools_read_the_file(tmp_path):
    with open_store(tmp_path, KNOBS, about={}, seed=0) as store:
        trial, _ = store.begin("default", {"shape": [1, 1, 1], "word": "a"})
        store.end(trial, TrialOutcome(kind="out_of_memory", seconds=1.0), None)
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / STUDY_FILE}")
    (summary,) = optuna.get_all_study_summaries(storage)
    assert summary.n_trials == 1
    storage.remove_session()
    storage.engine.dispose()


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / STUDY_FILE).write_bytes(b"not a database, " * 100)
    with pytest.raises(OutputError, match=STUDY_FILE), open_store(tmp_path, KNOBS, about={}, seed=0):
        pass


def fill_the_disk(folder):
    """One trial is kept, then no file may grow, and another one is to be kept."""
    outcome = TrialOutcome(kind="finished", seconds=1.0, measurements={"seconds": (2.0,)})
    long = TrialOutcome(kind="crashed", seconds=1.0, reason="x" * 10**6)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with open_store(folder, KNOBS, about={}, seed=0) as store:
            trial, _ = store.begin("search", {"shape": [2, 2, 2], "word": "a"})
            store.end(trial, outcome, 2.0)
            trial, _ = store.begin("search", {"shape": [1, 1, 1], "word": "a"})
            resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / STUDY_FILE).stat().st_size, hard))
            store.end(trial, long, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_leaves_the_trials_so_far(tmp_path):
    with pytest.raises(OutputError, match=r"(?s)study\.db.*free some space"):
        fill_the_disk(tmp_path)
    with open_store(tmp_path, KNOBS, about={}, seed=0) as store:
        assert [record.cost for record in store.records()] == [2.0]


def test_without_optuna_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with (
        pytest.raises(InputError, match=r"pip install 'voxelocity\[tune\]'"),
        open_store(tmp_path, KNOBS, about={}, seed=0),
    ):
        pass
    assert os.listdir(tmp_path) == []


def hot_journal(path, removed):
    """A journal of SQLite that makes it remove a file when it opens the database: its format is in pager.c."""
    name, magic, page = os.fsencode(removed), bytes.fromhex("d9d505f920a163d7"), 4096
    sizes = struct.pack(">iIIII", 0, 1, path.stat().st_size // page, 512, page)
    end = struct.pack(">I", 0x40000000 // page + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
    path.with_name(f"{path.name}-journal").write_bytes((magic + sizes).ljust(512, b"\0") + end)


def test_a_journal_that_makes_sqlite_remove_a_file_is_refused(tmp_path):
    with open_store(tmp_path, KNOBS, about={}, seed=0):
        pass
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    hot_journal(tmp_path / STUDY_FILE, precious)
    with pytest.raises(OutputError, match="names another file"), open_store(tmp_path, KNOBS, about={}, seed=0):
        pass
    assert precious.read_text() == "mine"


@pytest.mark.parametrize(
    "change",
    [
        "update trial_user_attributes set value_json = '{\"network.factory\": \"os:abort\"}' where key = 'settings'",
        'update trial_user_attributes set value_json = \'{"shape": [9, 9, 9], "word": "a"}\' where key = \'settings\'',
        "update trial_user_attributes set value_json = '3' where key = 'settings'",
        "update trial_user_attributes set value_json = '{}' where key = 'outcome'",
        "update trial_user_attributes set value_json = '[\"x\"]' where key = 'outcome'",
        "update trial_user_attributes set value_json = '\"of mine\"' where key = 'phase'",
        "update study_user_attributes set value_json = '[1]'",
        "update trial_params set distribution_json = '{}'",
        "create trigger t after insert on trials begin delete from trials; end",
    ],
)
def test_a_study_that_holds_what_no_tuning_writes_is_refused(tmp_path, change):
    with open_store(tmp_path, KNOBS, about={}, seed=0) as store:
        trial, _ = store.begin("search", {"shape": [2, 2, 2], "word": "a"})
        store.end(trial, TrialOutcome(kind="finished", seconds=1.0, measurements={"seconds": (2.0,)}), 2.0)
    with contextlib.closing(sqlite3.connect(tmp_path / STUDY_FILE)) as file, file:
        file.execute(change)
    with (
        pytest.raises(InputError, match=STUDY_FILE + "|holds a study that differs"),
        open_store(tmp_path, KNOBS, about={}, seed=0),
    ):
        pass
