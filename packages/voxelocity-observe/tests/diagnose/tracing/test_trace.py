"""Figures of a profile, of traces made by hand in Kineto's format, and of a real one."""

import json

import pytest

from shared.cuda_trace import CudaTrace
from voxelocity_observe.diagnose.facts import KernelGroup, SyncFacts
from voxelocity_observe.diagnose.tracing.trace import profile_facts

CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x32_tensor16x8x16_kernel"
RELU = "void at::native::vectorized_elementwise_kernel<4, relu>(int)"


@pytest.fixture
def written(tmp_path):
    def write(trace):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": trace.events, "traceName": "x"}))
        return path

    return write


def two_steps():
    """Of 1000 us each; the device works 500 us in the first and 300 us in the second, which waits 200 us for data."""
    trace = CudaTrace()
    trace.step(0, 0, 1000)
    trace.operator("aten::conv3d", 100, 300, 1, [[2, 1, 96, 96, 96], [32, 1, 3, 3, 3], []])
    trace.operator("aten::cudnn_convolution", 120, 280, 2, [[2, 1, 96, 96, 96], [32, 1, 3, 3, 3], []])
    trace.launch(150, 160, 11)
    trace.kernel(CONVOLUTION, 200, 500, 11, external=2)
    trace.operator("aten::relu", 300, 340, 3)
    trace.launch(310, 315, 12)
    trace.kernel(RELU, 500, 600, 12)
    # On another stream, over the first kernel: the device is busy once.
    trace.launch(400, 430, 13, name="cudaMemcpyAsync")
    trace.copy(450, 550, 13)
    trace.copy(600, 700, 14, name="Memset (Device)")
    trace.step(1, 1000, 2000)
    trace.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 1000, 1200)
    trace.launch(1250, 1260, 15)
    trace.kernel(RELU, 1300, 1600, 15)
    return trace


def test_kernels_are_grouped_with_the_time_of_their_launches(written):
    groups = profile_facts(written(two_steps())).groups
    assert groups == {
        "All kernels": KernelGroup(number=5, cpu_ns=55_000, gpu_ns=900_000),
        "Tensor-core kernels": KernelGroup(number=1, cpu_ns=10_000, gpu_ns=300_000),
        "Memory copies": KernelGroup(number=2, cpu_ns=30_000, gpu_ns=200_000),
        "All other kernels": KernelGroup(number=2, cpu_ns=15_000, gpu_ns=400_000),
    }


def test_the_device_is_busy_once_over_all_streams_and_idle_where_no_data_is_waited_for(written):
    profile = profile_facts(written(two_steps()))
    assert (profile.num_steps, profile.wall_ns) == (2, 2_000_000)
    assert profile.gpu_busy_ns == 500_000 + 300_000
    assert profile.launch_bound_ns == 2_000_000 - 800_000 - 200_000
    assert profile.tensor_core_share == pytest.approx(300 / 700)


def test_the_recorders_own_mark_of_waiting_counts_as_waiting(written):
    trace = two_steps()
    trace.annotation("part: wait", 0, 100)
    assert profile_facts(written(trace)).launch_bound_ns == 900_000


def test_operators_have_their_own_time_and_that_of_their_kernels(written):
    operators = {operator.name: operator for operator in profile_facts(written(two_steps())).operators}
    assert operators["aten::cudnn_convolution"].gpu_ns == 300_000
    assert operators["aten::cudnn_convolution"].cpu_ns == 160_000
    assert operators["aten::conv3d"].cpu_ns == 40_000
    assert operators["aten::conv3d"].shape == "[[2, 1, 96, 96, 96], [32, 1, 3, 3, 3]]"
    # Its kernel names no operator: it is found by where its launch lies.
    assert operators["aten::relu"].gpu_ns == 100_000
    assert next(iter(operators)) == "aten::cudnn_convolution"


def test_waits_are_told_with_the_call_and_the_line(written, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("\n\ntotal += loss.item()\n")
    trace = two_steps()
    # The recorder's mark tells the exact line.
    trace.annotation(f"sync: Tensor.item at {script}:3", 700, 800)
    trace.operator("aten::item", 705, 795, 20)
    trace.operator("aten::_local_scalar_dense", 710, 790, 21)
    trace.launch(715, 720, 30, name="cudaMemcpyAsync")
    trace.launch(720, 780, 31, name="cudaStreamSynchronize")
    # Without it the innermost function of the person's is known, where stacks were recorded.
    trace.function("train.py(5): step", 1600, 1900)
    trace.function("monai/losses/dice.py(120): forward", 1610, 1890)
    trace.operator("aten::index", 1700, 1800, 22)
    trace.operator("aten::nonzero", 1710, 1790, 23)
    trace.launch(1720, 1750, 32, name="cudaStreamSynchronize")
    # A call out of any operator, and those of the profiler after the steps.
    trace.launch(1900, 1910, 33, name="cudaDeviceSynchronize")
    trace.launch(2500, 2900, 34, name="cudaDeviceSynchronize")
    trace.launch(1950, 1955, 35, name="cudaMemcpy")
    syncs = profile_facts(written(trace)).syncs
    given = {"num_steps": 2, "on_device": True, "count": 1}
    assert list(syncs) == [
        SyncFacts(call="Tensor.item", where=f"{script}:3", line="total += loss.item()", seconds=60e-6, **given),
        SyncFacts(call="Tensor.nonzero", where="train.py:5", line="", seconds=30e-6, **given),
        SyncFacts(call="cudaDeviceSynchronize", where="", line="", seconds=10e-6, **given),
        SyncFacts(call="cudaMemcpy", where="", line="", seconds=5e-6, **given),
    ]


def test_a_trace_without_a_device_has_operators_alone(written):
    trace = CudaTrace()
    trace.step(0, 0, 1000)
    trace.operator("aten::conv3d", 100, 900, 1)
    trace.operator("aten::add", 200, 300, 2, backward=True)
    profile = profile_facts(written(trace))
    assert {group: (found.number, found.gpu_ns) for group, found in profile.groups.items()} == {
        "All kernels": (0, 0),
        "Tensor-core kernels": (0, 0),
        "Memory copies": (0, 0),
        "All other kernels": (0, 0),
    }
    assert (profile.gpu_busy_ns, profile.launch_bound_ns, profile.tensor_core_share) == (0, 0, None)
    assert [(operator.name, operator.cpu_ns) for operator in profile.operators] == [
        ("aten::conv3d", 800_000),
        ("aten::add", 100_000),
    ]


def test_without_marks_of_steps_the_whole_trace_is_one(written):
    trace = CudaTrace()
    trace.operator("aten::add", 100, 200, 1)
    trace.operator("aten::add", 400, 600, 2)
    profile = profile_facts(written(trace))
    assert (profile.num_steps, profile.wall_ns) == (1, 500_000)
    assert (profile.operators[0].number, profile.operators[0].cpu_ns) == (2, 300_000)
    nothing = profile_facts(written(CudaTrace()))
    assert (nothing.wall_ns, list(nothing.operators), list(nothing.syncs)) == (0, [], [])
