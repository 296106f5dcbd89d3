"""Launches of kernels: what tells them apart, and that none is compiled while a CUDA graph is recorded; no GPU."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from voxelocity.core import compiling, kernels
from voxelocity.core.kernels import NotCompiledError, describe_launch, distinct, launch, record_launches

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
compiled_only = pytest.mark.skipif(IS_INTERPRETED, reason="needs kernels that Triton would compile")
WAIT_S = 20.0


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["step"])
def scale(values, size, step, factor, other, SIDE: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    tl.store(values + at * step, tl.load(values + at * step) * factor + other, mask=at < size)


def form(*, size=3, step=5, factor=0.5, other=7, dtype=torch.float32, side=8):
    return describe_launch(scale, (dtype, size, step, factor, other), {"SIDE": side}).form


def test_launches_differ_where_triton_compiles_again():
    assert form() == form(size=1) == form(size=16) == form(step=32) == form(factor=1.0) == form(other=9)
    different = [
        form(), form(size=2**31), form(step=1), form(step=2**31), form(other=1), form(other=16), form(side=16),
        form(dtype=torch.float16),
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    launches = [describe_launch(scale, (torch.float32, n, 5, 0.5, 7), {"SIDE": 8}) for n in (1, 2, 2**31)]
    assert [found.arguments[1] for found in distinct(launches)] == [1, 2**31]


def test_what_is_only_recorded_is_not_launched():
    values = torch.empty(8, device="meta")
    assert not kernels.only_records()
    with record_launches(runs=False) as launches:
        assert kernels.only_records()
        launch(scale, (1,), values, 8, 1, 2.0, 7, SIDE=8)
    assert not kernels.only_records()
    assert [found.form for found in launches] == [form(step=1)]


@compiled_only
def test_a_kernel_that_a_recording_lacks_is_refused_and_others_compile(monkeypatch):
    asked = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda **given: asked.append(given["fn"].name))
    is_capturing = threading.local()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: getattr(is_capturing, "value", False))
    for _ in range(2):
        kernels.refuse_compiling_in_captures()

    def run(kernel, *arguments, grid, warmup, **constants):
        # As Triton does when it has no machine code for the arguments.
        name = type("Named", (), {"name": kernel.__name__})
        triton.knobs.runtime.jit_cache_hook(key="", repr="", fn=name, compile={}, is_manual_warmup=warmup)

    monkeypatch.setattr(triton.JITFunction, "run", run)
    launch(scale, (1,), torch.zeros(8), 8, 1, 2.0, 7, SIDE=8)
    assert asked == ["scale"]
    is_capturing.value = True
    with pytest.raises(NotCompiledError, match="scale was not compiled"):
        launch(scale, (1,), torch.zeros(8), 8, 1, 2.0, 7, SIDE=8)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(launch, scale, (1,), torch.zeros(8), 8, 1, 2.0, 7, SIDE=8).result(WAIT_S)
    assert asked == ["scale", "scale"]


def test_however_many_calls_compile_few_kernels_are_at_work(monkeypatch):
    at_work, most, lock = [0], [0], threading.Lock()
    may_continue = threading.Event()

    def compile_one(launch, device):
        with lock:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
            if at_work[0] == compiling.NUM_THREADS:
                may_continue.set()
        assert may_continue.wait(WAIT_S)
        with lock:
            at_work[0] -= 1
        return 0.5

    monkeypatch.setattr(compiling, "_begun", set())
    monkeypatch.setattr(compiling, "compile_one", compile_one)
    found = [describe_launch(scale, (torch.float32, 1, 5, 0.5, 7), {"SIDE": 2**n}) for n in range(12)]
    device = torch.device("cuda", 0)
    begun = [compiling.compile_all(lambda part=found[n::3]: part, device) for n in range(3)]
    assert sum(len(future.result(WAIT_S)) for future in begun) == 12
    assert most[0] == compiling.NUM_THREADS
    assert compiling.compile_all(lambda: found, device).result(WAIT_S) == {}
