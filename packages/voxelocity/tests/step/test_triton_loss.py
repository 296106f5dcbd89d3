"""The kernels of the loss without a GPU: run by Triton's interpreter, and compiled ahead to machine code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

import kernel_forms
import triton_kernels
from shared.examples import is_thorough
from voxelocity.step import LossConfig, build_loss
from voxelocity.step.fused_loss import LossForm, can_fuse, tiling

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "least"),
    [
        ("(float32 and not 105) or every_option or ranks or ignored or silence or scaler or left_to or ahead", 30),
        pytest.param("test", 70, marks=pytest.mark.nightly),
    ],
    ids=["some", "all"],
)
def test_kernels_agree_with_torch_in_tritons_interpreter(which, least):
    # A process of its own: Triton decides when a kernel is defined whether it will be interpreted.
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-k", f"({which}) and not a_device", "-p", "no:cacheprovider",
            HERE / "test_fused_loss.py",
        ],
        env={**os.environ, "TRITON_INTERPRET": "1", "REQUIRE_GPU": "1"}
        | ({"VOXELOCITY_THOROUGH": "1"} if which == "test" else {}),
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= least


@pytest.mark.slow
@pytest.mark.parametrize("architecture", triton_kernels.ARCHITECTURES)
def test_kernels_compile_without_spills(architecture):
    variants = [some for some in triton_kernels.loss_variants() if some.image != "fp32"]
    chosen = [some for some in variants if some.constants["K"] in (3, 14, 105)]
    if architecture != 90 and not is_thorough:
        chosen = list({variant.kernel: variant for variant in chosen}.values())
    rows = [triton_kernels.compiled(variant, architecture) for variant in chosen]
    assert {row["kernel"] for row in rows} == {"loss_sums", "loss_of_sums", "add_sums", "loss_gradient"}
    for row in rows:
        assert row["spill_store_bytes"] == row["spill_load_bytes"] == 0, row
        assert 0 < row["registers"] <= 255, row


def test_planes_of_few_classes_are_read_and_written_16_bytes_at_once():
    form = LossForm(num_classes=3, is_channels_last=False, config=LossConfig())
    for name in ("loss_sums", "loss_gradient"):
        row = triton_kernels.compiled(kernel_forms.loss_variant(name, form, "bf16"), 90)
        assert max(triton_kernels.bytes_of(row, "load")) == 16
        # Nothing is exchanged between threads until the sums are written.
        assert row["shared_bytes"] <= 64


def test_a_thread_adds_up_the_voxels_that_it_holds():
    for num_classes in (1, 2, 3, 4, 6, 8, 14, 16, 33, 105, 256):
        for is_channels_last in (False, True):
            for is_gradient in (False, True):
                tiles = tiling(num_classes, is_channels_last=is_channels_last, is_gradient=is_gradient)
                assert tiles.block & (tiles.block - 1) == 0
                assert tiles.block % tiles.fold(num_classes, is_channels_last=is_channels_last) == 0


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels run here")
def test_a_cpu_computes_as_before():
    logits, label = torch.randn(1, 3, 4, 4, 4, requires_grad=True), torch.zeros(1, 4, 4, 4, dtype=torch.uint8)
    assert not can_fuse(logits, label, LossConfig(), 0)
    assert "_LossBackward" not in str(build_loss(LossConfig())(logits, label).grad_fn)


def test_shapes_alone_are_left_to_torch():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        logits, label = torch.empty(1, 3, 4, 4, 4), torch.empty(1, 4, 4, 4, dtype=torch.uint8)
        assert not can_fuse(logits, label, LossConfig(), 0)
        assert build_loss(LossConfig())(logits, label).shape == ()
