"""Which Triton kernels are compiled ahead, and that launches wait only for their own; needs no GPU."""

import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

import triton

from voxelocity.core import compiling, kernels
from voxelocity.core.batch import PLAIN, Draw, ImageFormat
from voxelocity.core.contracts import ResidentBox
from voxelocity.core.region import Region
from voxelocity.core.volume import Scaling
from voxelocity.data.augment import (
    AugmentConfig,
    ResidentSource,
    Source,
    possible_launches,
    sample,
    triton_crop,
    triton_frame,
    triton_intensity,
    triton_tone,
    triton_warp,
)
from voxelocity.data.augment.triton_engine import augment_batch

WAIT_S = 20.0
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
compiled_only = pytest.mark.skipif(IS_INTERPRETED, reason="needs kernels that Triton would compile")
PROBABILITIES = [name for name in AugmentConfig.model_fields if name.endswith("_probability") and "_turn_" not in name]
KINDS = {"num_channels": 2, "patch_shapes": [(9, 8, 12)], "dtypes": ["int16"], "swaps_classes": True}


def configs():
    """Configurations that draw some of the changes, with chances in between."""
    chances = st.fixed_dictionaries(
        {name: st.sampled_from([0.0, 0.5, 1.0]) for name in PROBABILITIES if name != "flip_probability"}
    )
    return st.builds(
        lambda chances, flip, votes, keeps: AugmentConfig.only(
            **chances,
            flip_probability=(flip, 0.0, flip),
            label_interpolation="vote" if votes else "nearest",
            gamma_keeps=keeps,
            elastic_spacing_voxel=4.0,
        ),
        chances,
        st.sampled_from([0.0, 0.5]),
        st.booleans(),
        st.sampled_from(["moments", "range"]),
    )


def forms(config, **kinds):
    return {launch.form for launch in possible_launches(config, **(KINDS | kinds))}


def launched(config, *, seed, patch=(9, 8, 12), resident=False, runs=False, image_format=PLAIN):
    """The forms of what a batch launches; in the interpreter, the launches really happen."""
    draws = [Draw(case_id="a", case=case, epoch=seed) for case in range(2)]
    swapped = (0, 2, 1)
    params = sample(draws, seed=0, num_channels=2, patch_shape=patch, config=config, swapped_classes=swapped)
    device = "cpu" if runs else "meta"
    image = image_format.empty((2, 2, *patch), torch.device(device))
    label = torch.empty((2, *patch), dtype=torch.uint8, device=device)
    shape = (16, 14, 20)
    if resident:
        size = 16 * 14 * 20
        memory, steps = torch.zeros(5 * size, dtype=torch.uint8, device=device), (14 * 20, 20, 1)
        box = ResidentBox(
            memory=memory, dtype="int16", shape=shape, image_offset=0, image_steps=(size, *steps),
            label_offset=4 * size, label_steps=steps,
        )  # fmt: skip
        source = ResidentSource(box=box, start=(0, 0, 0), scaling=(Scaling(),) * 2)
    else:
        source = Source(image=np.zeros((2, *shape), np.int16), label=np.zeros(shape, np.uint8), start=(0, 0, 0))
    region = Region((1, 1, 1), tuple(side + 1 for side in patch))
    with kernels.record_launches(runs=runs) as launches:
        augment_batch([source, source], [region, region], params, image, label)
    return {launch.form for launch in launches}


@given(
    config=configs(),
    seed=st.integers(0, 1000),
    resident=st.booleans(),
    image_format=st.builds(
        ImageFormat, dtype=st.sampled_from(["float32", "bfloat16", "float16"]), channels_last=st.booleans()
    ),
)
@settings(max_examples=60, deadline=None)
def test_every_launch_of_a_batch_is_among_those_compiled_ahead(config, seed, resident, image_format):
    seen = launched(config, seed=seed, resident=resident, image_format=image_format)
    assert seen <= forms(config, image_format=image_format)


@pytest.mark.skipif(not IS_INTERPRETED, reason="needs TRITON_INTERPRET=1, as test_triton.py sets it")
@pytest.mark.parametrize("name", ["all changes", "nnU-Net's"])
def test_what_the_interpreter_launches_for_some_batches_is_among_them(name):
    config = AugmentConfig() if name == "nnU-Net's" else AugmentConfig.only(**dict.fromkeys(PROBABILITIES[1:], 0.7))
    seen = set.union(*(launched(config, seed=seed, runs=True) for seed in range(2)))
    assert len(seen) > 3
    assert seen <= forms(config)


