"""The Triton kernels of the augmentation without a GPU, in Triton's interpreter."""

import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import triton

import triton_kernels
from shared.limits import HANGS_S
from voxelocity.core.batch import Draw
from voxelocity.core.contracts import ResidentBox
from voxelocity.core.region import Region
from voxelocity.core.volume import Scaling
from voxelocity.data.augment import (
    AugmentConfig,
    AugmentParams,
    ResidentSource,
    Source,
    augment,
    sample,
)

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "least"),
    [
        # Each kernel, each way to read volumes, and each order of images at least once.
        (
            "triton and (uint8 or noise_is or moments or nearest or threads or planes or bfloat16-False or "
            "float16-True) and not bfloat16-True or in_place or interpreter and changes",
            10,
        ),
        pytest.param("triton or interpreter", 30, marks=pytest.mark.nightly),
    ],
    ids=["some", "all"],
)
def test_kernels_agree_with_the_reference_in_tritons_interpreter(which, least):
    # A process of its own: Triton decides when a kernel is defined whether it will be interpreted.
    files = HERE / "test_engines.py", HERE / "test_ahead.py", HERE.parent / "pipeline" / "test_resident.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", which, "-p", "no:cacheprovider", *files],
        env={**os.environ, "TRITON_INTERPRET": "1", "REQUIRE_GPU": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= least


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_eight_threads_that_begin_at_once_compile_each_kernel_once(monkeypatch):
    for kernel in triton_kernels.kernels_of(triton_kernels.FAMILIES["augmentation"]).values():
        kernel.device_caches.clear()
    compiled = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_post_compile_hook", lambda **told: compiled.append((told["fn"].name, told["key"]))
    )
    rng = np.random.default_rng(0)
    image, label = rng.normal(size=(2, 24, 24, 24)).astype(np.float32), rng.integers(0, 3, (24, 24, 24), np.uint8)
    region = Region((0, 0, 0), (24, 24, 24))
    source = Source(image=image, label=label, start=(0, 0, 0), scaling=())
    always = dict.fromkeys(
        [name for name in AugmentConfig.model_fields if name.endswith("_probability") and "turn" not in name], 1.0
    )
    config = AugmentConfig.only(**{**always, "flip_probability": (0.5, 0.5, 0.5)})
    params = sample(
        [Draw(case_id="a", case=0, epoch=0)], seed=0, num_channels=2, patch_shape=(24, 24, 24), config=config
    )
    begin = threading.Barrier(8)

    def fill(_):
        made = torch.empty((1, 2, 24, 24, 24), device="cuda"), torch.empty((1, 24, 24, 24), device="cuda").byte()
        begin.wait(HANGS_S)
        with torch.cuda.stream(torch.cuda.Stream()):
            augment([source], [region], params, *made, engine="triton")
            torch.cuda.current_stream().synchronize()
        return [tensor.cpu() for tensor in made]

    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(fill, range(8))
    assert len(compiled) == len(set(compiled))
    assert {"gather", "elastic_lines", "change_points", "blur_along", "bend"} <= {name for name, _ in compiled}
    for other in others:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, other, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_voxels_beyond_two_to_the_31_are_read_and_written():
    """In the memory of resident cases, and in a batch of 8.6 GB where the device has room for it."""
    side, far, gap = 128, 2**31, 64
    patch = torch.arange(side**3, device="cuda").remainder(251).to(torch.uint8)
    memory = torch.zeros(far + 2 * side**3 + gap, dtype=torch.uint8, device="cuda")
    memory[gap : gap + side**3], memory[far + gap :][: side**3] = patch, 255 - patch
    memory[far + gap + side**3 :] = patch % 3
    region, steps = Region((0, 0, 0), (side,) * 3), (side**2, side, 1)
    many = far // side**3 + 1
    cases = [(2, far)] + ([(many, 0)] if torch.cuda.mem_get_info()[0] > 12e9 else [])
    for num_channels, channel_step in cases:
        box = ResidentBox(
            memory=memory,
            dtype="uint8",
            shape=region.shape,
            image_offset=gap,
            image_steps=(channel_step, *steps),
            label_offset=far + gap + side**3,
            label_steps=steps,
        )
        image = torch.empty((1, num_channels, *region.shape), device="cuda")
        label = torch.empty((1, *region.shape), dtype=torch.uint8, device="cuda")
        source = ResidentSource(box=box, start=(0, 0, 0), scaling=(Scaling(),) * num_channels)
        params = AugmentParams.identity(1, num_channels)
        augment([source], [region], params, image, label, engine="triton")
        last = patch if channel_step == 0 else 255 - patch
        assert torch.equal(image[0, 0].flatten(), patch.float())
        assert torch.equal(image[0, -1].flatten(), last.float())
        assert torch.equal(label.flatten(), patch % 3)
