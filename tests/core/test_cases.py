from pathlib import Path

import pytest

from voxelocity.core.cases import Cases
from voxelocity.core.errors import DatasetError
from voxelocity.core.volume import VolumeRef


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


def test_an_empty_fold_is_refused_with_the_folds_that_exist():
    with pytest.raises(DatasetError, match=r"fold 7 holds zero of the 3 labeled cases; folds with cases: \[0, 1\]"):
        cases([0, 1, 0]).split(7)


def test_a_fold_that_leaves_nothing_to_train_on_is_refused():
    with pytest.raises(DatasetError, match="fold 0 holds all 2 labeled cases, none is left to train on"):
        cases([0, 0]).split(0)


def test_a_data_set_without_labels_is_refused():
    with pytest.raises(DatasetError, match="no case has a label"):
        cases([0], labeled=False).split(0)
