"""The rows of guides are complete and findable, and what a command does wrong is seen."""

from __future__ import annotations

import json

import pytest

import guide_rows


def test_each_of_the_statements_is_in_one_group_with_a_known_state():
    numbers = [row for group in guide_rows.groups() for row in group["rows"]]
    assert sorted(numbers) == list(range(1, 88))
    assert {group["state"] for group in guide_rows.groups()} <= set(guide_rows.STATES)


def test_what_does_not_run_here_has_its_reason_and_everything_else_something_to_try():
    for group in guide_rows.groups():
        if group["state"] in ("gpu", "impossible"):
            assert group["because"], group["rows"]
        else:
            assert group.get("commands") or group.get("records") or group.get("words"), group["rows"]


def test_every_word_of_the_guides_stands_on_a_page_that_readers_find():
    assert [word for group in guide_rows.groups() for word in guide_rows.missing_words(group)] == []
    assert guide_rows.missing_words({"words": ["dlprof", "no such word"]}) == ["no such word"]


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ({"run": "python -c 'print(5)'", "says": ["5"]}, []),
        ({"run": "python -c 'print(5)'", "says": ["6"]}, ["does not say '6'"]),
        ({"run": "python -c 'raise SystemExit(3)'"}, ["status 3 after: "]),
        ({"run": "python -c 'raise SystemExit(3)'", "status": 3}, []),
        ({"run": "python -c 'raise ValueError'", "status": 1}, ["prints a traceback"]),
        ({"run": "python -c 'open(\"a\", \"w\").write(\"b\")'", "files": {"a": ["b"]}}, []),
        ({"run": "python -c 'open(\"a\", \"w\").write(\"b\")'", "files": {"a": ["c"], "d": []}},
         ["a has no 'c'", "leaves no d"]),
        # Not Python, which may take long to start.
        ({"run": "sh -c 'echo \"Traceback (most recent call last)\"; exec sleep 60'", "interrupt_s": 2.0, "status": -2},
         ["prints a traceback"]),
    ],
)  # fmt: skip
def test_what_a_command_does_otherwise_is_named(tmp_path, command, wrong):
    _, faults = guide_rows.run_command(command, tmp_path)
    assert faults == [f"{command['run']}: {fault}" for fault in wrong]


def test_rows_that_are_not_right_are_counted_as_such():
    groups = [{"rows": [1, 2], "state": "gpu", "is_right": True}, {"rows": [3], "state": "gpu", "is_right": False}]
    assert guide_rows.counts(groups) == {"as_written": 0, "other_name": 0, "gpu": 2, "impossible": 0, "wrong": 1}


def test_a_group_without_its_record_is_not_right(tmp_path, monkeypatch):
    monkeypatch.setattr(guide_rows, "RESULTS", tmp_path)
    group = {"rows": [1], "statement": "", "state": "other_name", "records": ["figures.json"]}
    assert guide_rows.try_group(group, tmp_path)["wrong"] == ["no record figures.json"]
    (tmp_path / "figures.json").write_text(json.dumps({}))
    assert guide_rows.try_group(group, tmp_path)["is_right"]
