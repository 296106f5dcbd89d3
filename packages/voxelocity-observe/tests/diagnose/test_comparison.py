from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest

from shared.diagnoses import with_facts
from shared.page import Page, assert_golden
from voxelocity_observe.diagnose.comparison import compare_diagnoses, comparison_verdict, diagnosis_comparison_document
from voxelocity_observe.document import write_page


@pytest.fixture
def before(example_diagnosis):
    return example_diagnosis("data-bound")


@pytest.fixture
def after(before, changed):
    """The same program with workers: it waits a fifth of what it did."""
    return changed(before, findings=before.findings[1:], wait=0.2, num_workers=2)


@pytest.fixture
def changed():
    """Makes the diagnosis of the same program when its steps wait so many times as long."""

    def make(diagnosis, *, findings, wait=1.0, num_workers=0, num_images=4, **environment):
        def shorter(step):
            parts = {**step.parts, "wait": step.parts["wait"] * wait}
            return dataclasses.replace(step, parts=parts, seconds=math.fsum(parts.values()), num_images=num_images)

        loaders = [dataclasses.replace(loader, num_workers=num_workers) for loader in diagnosis.facts.loaders]
        facts = dataclasses.replace(
            diagnosis.facts,
            steps=[shorter(step) for step in diagnosis.facts.steps],
            loaders=loaders,
            environment={**diagnosis.facts.environment, **environment},
        )
        return dataclasses.replace(diagnosis, findings=findings, facts=facts)

    return make


def mean_step_s(diagnosis):
    steps = diagnosis.facts.counted
    return sum(step.seconds for step in steps) / len(steps)


def test_what_is_gone_is_told_with_what_was_predicted_and_what_came(before, after):
    found = compare_diagnoses(before, after)
    assert [finding.code for finding in found.gone] == ["VX101"]
    assert [finding.code for finding in found.still] == ["VX113", "VX303"]
    assert found.new == []
    epoch_s = 0.2 / 40
    expected = (mean_step_s(before) + epoch_s) / (mean_step_s(after) + epoch_s)
    assert found.achieved == pytest.approx(expected)
    assert found.gone[0].speedup == pytest.approx(2.5)
    assert found.predicted == pytest.approx(2.5)
    assert comparison_verdict(found).endswith("2.5× was predicted, 1.9× was achieved: as predicted.")


def test_a_cause_that_no_longer_holds_it_back_is_gone_and_one_that_begins_to_is_new(before, changed):
    findings = [dataclasses.replace(finding, is_cause=not finding.is_cause) for finding in before.findings]
    found = compare_diagnoses(before, changed(before, findings=findings))
    assert [finding.code for finding in found.gone] == ["VX101", "VX113", "VX303"]
    assert [finding.code for finding in found.new] == ["VX112"]


def test_of_several_findings_of_one_code_as_many_are_gone_as_are_missing(before):
    first = before.findings[0]
    three = dataclasses.replace(before, findings=[dataclasses.replace(first, where=f"a.py:{n}") for n in range(3)])
    one = dataclasses.replace(before, findings=[dataclasses.replace(first, where="a.py:90")])
    found = compare_diagnoses(three, one)
    assert len(found.gone) == 2
    assert list(found.still) == list(one.findings), "its line has moved"


def test_predictions_of_several_causes_are_put_together(before, changed):
    shares = (0.5, 0.25)
    findings = [
        dataclasses.replace(finding, saves_s=share * finding.of_s)
        for finding, share in zip(before.findings[:2], shares, strict=True)
    ]
    both = dataclasses.replace(before, findings=findings)
    assert compare_diagnoses(both, changed(before, findings=[])).predicted == pytest.approx(4.0)
    all_there_is = compare_diagnoses(before, changed(before, findings=[]))
    assert all_there_is.predicted == pytest.approx(2.5), "savings that overlap: the largest alone"
    unknown = dataclasses.replace(before, findings=[dataclasses.replace(before.findings[0], saves_s=None)])
    assert compare_diagnoses(unknown, changed(before, findings=[])).predicted is None


def test_how_often_validation_was_watched_does_not_decide(example_diagnosis):
    before = example_diagnosis("validation-bound")
    none_seen = with_facts(before, passes=())
    assert compare_diagnoses(before, none_seen).achieved == pytest.approx(1.0)
    assert compare_diagnoses(before, none_seen).notices == [
        "Validation was seen only before; it is counted at its earlier cost.",
        "Saving was seen only before; it is counted at its earlier cost.",
    ]
    assert compare_diagnoses(none_seen, before).notices[0] == "Validation was seen only after; it is left out."
    fast = [dataclasses.replace(interval, seconds=interval.seconds / 10) for interval in before.facts.passes]
    three_times = with_facts(before, passes=fast * 3)
    found = compare_diagnoses(before, three_times)
    assert found.after.costs["validation"] == pytest.approx(1.6 / 50)
    assert found.achieved == pytest.approx((0.1 + 16.4 / 50) / (0.1 + 1.64 / 50), rel=0.02)


def test_larger_batches_count_as_more_images(before, changed):
    found = compare_diagnoses(before, changed(before, findings=[], num_images=8))
    assert found.achieved == pytest.approx(2.0)
    assert "with 8 images instead of 4" in comparison_verdict(found)


def test_settings_that_differ_are_named_and_places_are_not(before, after):
    found = diagnosis_comparison_document(before, after)
    assert found.values["settings"] == {"loader.num_workers": {"before": 0, "after": 2}}
    (section,) = (part for part in found.sections if part.title == "What was set differently")
    assert re.fullmatch(r"\d\d more settings are equal.", section.blocks[-1].text)


def test_two_machines_and_few_steps_are_noticed(before, example_diagnosis, changed):
    other = changed(before, findings=[], cpu="another")
    assert "different machines (cpu: AMD EPYC 9354, another)" in compare_diagnoses(before, other).notices[0]
    assert "rests on only 4 steps" in " ".join(compare_diagnoses(before, example_diagnosis("killed")).notices)
    assert compare_diagnoses(before, before).notices == []


def test_nothing_seen_cannot_be_compared(before, example_diagnosis, tmp_path):
    nothing = example_diagnosis("nothing seen")
    for a, b in ((before, nothing), (nothing, before), (nothing, nothing)):
        assert compare_diagnoses(a, b).achieved is None
        document = diagnosis_comparison_document(a, b)
        assert "cannot be compared" in document.verdict
        assert "cannot be compared" in write_page(document, tmp_path / "c.html").read_text()


def test_the_page_reads_as_agreed_and_shows_both_bars_on_one_scale(before, after, tmp_path):
    source = write_page(diagnosis_comparison_document(before, after), tmp_path / "c.html").read_text(encoding="utf-8")
    assert_golden(Page(source), "diagnosis-comparison")
    bars = re.findall(r'<svg class="bar".*?</svg>', source, re.DOTALL)
    widths = [sum(float(width) for width in re.findall(r'width="([\d.]+)%"', bar)) for bar in bars]
    assert widths == pytest.approx([100.0, 100.0 / compare_diagnoses(before, after).achieved], abs=0.01)


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
    found = diagnosis_comparison_document(before, after).values
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
    unseen = diagnosis_comparison_document(before, example_diagnosis("nothing seen")).values
    assert json.loads(json.dumps(unseen, allow_nan=False)) == unseen
    assert unseen["achieved"] is None
    assert unseen["after"]["steps_per_s"] is None
