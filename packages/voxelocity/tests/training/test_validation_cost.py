import pytest

from voxelocity.infer import WindowConfig
from voxelocity.training.validation_cost import ValidationCost, _seconds_again, num_passes

FULL = WindowConfig(shape_voxel=(16, 16, 16), overlap=0.5, mirror_axes=(0, 1, 2))
SHAPES = [(32, 16, 16), (48, 16, 16)]


def test_windows_of_all_cases_and_mirrorings_are_counted():
    assert num_passes(SHAPES, FULL) == (3 + 5) * 8
    assert num_passes(SHAPES, FULL.model_copy(update={"mirror_axes": (), "overlap": 0.0})) == 2 + 3


@pytest.mark.parametrize(
    ("available_s", "axes", "overlap", "num_cases"),
    [
        (66.0, (0, 1, 2), 0.5, 2),
        (65.0, (0, 1), 0.5, 2),
        (20.0, (0,), 0.5, 2),
        (10.0, (), 0.5, 2),
        (9.0, (), 0.25, 2),
        (7.0, (), 0.0, 2),
        (6.0, (), 0.0, 1),
        (0.0, (), 0.0, 1),
    ],
)
def test_windows_get_cheaper_before_cases_are_left_out(available_s, axes, overlap, num_cases):
    cost = ValidationCost(SHAPES, window_s=1.0, other_s=2.0)
    size = cost.largest(FULL, available_s)
    assert (size.window.mirror_axes, size.window.overlap, size.num_cases) == (axes, overlap, num_cases)


@pytest.mark.parametrize(("for_cases_s", "num_cases"), [(100.0, 2), (7.0, 2), (6.0, 1), (0.0, 1)])
def test_cases_are_left_out_later_than_windows_get_cheaper(for_cases_s, num_cases):
    size = ValidationCost(SHAPES, window_s=1.0, other_s=2.0).largest(FULL, 0.0, for_cases_s=for_cases_s)
    assert (size.window.mirror_axes, size.window.overlap, size.num_cases) == ((), 0.0, num_cases)


def test_validations_on_the_way_count_more_than_the_rehearsal_and_the_last_three_are_taken():
    cost = ValidationCost(SHAPES, window_s=1.0, other_s=2.0)
    assert cost.seconds(FULL) == 66.0
    margin = cost.margin
    for seconds in (800.0, 4.0, 8.0, 12.0):
        cost.take_measurement(seconds, num_passes=16)
    # Half as long for a window, so for all else too.
    assert cost.seconds(FULL) == pytest.approx(33.0)
    assert cost.margin < margin, "what was measured is more certain"


def test_what_is_cheaper_is_told_in_words():
    cost = ValidationCost(SHAPES, window_s=1.0, other_s=2.0)
    assert cost.largest(FULL, 1000.0).differences(FULL, 2) == ""
    assert cost.largest(FULL, 20.0).differences(FULL, 2) == "mirroring over x instead of over xyz"
    assert cost.largest(FULL, 6.0).differences(FULL, 2) == (
        "mirroring left out instead of over xyz, windows overlap by 0% instead of 50%, no surface distances, "
        "1 of 2 cases"
    )


def test_surface_distances_are_left_out_before_cases_are():
    cost = ValidationCost(SHAPES, window_s=1.0, other_s=2.0, surface_s=10.0)
    assert cost.seconds(FULL) == 76.0
    assert cost.surface_s == 5.0
    assert cost.largest(FULL, 17.0).surface
    size = cost.largest(FULL, 16.0)
    assert (size.surface, size.num_cases, size.seconds) == (False, 2, 7.0)
    cost.take_measurement(32.0, num_passes=16)
    assert cost.surface_s == 10.0


@pytest.mark.parametrize(("seconds", "counted"), [([0.5, 0.1], 0.1), ([5.0, 0.1], 5.0)])
def test_work_is_timed_once_its_libraries_are_imported_and_long_work_only_once(seconds, counted):
    now = [0.0]
    left = iter(seconds)

    def work():
        now[0] += next(left)

    assert _seconds_again(work, lambda: now[0]) == pytest.approx(counted)
