"""Which predictions are pictured."""

from voxelocity.infer.pictured import Pictured


def pictured(volumes, most=2):
    cut, kept = [], Pictured(most)
    for case_id, liver_ml in volumes.items():
        kept.add(case_id, {"liver": liver_ml, "tumor": 0.0}, lambda case_id=case_id: cut.append(case_id) or ())
    return [figure.title for figure in kept.figures], cut


def test_a_missing_structure_comes_first_then_the_most_unlike_volume():
    titles, _ = pictured({"a": 100.0, "b": 110.0, "c": 105.0, "d": 320.0, "e": 0.0, "f": 98.0})
    assert titles == ["e: no liver", "d: liver 3.0 times the median"]


def test_a_structure_that_few_scans_have_is_not_missed():
    kept = Pictured(1)
    for number in range(5):
        kept.add(str(number), {"tumor": 3.0 if number == 4 else 0.0}, tuple)
    assert [figure.title for figure in kept.figures] == ["0"]


def test_slices_of_usual_scans_are_not_cut():
    titles, cut = pictured({str(number): 100.0 for number in range(20)})
    assert titles == ["0", "1"]
    assert cut == ["0", "1"]


def test_two_scans_are_shown_in_their_order_without_a_judgment():
    assert pictured({"a": 100.0, "b": 1.0})[0] == ["a", "b"]
