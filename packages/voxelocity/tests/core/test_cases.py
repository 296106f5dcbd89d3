from pathlib import Path

import pytest

from voxelocity.core.cases import Cases
from voxelocity.core.volume import VolumeRef
from voxelocity_observe.core.errors import DatasetError


def cases(folds, *, labeled=True):
    refs = tuple(
        VolumeRef(case_id=f"c{i}", images=(Path(f"{i}.nii"),), label=Path(f"{i}_l.nii") if labeled else None, fold=fold)
        for i, fold in enumerate(folds)
    )
    labels = {0: "background", 7: "tumour", 3: "organ"}
    return Cases(name="toy", root=Path("toy"), layout="csv", channels=("CT",), labels=labels, refs=refs)


def test_class_indices_follow_the_sorted_file_values():
    toy = cases([0])
    assert toy.label_values == (0, 3, 7)
    assert toy.class_names == ("background", "organ", "tumour")


def test_a_fold_divides_the_cases():
    split = cases([0, 1, 0, 1, 2]).split(1)
    assert [ref.case_id for ref in split.validation] == ["c1", "c3"]
    assert [ref.case_id for ref in split.training] == ["c0", "c2", "c4"]
    assert split.held_out


def test_the_cases_to_learn_from_are_a_data_set_of_their_own():
    training = cases([0, 1, 0, 1, 2]).training(1)
    assert [ref.case_id for ref in training] == ["c0", "c2", "c4"]
    assert training.class_names == cases([0]).class_names


def test_fold_all_uses_every_case_twice_and_says_so():
    split = cases([0, 1]).split("all")
    assert split.training == split.validation
    assert not split.held_out


@pytest.mark.parametrize(
    ("folds", "fold", "labeled", "text"),
    [
        ([0, 1, 0], 7, True, r"fold 7 holds zero of the 3 labeled cases; folds with cases: \[0, 1\]"),
        ([0, 0], 0, True, "fold 0 holds all 2 labeled cases, none is left to train on"),
        ([0], 0, False, "no case has a label"),
    ],
)
def test_a_fold_that_leaves_nothing_to_train_on_or_to_judge_by_is_refused(folds, fold, labeled, text):
    with pytest.raises(DatasetError, match=text):
        cases(folds, labeled=labeled).split(fold)


def test_a_notebook_sees_what_the_data_set_is_and_its_first_cases():
    shown = cases([0, 1] * 8)._repr_html_().replace("&lt;wbr&gt;", "")
    assert shown.startswith("<iframe srcdoc=")
    assert all(text in shown for text in ("toy", "16 cases", "organ, tumour", "7_l.nii", "The first 8 cases"))
    assert "8_l.nii" not in shown
