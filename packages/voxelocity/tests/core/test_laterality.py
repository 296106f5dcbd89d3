import pytest

from voxelocity.core.laterality import find_sides, swapped_classes
from voxelocity_observe.core.errors import ConfigError


@pytest.mark.parametrize(
    "pair",
    [
        ("LeftParotid", "RightParotid"),
        ("kidney_left", "kidney_right"),
        ("Right Lung", "Left Lung"),
        ("LEFT EYE", "right eye"),
        ("Eye_L", "Eye_R"),
        ("lh_cuneus", "rh_cuneus"),
        ("ctx-lh-cuneus", "ctx-rh-cuneus"),
        ("Lt Femur", "Rt Femur"),
        ("LParotid", "RParotid"),
        ("left", "right"),
        ("leftkidney", "rightkidney"),
        ("lkidney", "rkidney"),
        ("rib_left_1", "rib_right_1"),
        ("Left-Lateral-Ventricle", "Right-Lateral-Ventricle"),
    ],
)
def test_two_names_that_differ_in_the_side_are_a_pair(pair):
    sides = find_sides(("background", pair[0], "spine", pair[1]))
    assert (sides.pairs, sides.unlike, sides.single) == ((pair,), (), ())
    assert swapped_classes(("background", pair[0], "spine", pair[1]), sides.pairs) == (0, 3, 2, 1)


@pytest.mark.parametrize(
    "names",
    [
        ("Leftover", "Right"[:2]),
        ("L1", "R1"),
        ("vertebrae_L1", "vertebrae_L2"),
        ("LV", "RV"),
        ("left_right_shunt", "aorta"),
        ("L", "aorta"),
        ("bright", "cleft"),
        ("label_1", "label_2"),
    ],
)
def test_other_names_have_no_side(names):
    sides = find_sides(("background", *names))
    assert (sides.pairs, sides.unlike, sides.single) == ((), (), ())


def test_a_side_without_its_partner_is_single_and_the_rest_are_pairs():
    names = ("background", "lung_upper_lobe_left", "lung_upper_lobe_right", "lung_middle_lobe_right", "kidney_left")
    sides = find_sides(names)
    assert sides.pairs == (("lung_upper_lobe_left", "lung_upper_lobe_right"),)
    assert sides.single == ("lung_middle_lobe_right", "kidney_left")


def test_a_side_that_two_classes_could_be_the_partner_of_is_in_no_pair():
    sides = find_sides(("background", "kidney_left", "Kidney left", "kidney_right"))
    assert sides.pairs == ()
    assert sides.single == ("kidney_left", "Kidney left", "kidney_right")


def test_chambers_of_a_heart_are_not_mirror_images():
    sides = find_sides(("background", "heart_ventricle_left", "heart_ventricle_right", "Left Atrium", "Right Atrium"))
    assert sides.pairs == ()
    assert sides.unlike == (("heart_ventricle_left", "heart_ventricle_right"), ("Left Atrium", "Right Atrium"))


def test_without_pairs_nothing_is_swapped():
    assert swapped_classes(("background", "a"), ()) == ()


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([("links", "recht")], r"names 'recht', which is not a class of this data set; did you mean 'rechts'\?"),
        ([("links", "x")], r"names 'x', .*; the classes are links, rechts, mitte"),
        ([("background", "links")], "names 'background'"),
        ([("links", "links")], "names 'links' twice"),
        ([("links", "rechts"), ("rechts", "mitte")], "names 'rechts' twice"),
    ],
)
def test_a_pair_that_cannot_be_swapped_is_refused(pairs, text):
    with pytest.raises(ConfigError, match=f"swap_pairs {text}"):
        swapped_classes(("background", "links", "rechts", "mitte"), pairs)


def test_a_lone_letter_is_a_side_where_other_classes_show_that_letters_are_sides():
    names = ("Parotid_L", "Parotid_R", "Cochlea_L", "OpticNerve_L", "OpticNrv_R", "Brainstem", "vertebra_L1")
    sides = find_sides(("background", *names))
    assert sides.pairs == (("Parotid_L", "Parotid_R"),)
    assert sides.single == ("Cochlea_L", "OpticNerve_L", "OpticNrv_R")
    # Without such classes it may be anything.
    assert find_sides(("background", "Disc_L", "Cord")).single == ()


def test_sides_by_letters_that_two_classes_could_be_the_partner_of_are_single():
    assert find_sides(("background", "Eye_L", "eye l", "Eye_R")).single == ("Eye_L", "eye l", "Eye_R")


@pytest.mark.parametrize("pair", [("leftatrium", "rightatrium"), ("lventricle", "rventricle")])
def test_chambers_of_the_heart_are_unlike_however_their_side_is_written(pair):
    sides = find_sides(("background", *pair))
    assert (sides.pairs, sides.unlike) == ((), (pair,))
