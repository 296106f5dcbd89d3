from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.core.cases import Cases
from voxelocity.core.volume import VolumeRef
from voxelocity.data.source.splits import assign_folds, default_folds, patients_of, read_splits
from voxelocity_observe.core.errors import DatasetError


def refs_of(case_ids: list[str]) -> list[VolumeRef]:
    return [VolumeRef(case_id=name, images=(Path(name),), label=Path(f"{name}_label")) for name in sorted(case_ids)]


@given(st.lists(st.text(min_size=1, max_size=4), unique=True, min_size=1, max_size=40), st.integers(2, 7), st.randoms())
def test_default_folds_hold_every_case_once_in_even_sizes_whatever_the_order(case_ids, num_folds, random):
    folds = default_folds(dict(zip(case_ids, case_ids, strict=True)), num_folds)
    assert set(folds) == set(case_ids)
    sizes = [sum(fold == wanted for fold in folds.values()) for wanted in range(num_folds)]
    assert sum(sizes) == len(case_ids)
    assert max(sizes) - min(sizes) <= 1
    assert [folds[case_id] for case_id in sorted(case_ids)] == [i % num_folds for i in range(len(case_ids))]
    random.shuffle(case_ids)
    assert default_folds(dict(zip(case_ids, case_ids, strict=True)), num_folds) == folds


@pytest.mark.parametrize(("num_cases", "num_folds", "made"), [(1, 5, 1), (2, 5, 2), (3, 5, 3), (5, 5, 5), (12, 5, 5)])
def test_default_folds_are_no_more_than_the_cases(num_cases, num_folds, made):
    refs, num_made = assign_folds(refs_of([f"{i:02d}" for i in range(num_cases)]), num_folds=num_folds)
    assert num_made == made
    assert [ref.fold for ref in refs] == [index % made for index in range(num_cases)]


def test_scans_of_one_patient_share_a_fold_and_patients_are_spread_evenly():
    case_ids = [f"p{number:02d}_{side}" for number in range(12) for side in ("left", "right")]
    refs, num_folds = assign_folds(refs_of(case_ids), num_folds=5)
    assert num_folds == 5
    folds = {ref.case_id: ref.fold for ref in refs}
    assert all(folds[f"p{number:02d}_left"] == folds[f"p{number:02d}_right"] == number % 5 for number in range(12))
    assert {ref.patient for ref in refs} == {f"p{number:02d}" for number in range(12)}


def test_there_are_no_more_default_folds_than_patients():
    refs, num_folds = assign_folds(refs_of(["p1_pre", "p1_post", "p2_pre", "p2_post"]), num_folds=5)
    assert num_folds == 2
    assert [ref.fold for ref in refs] == [0, 0, 1, 1]


def test_declared_patients_win_over_names():
    refs = [replace(ref, patient=ref.case_id) for ref in refs_of(["p1_pre", "p1_post", "p2_pre", "p2_post"])]
    assert [ref.fold for ref in assign_folds(refs, num_folds=5)[0]] == [0, 1, 2, 3]


@pytest.mark.parametrize("patients", [(None,) * 5, ("a", "b", "c", "c", "e")])
def test_cases_that_share_a_file_are_of_one_patient(patients):
    # Two phases with one label, x, and an image, 2, with labels by two raters.
    files = [("1", "x"), ("2", "x"), ("3", "y"), ("2", "z"), ("5", "w")]
    refs = [
        VolumeRef(case_id=case_id, images=(Path(image),), label=Path(label), patient=patient)
        for case_id, (image, label), patient in zip("dfgkm", files, patients, strict=True)
    ]
    found, num_folds = assign_folds(refs, num_folds=5)
    # Of c, both scans: g by its name, k by its image.
    same = [ref.patient == found[0].patient for ref in found]
    assert same == [True, True, patients[0] is not None, True, False]
    assert len({ref.fold for ref, is_same in zip(found, same, strict=True) if is_same}) == 1
    assert num_folds == len({ref.patient for ref in found})


def test_an_image_of_all_cases_such_as_an_atlas_makes_no_patient():
    refs = [replace(ref, images=(*ref.images, Path("atlas"))) for ref in refs_of(["a", "b", "c"])]
    assert [ref.fold for ref in assign_folds(refs, num_folds=3)[0]] == [0, 1, 2]


def test_volumes_of_a_single_scan_are_divided_though_of_one_patient():
    refs = [VolumeRef(case_id=name, images=(Path("4d"),), label=Path(name), volume=1) for name in "abc"]
    found, _ = assign_folds(refs, num_folds=3)
    assert [(ref.fold, ref.patient) for ref in found] == [(0, "a"), (1, "a"), (2, "a")]


