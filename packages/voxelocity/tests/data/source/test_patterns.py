"""Patterns of names that can be divided in several ways, and files that have both patterns."""

import pytest

from voxelocity.data.source.patterns import group_by_patterns
from voxelocity_observe.core.errors import ConfigError

CASES = ("A_001", "A_002", "A_010")


def files(pattern, *parts):
    return [pattern.format(case=case, part=part) for case in CASES for part in parts or ("",)]


def found(names, image, label):
    """Channels, images by case, and labels or classes by case."""
    cases = group_by_patterns(names, image=image, label=label)
    assert not [why for _, why in cases.left_out if "--raters" not in why]
    return (
        cases.channels,
        {case.case_id: [*case.images.values()] for case in cases.cases},
        {case: sorted(masks.values()) for case, masks in cases.masks.items()}
        or {case.case_id: case.label for case in cases.cases},
    )


@pytest.mark.parametrize("label", ["{case}.nii.gz", "{case}_seg.nii.gz", "{case}_*.nii.gz"])
def test_channels_and_cases_may_hold_what_separates_them(label):
    channels = ("flair", "t1", "t1_ce")
    names = [*files("img/{case}_{part}.nii.gz", *channels), *files("lab/" + label.replace("*", "b_c"))]
    names = [name.format() for name in names]
    channels_found, images, labels = found(names, "img/{case}_{channel}.nii.gz", f"lab/{label}")
    assert channels_found == channels
    assert images == {case: [f"img/{case}_{channel}.nii.gz" for channel in channels] for case in CASES}
    assert labels == {case: f"lab/{label.replace('*', 'b_c')}".replace("{case}", case) for case in CASES}


@pytest.mark.parametrize(
    "image", ["img/{case}.nii.gz", "img/{case}*.nii.gz", "**/{case}.nii.gz", "{case}/**/ct.nii.gz"]
)
def test_masks_belong_to_the_case_that_has_an_image(image):
    made = image.replace("**", "img").replace("*", "_0000")
    names = [*files(made), *files("lab/{case}_{part}_m.nii.gz", "kidney_left", "kidney", "liver")]
    _, images, classes = found(names, image, "lab/{case}_{class}_m.nii.gz")
    assert [*images] == [*CASES]
    assert classes == {case: ["kidney", "kidney_left", "liver"] for case in CASES}


def test_several_masks_of_a_class_have_its_name():
    names = [*files("{case}/ct.nii.gz"), *files("{case}/m/kidney_instance-{part}_by-1.nii.gz", "1", "2")]
    _, _, classes = found(names, "{case}/ct.nii.gz", "{case}/m/{class}_instance-*_by-1.nii.gz")
    assert classes == {case: ["kidney", "kidney"] for case in CASES}


def test_a_label_is_no_channel_and_an_image_no_class():
    names = files("{case}/{case}_{part}.nii.gz", "t1", "t2", "seg")
    channels, _, labels = found(names, "{case}/{case}_{channel}.nii.gz", "{case}/{case}_seg.nii.gz")
    assert channels == ("t1", "t2")
    assert labels == {case: f"{case}/{case}_seg.nii.gz" for case in CASES}
    names = files("{case}/{part}.nii.gz", "ct", "liver", "spleen")
    _, images, classes = found(names, "{case}/ct.nii.gz", "{case}/{class}.nii.gz")
    assert images["A_001"] == ["A_001/ct.nii.gz"]
    assert classes["A_001"] == ["liver", "spleen"]
    with pytest.raises(ConfigError, match="take the same files; make one narrower"):
        group_by_patterns(names, image="{case}/*.nii.gz", label="{case}/{class}.nii.gz")
