"""The compiled passes against plain torch, step by step."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.examples import examples, is_thorough
from voxelocity.monai.steps import (
    AxisWeights,
    Crop,
    Flip,
    Linear,
    PatchTask,
    Resize,
    SamplingGrid,
    Turn,
    Warp,
    run,
)
from voxelocity.monai.steps.spatial import native_gather
from voxelocity.monai.steps.spatial.moves import passes

TOLERANCE = 1e-3
"""Largest difference of values of up to 100, after several interpolations: other orders of float32 sums."""
DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
TRIED = DTYPES if is_thorough else ["uint8", "int16", "float32"]
"""Each is compiled for seconds."""
seeds = st.integers(0, 2**31)
shapes = st.tuples(*[st.integers(1, 9)] * 3)


def draw_positions(rng, shape, *, is_wide=True, is_shifted=False, align_corners=False, order=(0, 1, 2), is_fused=True):
    theta = (np.eye(3, 4) + rng.normal(scale=0.3, size=(3, 4))).astype(np.float32)
    theta[:, 3] = rng.normal(scale=3.0, size=3)
    return SamplingGrid(
        lines=tuple((np.arange(side) - (side - 1) / 2).astype(np.float32) for side in shape),
        theta=theta,
        order=order,
        is_fused=is_fused,
        is_wide=is_wide,
        scale=2.0 / rng.integers(2, 10, size=3),
        align_corners=align_corners,
        shifts=rng.normal(size=(3, *shape)).astype(np.float32) if is_shifted else None,
    )


def draw_warp(rng, positions, shape, interpolation=None, beyond=None):
    return Warp(
        positions=positions,
        shape=shape,
        interpolation=interpolation or str(rng.choice(["linear", "nearest"])),
        beyond=beyond or str(rng.choice(["zeros", "border", "reflection"])),
        matrix=np.eye(4),
    )


def draw_table(rng, side):
    size, taps = rng.integers(1, 10), rng.integers(1, 5)
    weight = rng.dirichlet(np.ones(taps), size=size).astype(np.float32)
    return AxisWeights(index=rng.integers(0, side, size=(size, taps)).astype(np.int32), weight=weight)


def draw_exact_step(rng):
    kind = rng.integers(0, 3)
    if kind == 0:
        return Flip(axes=tuple(map(bool, rng.integers(0, 2, size=3))))
    if kind == 1:
        first, second = rng.choice(3, size=2, replace=False).tolist()
        return Turn(quarter_turns=int(rng.integers(0, 4)), axes=(first, second))
    start, sides = rng.integers(-3, 5, size=3), rng.integers(1, 9, size=3)
    return Crop(start=tuple(start.tolist()), shape=tuple(sides.tolist()), fill=float(rng.integers(0, 3)))


def draw_resampling(rng, shape):
    if rng.integers(0, 3) == 0:
        return Resize(tables=tuple(draw_table(rng, side) for side in shape), matrix=np.eye(4))
    sides = tuple(rng.integers(1, 9, size=3).tolist())
    flags = rng.integers(0, 2, size=4).astype(bool).tolist()
    order = (0, 1, 2) if rng.integers(0, 2) else (2, 1, 0)
    positions = draw_positions(
        rng, sides, is_wide=flags[0], is_shifted=flags[1], align_corners=flags[2], is_fused=flags[3], order=order
    )
    return draw_warp(rng, positions, sides, "linear")


def draw_steps(rng, shape, num):
    steps = []
    for _ in range(num):
        steps.append(draw_exact_step(rng) if rng.integers(0, 2) else draw_resampling(rng, shape))
        shape = steps[-1].shape_after(shape)
    return steps, shape


def by_both(sources, steps, shape, dtype=torch.float32):
    """What the compiled passes make of each source, all in one run, and what plain torch makes of it."""
    results = []
    for engine in ("auto", "torch"):
        outs = [torch.full((len(source), *shape), 77, dtype=dtype) for source in sources]
        run([PatchTask(source=a, steps=b, out=c) for a, b, c in zip(sources, steps, outs, strict=True)], engine=engine)
        results.append(outs)
    return zip(*results, strict=True)


def source_of(rng, num_channels, shape, dtype):
    array = (rng.normal(size=(num_channels, *shape)) * 20).clip(0 if dtype == "uint8" else -100, 100).astype(dtype)
    turned = rng.permutation(3) + 1
    memory = np.ascontiguousarray(array.transpose(0, *turned))
    return torch.from_numpy(memory).permute(0, *(np.argsort(turned) + 1).tolist())


@settings(max_examples=examples(150))
@given(seed=seeds, shape=shapes, num=st.integers(0, 4), channels=st.integers(1, 3), dtype=st.sampled_from(TRIED))
def test_compiled_passes_agree_with_plain_steps_for_any_chain_dtype_and_memory_order(seed, shape, num, channels, dtype):
    rng = np.random.default_rng(seed)
    source = source_of(rng, channels, shape, dtype)
    steps, shape_after = draw_steps(rng, shape, num)
    is_exact = not any(isinstance(step, Warp | Resize) for step in steps)
    kind = source.dtype if is_exact else torch.float32
    before = source.clone()
    ((ours, plain),) = by_both([source], [steps], shape_after, kind)
    if is_exact:
        assert torch.equal(ours, plain)
    else:
        torch.testing.assert_close(ours, plain, rtol=0, atol=TOLERANCE)
    assert torch.equal(source, before)


@settings(max_examples=examples(60))
@given(seed=seeds, shape=shapes, is_wide=st.booleans(), is_fused=st.booleans(), is_shifted=st.booleans())
@pytest.mark.parametrize("beyond", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_nearest_voxels_are_those_of_torch_one_by_one(
    beyond, align_corners, seed, shape, is_wide, is_fused, is_shifted
):
    rng = np.random.default_rng(seed)
    source = source_of(rng, 1, shape, "int16")
    flags = {"is_wide": is_wide, "is_fused": is_fused, "is_shifted": is_shifted, "align_corners": align_corners}
    positions = draw_positions(rng, (7, 6, 8), **flags)
    if rng.integers(0, 2):
        # Steps of a half: many positions lie halfway between two voxels.
        ties = (np.eye(3, 4) + rng.choice([0.0, 0.5], size=(3, 4))).astype(np.float32)
        sides = 2.0 / np.maximum(2, np.array(shape))
        positions = SamplingGrid(**{**vars(positions), "theta": ties, "scale": sides, "shifts": None})
    ((ours, plain),) = by_both([source], [[draw_warp(rng, positions, (7, 6, 8), "nearest", beyond)]], (7, 6, 8))
    assert torch.equal(ours, plain)


@pytest.mark.parametrize("is_shifted", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_each_rounding_of_the_sums_finds_its_own_voxels_in_a_large_patch(order, is_shifted):
    shape, are_equal = (64, 60, 66), []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        source = torch.from_numpy(rng.integers(0, 255, size=(1, *shape), dtype=np.uint8))
        drawn = vars(draw_positions(rng, shape, order=order)) | {"scale": 2.0 / np.array(shape)}
        # Tenths: many sums would be a half, were they not rounded.
        drawn["theta"] = np.round(rng.uniform(-0.7, 0.7, size=(3, 4)), 1).astype(np.float32)
        if is_shifted:
            drawn["shifts"] = np.round(rng.normal(size=(3, *shape)), 1).astype(np.float32)
        found = []
        for is_fused in (True, False):
            warp = draw_warp(rng, SamplingGrid(**{**drawn, "is_fused": is_fused}), shape, "nearest", "zeros")
            ((ours, plain),) = by_both([source], [[warp]], shape)
            assert torch.equal(ours, plain)
            found.append(ours)
        are_equal.append(torch.equal(*found))
    assert not all(are_equal)


def test_pieces_of_the_same_places_are_made_together_and_come_out_as_alone(monkeypatch):
    rng = np.random.default_rng(3)
    positions = draw_positions(rng, (8, 7, 6))
    crop, flip = Crop(start=(1, -1, 0), shape=(9, 9, 9)), Flip(axes=(True, False, True))
    image, label = source_of(rng, 2, (11, 9, 10), "float32"), source_of(rng, 1, (11, 9, 10), "uint8")
    kinds = [(image, "linear"), (label, "nearest"), (image, "linear")]
    calls, plain = [], native_gather.native_loops.sample
    monkeypatch.setattr(native_gather.native_loops, "sample", lambda *a: (calls.append(1), plain(*a)))

    def piece(source, kind):
        steps = [crop, draw_warp(rng, positions, (8, 7, 6), kind, "zeros"), flip]
        return PatchTask(source=source, steps=steps, out=torch.empty((len(source), 8, 7, 6)))

    together = [piece(*kind) for kind in kinds]
    run(together)
    assert len(calls) == 2, "one for each pair of an image and a label"
    for (source, kind), other in zip(kinds, together, strict=True):
        alone = piece(source, kind)
        run([alone])
        assert torch.equal(alone.out, other.out)


def test_pieces_of_several_passes_each_keep_their_own_voxels():
    rng = np.random.default_rng(9)
    image, label = source_of(rng, 1, (8, 8, 8), "float32"), source_of(rng, 1, (8, 8, 8), "uint8")
    positions = draw_positions(rng, (7, 6, 5))
    zoom = Resize(tables=tuple(draw_table(rng, 8) for _ in range(3)), matrix=np.eye(4))
    steps = [[zoom, draw_warp(rng, positions, (7, 6, 5), kind, "border")] for kind in ("linear", "nearest", "linear")]
    for ours, plain in by_both([image, label, image], steps, (7, 6, 5)):
        torch.testing.assert_close(ours, plain, rtol=0, atol=TOLERANCE)


def test_pieces_of_the_same_places_but_other_borders_are_not_mixed_up():
    rng = np.random.default_rng(4)
    positions = draw_positions(rng, (8, 8, 8))
    source = source_of(rng, 1, (6, 6, 6), "float32")
    steps = [
        [draw_warp(rng, positions, (8, 8, 8), *kind)] for kind in (("linear", "border"), ("nearest", "reflection"))
    ]
    for ours, plain in by_both([source, source], steps, (8, 8, 8)):
        torch.testing.assert_close(ours, plain, rtol=0, atol=TOLERANCE)


@settings(max_examples=examples(60))
@given(seed=seeds, shape=shapes, num=st.integers(0, 3), dtype=st.sampled_from(["uint8", "int16", "float32"]))
def test_a_linear_change_is_made_with_the_pass_and_reaches_the_fill_too(seed, shape, num, dtype):
    rng = np.random.default_rng(seed)
    source = source_of(rng, 2, shape, dtype)
    steps, shape_after = draw_steps(rng, shape, num)
    linear = Linear(scale=np.float32([2.0, -0.5]), shift=np.float32([1.0, 3.0]))
    more = [Flip(axes=(True, True, False)), Crop(start=(-1, 0, 0), shape=shape_after, fill=7.0)]
    ((ours, plain),) = by_both([source], [[*steps, linear, *more, linear]], shape_after)
    torch.testing.assert_close(ours, plain, rtol=0, atol=4 * TOLERANCE)


def test_a_result_may_be_part_of_a_batch_or_lie_in_any_order():
    rng = np.random.default_rng(5)
    source = source_of(rng, 1, (9, 9, 9), "float32")
    warp = draw_warp(rng, draw_positions(rng, (6, 7, 8)), (6, 7, 8), "linear", "zeros")
    wanted = PatchTask(source=source, steps=[warp], out=torch.empty((1, 6, 7, 8)))
    run([wanted])
    batch, turned = torch.zeros((3, 1, 6, 7, 8)), torch.empty((8, 7, 6, 1)).permute(3, 2, 1, 0)
    for out in (batch[1], turned):
        run([PatchTask(source=source, steps=[warp], out=out)])
        assert torch.equal(out, wanted.out)
    assert not batch[0].any()
    assert not batch[2].any()


def test_of_a_large_volume_only_the_box_that_is_needed_is_read():
    rng = np.random.default_rng(6)
    drawn = vars(draw_positions(rng, (4, 4, 4)))
    positions = SamplingGrid(**{**drawn, "scale": np.array([0.01] * 3), "theta": np.eye(3, 4, dtype=np.float32)})
    array = np.full((1, 200, 200, 200), np.nan, np.float32)
    array[:, 90:110, 90:110, 90:110] = 1.0
    out = torch.empty((1, 4, 4, 4))
    numbers = []
    for beyond in ("zeros", "reflection"):
        warp = draw_warp(rng, positions, (4, 4, 4), "linear", beyond)
        run([PatchTask(source=torch.from_numpy(array), steps=[warp], out=out)])
        assert (out == 1.0).all()
        low, high = native_gather.reach(positions, (200, 200, 200), beyond)
        numbers.append(max(b - a for a, b in zip(low, high, strict=True)))
    assert max(numbers) <= 8


def test_a_pass_has_one_resampling_and_the_exact_moves_around_it():
    rng = np.random.default_rng(7)
    flip, crop = Flip(axes=(True, False, False)), Crop(start=(0, 0, 0), shape=(4, 4, 4))
    warp = draw_warp(rng, draw_positions(rng, (5, 5, 5)), (5, 5, 5))
    assert [work.resampling for work in passes((6, 6, 6), [crop, flip, warp, flip, crop, warp, flip])] == [warp, warp]
    assert [work.resampling for work in passes((6, 6, 6), [flip, crop])] == [None]
    assert len(passes((6, 6, 6), [])) == 1


def test_a_box_that_the_loops_cannot_count_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(native_gather, "_MOST_VOXELS", 100)
    rng = np.random.default_rng(8)
    warp = draw_warp(rng, draw_positions(rng, (9, 9, 9)), (9, 9, 9), "linear", "border")
    piece = PatchTask(source=torch.zeros((1, 9, 9, 9)), steps=[warp], out=torch.ones((1, 9, 9, 9)))
    message = r'a warp needs a box of \d+ voxels, and its compiled loops allow at most 100; .* engine="torch"'
    with pytest.raises(ValueError, match=message):
        run([piece])
    run([piece], engine="torch")
    assert not piece.out.any()
