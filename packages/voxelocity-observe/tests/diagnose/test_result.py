import dataclasses
import json
import math

import pytest

from shared.diagnoses import NAMES, example
from voxelocity_observe.core.errors import InputError, OutputError
from voxelocity_observe.diagnose.facts import KernelGroup
from voxelocity_observe.diagnose.result import diagnosis_from_plain, diagnosis_to_plain, read_diagnosis, write_diagnosis
from voxelocity_observe.diagnose.session import diagnose_folder


@pytest.mark.parametrize("name", NAMES)
def test_a_diagnosis_is_read_back_as_it_was_written(example_diagnosis, name, tmp_path):
    diagnosis = example_diagnosis(name)
    path = write_diagnosis(diagnosis, tmp_path)
    assert path == tmp_path / "diagnosis.json"
    again = read_diagnosis(tmp_path)
    assert diagnosis_to_plain(again) == diagnosis_to_plain(diagnosis)
    assert read_diagnosis(path) == again
    assert type(again.facts) is type(diagnosis.facts)
    assert [type(finding) for finding in again.findings] == [type(finding) for finding in diagnosis.findings]


def test_a_prompt_shows_the_verdict_and_a_notebook_the_page(example_diagnosis, tmp_path):
    diagnosis = example_diagnosis("on a GPU")
    assert repr(diagnosis).startswith(f"Diagnosis({diagnosis.verdict!r}, findings: {diagnosis.findings[0].code}")
    write_diagnosis(diagnosis, tmp_path)
    outcome = diagnose_folder(tmp_path)
    assert repr(outcome) == f"DiagnosisOutcome({diagnosis.verdict!r}, page: {str(tmp_path / 'diagnosis.html')!r})"
    assert "What to change" in outcome._repr_html_()


def test_records_within_records_come_back_as_records(example_diagnosis, tmp_path):
    write_diagnosis(example_diagnosis("on a GPU"), tmp_path)
    profile = read_diagnosis(tmp_path).facts.profile
    assert profile.groups["Memory copies"] == KernelGroup(number=24, cpu_ns=400_000, gpu_ns=9_000_000)
    assert profile.syncs[0].call == "Tensor.item"
    assert profile.tensor_core_share == 0.344


def test_the_file_names_its_version_and_the_gain_of_each_finding(example_diagnosis, tmp_path):
    diagnosis = example_diagnosis("data-bound")
    plain = json.loads(write_diagnosis(diagnosis, tmp_path).read_text())
    assert list(plain) == [
        "format", "version", "verdict", "split", "ceiling", "findings", "not_measured", "own_share", "facts",
    ]  # fmt: skip
    assert plain["version"] == 1
    assert plain["findings"][0]["speedup"] == pytest.approx(2.5)
    assert plain["facts"]["steps"][0]["parts"]["wait"] > 0


def test_numbers_that_do_not_exist_are_null_and_come_back(example_diagnosis, tmp_path):
    diagnosis = dataclasses.replace(example_diagnosis("clean"), own_share=math.inf)
    first = dataclasses.replace(diagnosis.split[0], share=math.nan)
    diagnosis = dataclasses.replace(diagnosis, split=[first])
    plain = json.loads(write_diagnosis(diagnosis, tmp_path).read_text())
    assert (plain["own_share"], plain["split"][0]["share"]) == (None, None)
    again = read_diagnosis(tmp_path)
    assert again.own_share is None
    assert math.isnan(again.split[0].share)


def test_keys_of_later_versions_are_passed_over_and_those_of_earlier_ones_take_their_default(example_diagnosis):
    plain = diagnosis_to_plain(example_diagnosis("data-bound"))
    plain["weather"] = "fine"
    plain["facts"]["host"]["moon"] = 1
    del plain["facts"]["host"]["throttled_share"]
    del plain["facts"]["profile"]
    again = diagnosis_from_plain(plain)
    assert again.facts.host.throttled_share == 0.0
    assert again.facts.profile is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no diagnosis; make one with 'voxelocity diagnose -- COMMAND'"),
        ('{"format": "another"}', "holds no diagnosis"),
        ('{"format": "voxelocity diagnosis", "version": 9}', "of version 9, this Voxelocity reads version 1"),
        (
            '{"format": "voxelocity diagnosis", "version": 1}',
            "is damaged ('Diagnosis without verdict'); diagnose again",
        ),
    ],
)
def test_a_file_that_is_no_diagnosis_is_told_with_its_path(tmp_path, content, words):
    (tmp_path / "diagnosis.json").write_text(content)
    with pytest.raises(InputError) as error:
        read_diagnosis(tmp_path)
    assert words in str(error.value)
    assert str(tmp_path / "diagnosis.json") in str(error.value)


def test_a_risk_that_is_not_known_is_damage(example_diagnosis):
    plain = diagnosis_to_plain(example_diagnosis("data-bound"))
    plain["findings"][0]["risk"] = "who knows"
    with pytest.raises(InputError, match="'who knows' is none of safe, changes results"):
        diagnosis_from_plain(plain)


def test_a_folder_without_a_diagnosis_is_told_with_the_cure(tmp_path):
    with pytest.raises(InputError, match="name a folder that 'voxelocity diagnose' wrote"):
        read_diagnosis(tmp_path)


def test_a_place_that_cannot_be_written_is_an_output_error(example_diagnosis, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        write_diagnosis(example_diagnosis("clean"), tmp_path / "file")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("verdict", 7, "7 is not text"),
        ("not_measured", "all", "'all' is not a list"),
        ("findings", {"a": 1}, "is not a list"),
        ("verdict", ["x" * 5000] * 5000, "is not text"),
    ],
)
def test_values_of_another_type_are_damage_in_few_words(key, value, words):
    plain = diagnosis_to_plain(example(NAMES[0])) | {key: value}
    with pytest.raises(InputError, match=words) as refused:
        diagnosis_from_plain(plain)
    assert len(str(refused.value)) < 900
