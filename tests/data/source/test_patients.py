"""Names of cases as data sets have them, and the patients that they tell of."""

import pytest

from voxelocity.data.source.patients import patients_of


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
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sides_and_points_in_time_are_of_one_patient(case_ids, wanted):
    patients = patients_of(case_ids)
    assert len(set(patients.values())) == 10
    # Markers are parted by underscores afterwards.
    found = [patients[case_id].replace("_", "-") for case_id in case_ids[6:8]]
    assert found == [wanted.replace("_", "-")] * 2


def test_sides_may_come_first_in_a_name():
    patients = patients_of([f"{side}_{number:02d}" for number in range(5) for side in ("left", "right")])
    assert patients["left_03"] == patients["right_03"] != patients["left_04"]


def test_a_lone_scan_keeps_the_name_of_its_case():
    assert patients_of(["p1_left", "p1_right", "p2_left"]) == {
        "p1_left": "p1", "p1_right": "p1", "p2_left": "p2_left"
    }  # fmt: skip
