import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.examples import examples
from voxelocity.monai.steps import Crop, Flip, Turn
from voxelocity.monai.steps.spatial.moves import Moves, composed

shapes = st.tuples(*[st.integers(1, 6)] * 3)
flips = st.builds(lambda axes: Flip(axes=axes), st.tuples(*[st.booleans()] * 3))
planes = st.sampled_from([(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)])
turns = st.builds(lambda times, axes: Turn(quarter_turns=times, axes=axes), st.integers(-1, 5), planes)
crops = st.builds(
    lambda start, shape, fill: Crop(start=start, shape=shape, fill=fill),
    st.tuples(*[st.integers(-4, 7)] * 3),
    st.tuples(*[st.integers(1, 7)] * 3),
    st.sampled_from([0.0, 5.0]),
)


def one(array, step):
    if isinstance(step, Flip):
        return np.flip(array, [axis + 1 for axis in range(3) if step.axes[axis]])
    if isinstance(step, Turn):
        return np.rot90(array, step.quarter_turns, (step.axes[0] + 1, step.axes[1] + 1))
    made = np.full((len(array), *step.shape), step.fill, array.dtype)
    for place in np.ndindex(step.shape):
        source = tuple(a + b for a, b in zip(step.start, place, strict=True))
        if all(0 <= at < side for at, side in zip(source, array.shape[1:], strict=True)):
            made[(0, *place)] = array[(0, *source)]
    return made


@settings(max_examples=examples(300))
@given(shape=shapes, steps=st.lists(st.one_of(flips, turns, crops), max_size=5))
def test_moves_that_are_one_give_what_the_steps_give_one_by_one(shape, steps):
    array = np.arange(1, 1 + np.prod(shape), dtype=np.int32).reshape(1, *shape)
    wanted, made, rest = array, array, steps
    for step in steps:
        wanted = one(wanted, step)
    while rest:
        moves, num = composed(made.shape[1:], rest)
        assert num > 0
        filled = np.full((1, *moves.shape), -1, np.int32)
        moves.copied_part(filled)[...] = moves.view(made)
        moves.fill_around(filled)
        made, rest = filled, rest[num:]
    np.testing.assert_array_equal(made, wanted)


def test_two_fills_that_would_both_be_seen_are_not_one():
    outer = Crop(start=(-1, 0, 0), shape=(5, 3, 3), fill=1.0)
    further = Crop(start=(-1, 0, 0), shape=(7, 3, 3), fill=2.0)
    moves, num = composed((3, 3, 3), [outer, further])
    assert (num, moves.shape, moves.fill) == (1, (5, 3, 3), 1.0)
    assert Moves.none((3, 3, 3)).then(further).fill == 2.0
