"""The Triton kernels without a GPU: run by Triton's interpreter, and compiled ahead to machine code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from triton.runtime.jit import KernelInterface

from voxelocity.data.augment import triton_intensity, triton_tone, triton_warp

HERE = Path(__file__).parent


@pytest.mark.slow
def test_kernels_agree_with_the_reference_in_tritons_interpreter():
    # A process of its own: Triton decides when a kernel is defined whether it will be interpreted.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "triton", "-p", "no:cacheprovider", HERE / "test_engines.py"],
        env={**os.environ, "TRITON_INTERPRET": "1", "REQUIRE_GPU": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 30


def test_every_kernel_compiles_for_two_generations_without_spills(tmp_path):
    script = HERE.parents[2] / "benchmarks" / "triton_kernels.py"
    done = subprocess.run(
        [sys.executable, script, "--out", tmp_path / "kernels.json"],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    rows = json.loads((tmp_path / "kernels.json").read_text())["kernels"]
    defined = {name for module in (triton_warp, triton_intensity, triton_tone) for name in launched(module)}
    assert {(row["kernel"], row["architecture"]) for row in rows} == {
        (name, architecture) for name in defined for architecture in ("sm_80", "sm_90")
    }
    for row in rows:
        assert row["spill_store_bytes"] == row["spill_load_bytes"] == 0, row
        assert 0 < row["registers"] <= 255, row
        assert row["machine_code_bytes"] > 0, row


def launched(module):
    """Names of the kernels of a module; functions that kernels call begin with an underscore."""
    return [
        name for name, value in vars(module).items() if isinstance(value, KernelInterface) and not name.startswith("_")
    ]
