"""The steps by Triton's kernels against plain torch: in Triton's interpreter without a GPU, on the device with one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from shared.examples import is_thorough
from voxelocity.monai.steps import AxisWeights, Crop, Flip, Linear, PatchTask, Resize, SamplingGrid, Turn, Warp
from voxelocity.monai.steps import run as run_steps

TOLERANCE = 1e-3
"""Largest difference of values of up to 100: other orders of float32 sums."""
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED or not torch.cuda.is_available() else "cuda")
by_kernels = pytest.mark.gpu
needs_kernels = pytest.mark.skipif(not IS_INTERPRETED and not torch.cuda.is_available(), reason="no CUDA device")
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
SHAPES = [(5, 6, 7), (9, 1, 4), (3, 8, 2), (1, 1, 1)]
IS_SHORT = IS_INTERPRETED and not is_thorough
"""Triton's interpreter runs a few hundred launches a second."""


@pytest.mark.slow
def test_steps_agree_with_the_reference_in_tritons_interpreter():
    # A process of its own: Triton decides when a kernel is defined whether it will be interpreted.
    files = Path(__file__), Path(__file__).parent / "intensity" / "test_change.py"
    which = "(triton_steps and not interpreter) or by_tritons_kernels"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", which, "-p", "no:cacheprovider", *files],
        env={**os.environ, "TRITON_INTERPRET": "1", "REQUIRE_GPU": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 60


def source_of(rng, num_channels, shape, dtype):
    """In any order in memory."""
    array = (rng.normal(size=(num_channels, *shape)) * 20).clip(0 if dtype in ("uint8", "bool") else -100, 100)
    turned = rng.permutation(3) + 1
    memory = torch.from_numpy(np.ascontiguousarray(array.astype(dtype).transpose(0, *turned))).to(DEVICE)
    return memory.permute(0, *(np.argsort(turned) + 1).tolist())


def draw_positions(rng, shape, source_shape, *, is_tied=False, **options):
    theta = (np.eye(3, 4) + rng.normal(scale=0.3, size=(3, 4))).astype(np.float32)
    theta[:, 3] = rng.normal(scale=2.0, size=3)
    if is_tied:
        # Many positions lie halfway between two voxels.
        theta = (np.eye(3, 4) + rng.choice([0.0, 0.5], size=(3, 4))).astype(np.float32)
    options = {"is_wide": True, "is_fused": True, "order": (0, 1, 2), **options}
    return SamplingGrid(
        lines=tuple((np.arange(side) - (side - 1) / 2).astype(np.float32) for side in shape),
        theta=theta,
        scale=2.0 / np.maximum(2, np.array(source_shape)),
        **options,
    )


def draw_table(rng, side, num):
    size, taps = rng.integers(1, 8), rng.integers(1, 4)
    weight = rng.dirichlet(np.ones(taps), size=size).astype(np.float32)
    return AxisWeights(index=rng.integers(0, side, size=(size, taps)).astype(np.int32), weight=weight)


def draw_moves(rng, num):
    steps = []
    for kind in rng.integers(0, 3, size=num):
        if kind == 0:
            steps.append(Flip(axes=tuple(map(bool, rng.integers(0, 2, size=3)))))
        elif kind == 1:
            first, second = rng.choice(3, size=2, replace=False).tolist()
            steps.append(Turn(quarter_turns=int(rng.integers(0, 4)), axes=(first, second)))
        else:
            start, sides = rng.integers(-3, 4, size=3), rng.integers(1, 8, size=3)
            steps.append(Crop(start=tuple(start.tolist()), shape=tuple(sides.tolist()), fill=float(rng.integers(0, 2))))
    return steps


def after(shape, steps):
    for step in steps:
        shape = shape if isinstance(step, Linear) else step.shape_after(shape)
    return shape


def by_both(sources, steps, dtype):
    """What the kernels make of each source, all in one run, and what plain torch makes of it."""
    results = []
    for engine in ("triton", "torch"):
        outs = [
            torch.full((len(source), *after(source.shape[1:], own)), 1, dtype=dtype, device=DEVICE)
            for source, own in zip(sources, steps, strict=True)
        ]
        run_steps(
            [PatchTask(source=a, steps=b, out=c) for a, b, c in zip(sources, steps, outs, strict=True)], engine=engine
        )
        results.append([out.cpu() for out in outs])
    return zip(*results, strict=True)


@by_kernels
@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
def test_moved_voxels_are_the_same_for_every_dtype(dtype):
    for seed, shape in enumerate(SHAPES):
        rng = np.random.default_rng(seed)
        source = source_of(rng, 2, shape, dtype)
        for num in (3 - seed,) if IS_SHORT else range(4):
            ((ours, plain),) = by_both([source], [draw_moves(rng, num)], source.dtype)
            assert torch.equal(ours, plain)


@by_kernels
@needs_kernels
@pytest.mark.parametrize("beyond", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("is_fused", [False, True])
def test_nearest_voxels_are_those_of_torch_one_by_one(beyond, align_corners, is_wide, is_fused):
    flags = {"is_wide": is_wide, "is_fused": is_fused, "align_corners": align_corners}
    for seed, shape in enumerate(SHAPES):
        if IS_SHORT and seed % 2 != is_fused ^ is_wide:
            continue
        rng = np.random.default_rng(seed)
        source = source_of(rng, 1, shape, "int16")
        flags["order"] = (0, 1, 2) if seed % 2 else (2, 1, 0)
        flags["shifts"] = rng.normal(size=(3, 4, 6, 5)).astype(np.float32) if seed == 2 else None
        positions = draw_positions(rng, (4, 6, 5), shape, is_tied=seed in (0, 3), **flags)
        warp = Warp(positions=positions, shape=(4, 6, 5), interpolation="nearest", beyond=beyond, matrix=np.eye(4))
        ((ours, plain),) = by_both([source], [[warp, *draw_moves(rng, 2)]], torch.float32)
        assert torch.equal(ours, plain)


@by_kernels
@needs_kernels
@pytest.mark.parametrize("beyond", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("num_channels", [1, 3])
def test_voxels_in_between_agree_after_moves_and_before_them(beyond, num_channels):
    for seed, shape in enumerate(SHAPES):
        rng = np.random.default_rng(10 + seed)
        source = source_of(rng, num_channels, shape, ["float32", "uint8", "int16", "float16"][seed])
        first = draw_moves(rng, seed)
        positions = draw_positions(rng, (4, 6, 5), after(shape, first), is_wide=bool(seed % 2), align_corners=seed > 1)
        warp = Warp(positions=positions, shape=(4, 6, 5), interpolation="linear", beyond=beyond, matrix=np.eye(4))
        ((ours, plain),) = by_both([source], [[*first, warp, *draw_moves(rng, 2)]], torch.float32)
        torch.testing.assert_close(ours, plain, rtol=0, atol=TOLERANCE)


@by_kernels
@needs_kernels
def test_axes_are_resampled_by_tables_whatever_moved_before_and_after():
    for seed, shape in enumerate(SHAPES):
        rng = np.random.default_rng(20 + seed)
        source = source_of(rng, 2, shape, ["float32", "uint8", "int16", "float64"][seed])
        first = draw_moves(rng, seed)
        tables = tuple(draw_table(rng, side, 3) for side in after(shape, first))
        resize = Resize(tables=tables, matrix=np.eye(4))
        ((ours, plain),) = by_both([source], [[*first, resize, *draw_moves(rng, 2)]], torch.float32)
        torch.testing.assert_close(ours, plain, rtol=0, atol=TOLERANCE)


@by_kernels
@needs_kernels
def test_a_batch_of_several_passes_with_gains_is_made_at_once():
    rng = np.random.default_rng(30)
    sources = [source_of(rng, 2, (6, 5, 7), dtype) for dtype in ("float32", "uint8", "float32")]
    positions = draw_positions(rng, (6, 5, 7), (6, 5, 7))
    warps = [
        Warp(positions=positions, shape=(6, 5, 7), interpolation=kind, beyond="border", matrix=np.eye(4))
        for kind in ("linear", "nearest", "linear")
    ]
    zoom = Resize(tables=tuple(draw_table(rng, side, 2) for side in (6, 5, 7)), matrix=np.eye(4))
    linear = Linear(scale=np.float32([2.0, -0.5]), shift=np.float32([1.0, 3.0]))
    crop = Crop(start=(-1, 0, 0), shape=(6, 5, 6), fill=7.0)
    steps = [[warps[0], zoom, linear, crop], [warps[1], linear, crop, linear], [crop, linear]]
    for ours, plain in by_both(sources, steps, torch.float32):
        torch.testing.assert_close(ours, plain, rtol=0, atol=TOLERANCE)


@by_kernels
@needs_kernels
def test_a_result_may_be_part_of_a_batch_or_lie_in_any_order():
    rng = np.random.default_rng(5)
    source = source_of(rng, 1, (9, 9, 9), "float32")
    steps = [Crop(start=(1, 2, 0), shape=(6, 7, 8)), Flip(axes=(True, False, True))]
    ((wanted, _),) = by_both([source], [steps], torch.float32)
    batch = torch.zeros((3, 1, 6, 7, 8), device=DEVICE)
    turned = torch.empty((8, 7, 6, 1), device=DEVICE).permute(3, 2, 1, 0)
    for out in (batch[1], turned):
        run_steps([PatchTask(source=source, steps=steps, out=out)], engine="triton")
        assert torch.equal(out.cpu(), wanted)
    assert not batch[0].any()
    assert not batch[2].any()
