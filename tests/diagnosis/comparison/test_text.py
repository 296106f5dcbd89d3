import json

import pytest

from voxelocity.diagnosis.comparison.compare import compare_diagnoses
from voxelocity.diagnosis.comparison.text import comparison_values, comparison_verdict


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (1.0, "the program is as fast as before:"),
        (3.0, "the program is slower and takes 2.2 times as long:"),
        (0.9, "the program takes about 6 % less time:"),
    ],
)
def test_a_pace_that_stays_or_falls_is_told_as_such(before, wait, words, changed):
    assert words in comparison_verdict(compare_diagnoses(before, changed(before, findings=before.findings, wait=wait)))


def test_less_than_predicted_is_said(before, changed):
    verdict = comparison_verdict(compare_diagnoses(before, changed(before, findings=[], wait=0.9)))
    assert verdict.endswith("2.5× was predicted, 1.1× was achieved: less than predicted.")


def test_as_plain_data_what_cannot_be_compared_is_null(before, after, example_diagnosis):
    found = comparison_values(compare_diagnoses(before, after))
    assert found["gone"] == [
        {
            "code": "VX101",
            "title": before.findings[0].title,
            "predicted": pytest.approx(2.5),
            "achieved": found["achieved"],
        }
    ]
    assert found["settings"]["loader.num_workers"] == {"before": 0, "after": 2}
    assert sum(found["before"]["costs_s"].values()) > sum(found["after"]["costs_s"].values())
    unseen = comparison_values(compare_diagnoses(before, example_diagnosis("nothing seen")))
    assert json.loads(json.dumps(unseen, allow_nan=False)) == unseen
    assert unseen["achieved"] is None
    assert unseen["after"]["steps_per_s"] is None