def test_a_validated_case_has_the_fold_that_validates_it(write_json):
    path = write_json([{"train": ["a", "b"], "val": ["c"]}, {"train": ["c", "b"], "val": ["a"]}], "splits_final.json")
    assert read_splits(path, ["a", "b", "c"]) == ({"c": (0,), "a": (1,)}, 2, set())


def test_repeated_splits_hold_a_case_out_in_each_fold_that_validates_it(tmp_path):
    folds = [{"train": ["a"], "val": ["b"]}, {"train": ["b"], "val": ["a"]}]
    path = tmp_path / "splits_final.json"
    path.write_text(json.dumps(folds * 2))
    refs = [VolumeRef(case_id=name, images=(Path(name),), label=Path(name)) for name in "ab"]
    found, num_folds = assign_folds(refs, num_folds=5, splits_file=path)
    assert ([ref.folds for ref in found], num_folds) == ([(1, 3), (0, 2)], 4)
    cases = Cases(
        name="x", root=tmp_path, layout="nnunet", channels=("CT",), labels={0: "background", 1: "a"}, refs=found,
        num_folds=num_folds,
    )  # fmt: skip
    for fold, held_out in enumerate("baba"):
        split = cases.split(fold)
        assert [ref.case_id for ref in split.validation] == [held_out]
        assert len(split.training) == 1


@pytest.mark.parametrize(
    ("splits", "text"),
    [
        ([], r"the top level is an empty list; write a list of \{\"train\""),
        ({"train": [], "val": []}, r"the top level is an object; write a list of"),
        ([["a"]], r"fold 0 has \"train\": None; write a list of case ids under \"train\" and \"val\""),
        ([{"train": ["a", "b", "c"]}], r"fold 0 has \"val\": None; write a list of case ids"),
        ([{"train": ["a"], "val": [1]}], r"fold 0 has \"val\": \[1\]; write a list of case ids"),
        ([{"train": ["a", "b"], "val": ["d"]}], r"fold 0 names case 'd', which is not in the data set; correct the id"),
        (
            [{"train": ["a", "b", "c"], "val": ["c"]}],
            r"fold 0 names case 'c' under both \"train\" and \"val\"; keep it",
        ),
        ([{"train": ["a", "b", "b"], "val": ["c"]}], r"fold 0 names case 'b' twice; keep it once"),
        (
            [{"train": ["a", "b"], "val": ["c"]}, {"train": [], "val": ["a"]}],
            r"fold 1 leaves out 2 of 3 cases, the first is 'b'; add each to \"train\" or \"val\", or remove it",
        ),
    ],
)
def test_splits_that_contradict_the_cases_are_refused(write_json, splits, text):
    path = write_json(splits, "splits_final.json")
    with pytest.raises(DatasetError, match=text) as caught:
        read_splits(path, ["a", "b", "c"])
    assert str(caught.value).startswith(f"source: {path}: ")


def numbered(start, stop, form):
    return [form.format(number) for number in range(start, stop)]


def both(first, second, form, count=10):
    return [form.format(number, side) for number in range(count) for side in (first, second)]


@pytest.mark.parametrize(
    "case_ids",
    [
        numbered(1, 100, "case_{:03d}"),
        numbered(1, 100, "hippocampus_{:03d}"),
        numbered(0, 50, "BraTS2021_{:05d}"),
        numbered(1, 60, "LUNG1-{:03d}"),
        numbered(0, 130, "volume-{}"),
        numbered(0, 30, "img{:04d}"),
        numbered(0, 12, "{:02d}"),
        numbered(0, 50, "FLARE22_Tr_{:04d}"),
        [f"site{site}_{number:03d}" for site in (1, 2) for number in range(30)],
        [f"TCGA-{site:02d}-{number:04d}" for site in (1, 2, 3) for number in range(3)],
        numbered(0, 20, "sub-{:02d}_T1w"),
        ["msd_spleen_2_crop", "msd_spleen_8_coarse"],
        ["ms_patient07", "ms_patient19"],
        ["left", "right"],
        ["anatomy_left", "anatomy_right"],
        [],
    ],
    ids=lambda case_ids: str(case_ids[:1]),
)
def test_cases_that_are_merely_counted_are_patients_of_their_own(case_ids):
    assert patients_of(case_ids) == {case_id: case_id for case_id in case_ids}


