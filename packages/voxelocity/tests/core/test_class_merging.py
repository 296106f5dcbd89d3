"""Classes learned as one: what becomes of names and values, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from voxelocity.core.cases import Cases, index_dtype, indices_by_value
from voxelocity.core.class_merging import groups_of, merge_cases, merge_labels
from voxelocity_observe.core.errors import ConfigError

LABELS = {0: "background", 1: "liver", 4: "lung_left", 5: "lung_right", 9: "tumor"}


def merge(groups):
    return merge_labels(LABELS, groups, where="plan: classes.merge")


def test_members_are_named_or_are_values_and_the_lowest_stands_for_all():
    labels, merged = merge({"lung": ["lung_right", 4]})
    assert labels == {0: "background", 1: "liver", 4: "lung", 9: "tumor"}
    assert merged == {4: {4: "lung_left", 5: "lung_right"}}
    assert groups_of(labels, merged) == {"lung": (4, 5)}
    assert merge({"lung": ["4", "lung_right"]}) == (labels, merged)


def test_a_group_with_the_name_of_a_class_takes_it_in():
    labels, merged = merge({"background": ["lung_left", "lung_right"], "liver": ["tumor"]})
    assert labels == {0: "background", 1: "liver"}
    assert list(merged[0]) == [0, 4, 5]
    assert list(merged[1]) == [1, 9]


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ({"lung": ["lung_lft", "lung_right"]}, r"'lung_lft' is not a class; did you mean 'lung_left'\?"),
        ({"lung": [4, 77]}, r"77 is not a class; there are background, liver"),
        ({"lung": [4], "both": ["lung_left", 5]}, r"'lung_left' is in the groups 'lung' and 'both'"),
        ({"liver": ["tumor"], "tumor": [4]}, r"'tumor' is in the groups 'liver' and 'tumor'"),
        ({"lung": []}, r"the group 'lung' is empty"),
        ({" ": [4]}, r"the group ' ' has a name that no class can have"),
        ({"ignore": [4]}, r"the group 'ignore' has a name that no class can have"),
        ({"background": [1, 4, 5, 9]}, r"all classes are merged into 'background'"),
    ],
)
def test_what_cannot_be_merged_is_refused(groups, text):
    with pytest.raises(ConfigError, match=f"plan: classes.merge: {text}"):
        merge(groups)


def test_merged_cases_keep_ignored_voxels_and_overlapping_classes_are_refused():
    cases = Cases(
        name="a", root=Path("a"), layout="msd", channels=("CT",), labels=LABELS, refs=(), ignore_value=12,
    )  # fmt: skip
    assert merge_cases(cases, {}) is cases
    merged = merge_cases(cases, {"lung": [4, 5]})
    assert merged.stored_values == (0, 1, (4, 5), 9, 12)
    assert (merged.label_values, merged.ignored) == ((0, 1, 4, 9), 4)
    assert indices_by_value(merged.stored_values) == {0: 0, 1: 1, 4: 2, 5: 2, 9: 3, 12: 4}
    with pytest.raises(ConfigError, match=r"cannot merge the overlapping classes of a \(whole\).* \"labels\" of its"):
        merge_cases(replace(cases, regions={"whole": (1, 9)}, region_values=(1,)), {"lung": [4, 5]})


def test_indices_take_a_byte_as_long_as_they_fit():
    assert [index_dtype(number) for number in (2, 256, 257, 65_535)] == ["uint8", "uint8", "uint16", "uint16"]
