import numpy as np
import pytest

from voxelocity.monitoring.drawn.phases import phases_of, stretches_of


def test_phases_stand_in_the_order_in_which_they_began(mark):
    phases = phases_of([mark("validate", 5.0, 1.0), mark("train", 0.0, 5.0), mark("validate", 10.0, 2.0)])
    assert [(phase.name, phase.count, phase.seconds) for phase in phases] == [("train", 1, 5.0), ("validate", 2, 3.0)]
    assert phases[0].color != phases[1].color


def test_a_phase_within_itself_counts_once(mark):
    (phase,) = phases_of([mark("step", 0.0, 4.0), mark("step", 1.0, 1.0), mark("step", 3.0, 3.0)])
    assert phase.count == 3
    assert phase.edges_s.tolist() == [0.0, 6.0]


def test_the_time_of_a_phase_is_told_for_any_stretch(mark):
    (phase,) = phases_of([mark("step", 1.0, 1.0), mark("step", 3.0, 2.0)])
    starts, stops = np.array([0.0, 1.5, 2.0, 0.0, 9.0]), np.array([1.0, 3.5, 3.0, 9.0, 10.0])
    assert phase.within(starts, stops).tolist() == [0.0, 1.0, 0.0, 3.0, 0.0]


def test_only_the_lowest_rank_is_shown(mark):
    phases = phases_of([mark("train", 0.0, 5.0, rank=1), mark("train", 1.0, 2.0, rank=0)])
    assert [phase.seconds for phase in phases] == [2.0]


def test_a_phase_of_no_length_is_none(mark):
    assert phases_of([mark("nothing", 1.0, 0.0)]) == []
    assert phases_of([]) == []


def test_beyond_twelve_names_the_shorter_ones_are_put_together(mark):
    phases = phases_of([mark(f"case {i}", float(i), 0.5 + 0.01 * i) for i in range(40)])
    assert len(phases) == 12
    assert phases[-1].name == "29 others"
    assert phases[-1].color == "part-other"
    assert sum(phase.count for phase in phases) == 40


def test_a_color_that_was_given_is_kept_and_anything_else_ignored(mark):
    phases = phases_of([mark("a", 0.0, 1.0, color="#ff8800"), mark("b", 1.0, 1.0, color='red"><script>')])
    assert phases[0].color == "#ff8800"
    assert phases[1].color.startswith("part-")


def test_few_stretches_are_exact_and_an_inner_phase_parts_the_one_around_it(mark):
    phases = phases_of([mark("outer", 0.0, 10.0), mark("inner", 2.0, 3.0)])
    stretches = stretches_of(phases, 8.0)
    assert [(s.name, s.start_s, s.stop_s) for s in stretches] == [
        ("outer", 0.0, 2.0),
        ("inner", 2.0, 5.0),
        ("outer", 5.0, 8.0),
    ]
    assert stretches_of(phases, 0.0) == []


def test_many_stretches_become_few_cells_and_the_longest_in_a_cell_leads(mark):
    marks = [mark("train" if i % 10 else "validate", i * 0.01, 0.009) for i in range(20_000)]
    marks += [mark("report", 200.0, 100.0)]
    stretches = stretches_of(phases_of(marks), 400.0)
    assert len(stretches) <= 300
    assert [s.name for s in stretches] == ["train", "report"]
    assert stretches[0].stop_s == pytest.approx(200.0, abs=400 / 300)
    assert stretches[1].stop_s == pytest.approx(300.0, abs=400 / 300)


def test_among_phases_that_fill_a_cell_the_innermost_leads(mark):
    marks = [mark("run", 0.0, 300.0)]
    marks += [mark("train" if i % 2 else "wait", i * 1.0, 1.0) for i in range(100)]
    marks += [mark("steps", 200.0 + i, 0.5) for i in range(100)]
    names = [s.name for s in stretches_of(phases_of(marks), 300.0)]
    assert names[:3] == ["wait", "train", "wait"]
    assert "run" in names