@pytest.mark.parametrize(
    ("case_ids", "wanted"),
    [
        (both("left", "right", "p{:02d}_{}"), "p03"),
        (both("L", "R", "hip_{:02d}_{}"), "hip_03"),
        (both("pre", "post", "P{:02d}-{}"), "P03"),
        (both("visit_1", "visit_2", "p{:02d}_{}"), "p03"),
        (both("frame01", "frame12", "patient{:02d}_{}"), "patient03"),
        (both("01", "02", "patient{:02d}_{}"), "patient03"),
        (both("000", "001", "BraTS-GLI-000{:02d}-{}"), "BraTS-GLI-00003"),
        (both("20200102", "20210304", "p{:02d}_{}"), "p03"),
        (both("ses-1", "ses-2", "sub-{:02d}_{}_T1w"), "sub-03"),
        (both("acq-a", "acq-b", "sub-{:02d}_{}"), "sub-03"),
        (both("ED", "ES", "patient{:03d}_{}"), "patient003"),
        (both("BL", "FU", "P{:02d}_{}"), "P03"),
        (both("a", "b", "P{:02d}{}"), "P03"),
        (both("tp0", "tp1", "PAT{:03d}{}"), "PAT003"),
        (both("2020-01-31", "2021-03-15", "P{:02d}_{}"), "P03"),
        (both("31.01.2020", "15.03.2021", "P{:02d}_{}"), "P03"),
        (both("arterial", "venous", "P{:02d}_{}"), "P03"),
        (both("links", "rechts", "P{:02d}_{}"), "P03"),
        (both("00", "01", "site_{:02d}{}"), "site_03"),
        (both("2_0", "3_0", "10000{:02d}_{}"), "1000003"),
        (both("I1234", "I99", "002_S_{:04d}_{}"), "002_S_0003"),
        (both("exam1", "exam2", "P{:02d}-{}-ax"), "P03"),
        (both("vorher", "nachher", "Pat{:02d} {}"), "Pat03"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sides_and_points_in_time_are_of_one_patient(case_ids, wanted):
    patients = patients_of(case_ids)
    assert len(set(patients.values())) == 10
    # Markers are parted by underscores afterwards.
    found = [patients[case_id].replace("_", "-") for case_id in case_ids[6:8]]
    assert found == [wanted.replace("_", "-")] * 2


def test_where_names_tell_nothing_neighbors_share_a_fold_and_a_warning_shows_two():
    names = [f"{chr(97 + number)}{'xyzw'[number % 4] * (number + 1)}{7 * number}" for number in range(20)]
    with pytest.warns(
        UserWarning, match=r"such as ax0 and byy7, do not show which are of one patient.*column 'patient'"
    ):
        refs, _ = assign_folds(refs_of(names), num_folds=5)
    assert [ref.fold for ref in refs] == [number // 4 for number in range(20)]
    assert assign_folds([replace(ref, patient=ref.case_id, fold=None) for ref in refs], num_folds=5)[0][1].fold == 1


def test_sides_may_come_first_in_a_name():
    patients = patients_of([f"{side}_{number:02d}" for number in range(5) for side in ("left", "right")])
    assert patients["left_03"] == patients["right_03"] != patients["left_04"]


def test_a_lone_scan_keeps_the_name_of_its_case():
    assert patients_of(["p1_left", "p1_right", "p2_left"]) == {
        "p1_left": "p1", "p1_right": "p1", "p2_left": "p2_left"
    }  # fmt: skip


def test_cases_in_no_fold_are_a_fixed_test_set(tmp_path):
    path = tmp_path / "splits_final.json"
    path.write_text(json.dumps([{"train": ["a"], "val": ["b"]}, {"train": ["b"], "val": ["a"]}]))
    refs = [VolumeRef(case_id=name, images=(Path(name),), label=Path(name)) for name in "abc"]
    with pytest.warns(UserWarning, match="places 1 of 3 cases in no fold, such as 'c'; they are a test set"):
        found, num_folds = assign_folds(refs, num_folds=5, splits_file=path)
    assert ([(ref.case_id, ref.fold) for ref in found], num_folds) == ([("a", 1), ("b", 0)], 2)


def test_names_of_test_scans_do_not_join_training_cases():
    names = ["la_001", "la_002", "la_003", "la_101", "la_102", "la_103"]
    refs = [
        VolumeRef(case_id=name, images=(Path(name),), label=Path(name) if name < "la_1" else None) for name in names
    ]
    found, num_folds = assign_folds(refs, num_folds=5)
    assert num_folds == 3
    assert {ref.fold for ref in found if ref.label} == {0, 1, 2}
