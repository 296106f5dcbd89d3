from dataclasses import replace

from voxelocity.core.records import Choice
from voxelocity.report.choices import choice_groups

SPEED = Choice(key="data.feed.num_threads", value=1, reason="x", changes_results=False)
ROUNDINGS = Choice(key="precision.channels_last", value=True, reason="x", changes_results=False, changes_roundings=True)
RESULTS = Choice(key="seed", value=0, reason="x")


def titles(choices):
    return [(group.title, [choice.key for choice in group.choices]) for group in choice_groups(choices)]


def test_choices_are_told_apart_by_what_another_value_would_change():
    other = replace(RESULTS, key="network.name")
    assert titles([SPEED, RESULTS, ROUNDINGS, other]) == [
        ("Changes the results", ["seed", "network.name"]),
        ("Changes only rounding", ["precision.channels_last"]),
        ("Changes only speed and memory", ["data.feed.num_threads"]),
    ]


def test_there_is_no_empty_group():
    assert titles([SPEED]) == [("Changes only speed and memory", ["data.feed.num_threads"])]
    assert titles([]) == []


def test_what_changes_results_and_roundings_changes_results():
    assert titles([replace(ROUNDINGS, changes_results=True)])[0][0] == "Changes the results"