def test_nothing_that_cannot_be_drawn_is_compiled():
    names = {form[0] for form in forms(AugmentConfig.only(), swaps_classes=False)}
    assert names == {"crop"}
    names = {form[0] for form in forms(AugmentConfig.only(gamma_probability=0.1), swaps_classes=False)}
    assert names == {"crop", "measure", "bend", "restore"}
    assert forms(AugmentConfig(enabled=False), swaps_classes=False) == forms(AugmentConfig.only(), swaps_classes=False)


def test_patches_of_usual_shapes_share_all_kernels():
    config = AugmentConfig(elastic_probability=0.1, bias_probability=0.1)
    shapes = [(32, 48, 32), (40, 56, 40), (128, 128, 128), (160, 160, 80), (320, 256, 20)]
    of_each = [forms(config, patch_shapes=[shape]) for shape in shapes]
    assert all(of_one == of_each[0] for of_one in of_each)
    assert forms(config, patch_shapes=[(33, 33, 33)]) != of_each[0]


@compiled_only
def test_triton_specializes_no_kernel_for_a_size():
    for module in (triton_crop, triton_warp, triton_intensity, triton_tone):
        for kernel in vars(module).values():
            if isinstance(kernel, triton.JITFunction) and not kernel.__name__.startswith("_"):
                for parameter in kernel.params:
                    assert parameter.do_not_specialize == (parameter.name in triton_frame.SIZES), kernel.__name__


def test_each_kernel_is_compiled_once_and_a_failure_waits_for_its_launch(monkeypatch):
    compiled = []

    def compile_one(launch, device):
        compiled.append(launch.form)
        if launch.kernel.__name__ == "bend":
            raise RuntimeError("ptxas")
        return 0.5

    def compile_ahead(**kinds):
        find = functools.partial(possible_launches, config, **(KINDS | kinds))
        return compiling.compile_all(find, torch.device("cuda", 0)).result(WAIT_S)

    monkeypatch.setattr(compiling, "_begun", set())
    monkeypatch.setattr(compiling, "compile_one", compile_one)
    config = AugmentConfig()
    seconds = compile_ahead()
    assert set(compiled) == forms(config)
    assert len(compiled) == len(set(compiled))
    assert len(seconds) == len(compiled) - 1
    before = len(compiled)
    assert compile_ahead() == {}
    assert len(compiled) == before
    compile_ahead(dtypes=["uint8"])
    assert {form[0] for form in compiled[before:]} == {"gather", "crop"}


@compiled_only
def test_a_launch_waits_for_its_own_kernel_only(monkeypatch):
    is_compiling, may_end, ended = threading.Event(), threading.Event(), []

    def run(kernel, *arguments, grid, warmup, **constants):
        if kernel is triton_crop.crop:
            is_compiling.set()
            assert may_end.wait(WAIT_S)
        ended.append(kernel.__name__)

    monkeypatch.setattr(triton.JITFunction, "run", run)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(kernels.launch, triton_crop.crop, (1,))
        assert is_compiling.wait(WAIT_S)
        second = pool.submit(kernels.launch, triton_crop.crop, (1,))
        kernels.launch(triton_warp.swap_classes, (1,))
        assert ended == ["swap_classes"]
        assert not second.done()
        may_end.set()
        first.result(WAIT_S)
        second.result(WAIT_S)
    assert ended == ["swap_classes", "crop", "crop"]


@compiled_only
@pytest.mark.parametrize("patch", [(9, 8, 12), (9, 7, 11), (32, 48, 32)])
def test_triton_finds_what_was_compiled_ahead_when_a_batch_launches_it(monkeypatch, patch):
    """By its own keys: argument types, which of them are multiples of 16 or 1, constants and options."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import MockTensor, create_function_from_signature

    backend, keys = make_backend(GPUTarget("cuda", 90, 32)), set()

    def run(kernel, *arguments, grid, warmup, **constants):
        binder = create_function_from_signature(kernel.signature, kernel.params, backend)
        _, specialization, options = binder(*arguments, **constants)
        keys.add((kernel.__name__, str(specialization), str(options)))

    monkeypatch.setattr(triton.JITFunction, "run", run)
    config = AugmentConfig.only(**dict.fromkeys(PROBABILITIES[1:], 0.6), flip_probability=(0.5, 0.5, 0.0))
    for launch in possible_launches(config, **(KINDS | {"patch_shapes": [patch]})):
        arguments = [MockTensor.wrap_dtype(argument) for argument in launch.arguments]
        launch.kernel.run(*arguments, grid=(1,), warmup=True, **dict(launch.constants))
    compiled, keys = keys, set()
    for seed in range(4):
        launched(config, seed=seed, patch=patch, resident=seed % 2 == 0, runs=True)
    assert len(keys) > 8
    assert keys <= compiled
