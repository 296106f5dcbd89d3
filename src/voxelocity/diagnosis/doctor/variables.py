"""Environment variables that make training slow, and when they do. A table; `checks/variables.py` reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from voxelocity.diagnosis.doctor.check import Level


@dataclass(frozen=True, kw_only=True)
class Around:
    """The facts that decide whether a variable matters here."""

    num_cores: int
    num_gpus: int


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One variable.

    Attributes:
        name: its name.
        hurts: whether a value hurts on such a machine.
        level: how much it hurts.
        costs: what it costs, in plain words.
        source: where its authors document what it does; "" if we measured it.
        cure: the value to set instead of removing it.
    """

    name: str
    hurts: Callable[[str, Around], bool]
    level: Level
    costs: str
    source: str
    cure: str = ""


def _is_on(value: str, around: Around) -> bool:
    return value.strip().lower() not in ("", "0", "false", "off", "no", "n")


def _is_set(value: str, around: Around) -> bool:
    return bool(value.strip())


def _is_on_with_gpu(value: str, around: Around) -> bool:
    return around.num_gpus > 0 and _is_on(value, around)


def _is_on_with_gpus(value: str, around: Around) -> bool:
    return around.num_gpus > 1 and _is_on(value, around)


def _is_zero_with_gpu(value: str, around: Around) -> bool:
    return around.num_gpus > 0 and value.strip() == "0"


def _wastes_cores(value: str, around: Around) -> bool:
    return value.strip() == "1" and around.num_cores > 1


def _is(*words: str) -> Callable[[str, Around], bool]:
    return lambda value, around: value.strip().lower() in words


_TORCH = "https://docs.pytorch.org/docs/stable/cuda_environment_variables.html"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_CUDA = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars"
_NUMBA = "https://numba.readthedocs.io/en/stable/reference/envvars.html"
_OPENMP = "https://www.openmp.org/spec-html/5.0/openmpch6.html"
_PYTHON = "https://docs.python.org/3/using/cmdline.html#environment-variables"
_NOT_COMPILED = "torch.compile silently does nothing"
_ONE_CORE = "one core computes where several could: a step on the CPU takes several times as long"
_SPINS = (
    "waiting threads keep their cores busy: with any other busy process a step took 5 to 40 times longer "
    "(measured, 2 cores)"
)

VARIABLES = (
    Variable(
        name="CUDA_LAUNCH_BLOCKING",
        hurts=_is_on_with_gpu,
        level="warning",
        costs="the program waits for each kernel, so nothing overlaps; it is for debugging",
        source=_TORCH,
    ),
    Variable(
        name="PYTORCH_NO_CUDA_MEMORY_CACHING",
        hurts=lambda value, around: around.num_gpus > 0 and _is_set(value, around),
        level="warning",
        costs="torch gets each tensor from the driver and returns it, waiting for the GPU each time; for debugging",
        source=_TORCH,
    ),
    Variable(
        name="NVIDIA_TF32_OVERRIDE",
        hurts=_is_zero_with_gpu,
        level="note",
        costs="float32 convolutions do not use the tensor cores",
        source=_TORCH,
    ),
    Variable(
        name="CUDA_CACHE_DISABLE",
        hurts=_is_on_with_gpu,
        level="note",
        costs="the driver compiles kernels for this GPU again at each start",
        source=_CUDA,
    ),
    Variable(
        name="NCCL_P2P_DISABLE",
        hurts=_is_on_with_gpus,
        level="warning",
        costs="GPUs exchange gradients through main memory, not over NVLink or PCIe",
        source=_NCCL,
    ),
    Variable(
        name="NCCL_SHM_DISABLE",
        hurts=_is_on_with_gpus,
        level="warning",
        costs="GPUs that cannot reach one another exchange gradients over the network, even within one machine",
        source=_NCCL,
    ),
    Variable(
        name="NCCL_IB_DISABLE",
        hurts=_is_on_with_gpus,
        level="note",
        costs="nodes exchange gradients over TCP, not over InfiniBand or RoCE",
        source=_NCCL,
    ),
    Variable(
        name="TORCH_DISTRIBUTED_DEBUG",
        hurts=_is("detail"),
        level="warning",
        costs="each collective operation is checked against the other ranks first",
        source="https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug",
    ),
    Variable(
        name="TORCH_COMPILE_DISABLE",
        hurts=_is("1"),
        level="note",
        costs=_NOT_COMPILED,
        source="https://github.com/pytorch/pytorch/blob/main/torch/_dynamo/config.py",
    ),
    Variable(
        name="TORCHDYNAMO_DISABLE",
        hurts=_is("1"),
        level="note",
        costs=_NOT_COMPILED,
        source="https://github.com/pytorch/pytorch/blob/main/torch/_dynamo/eval_frame.py",
    ),
    Variable(
        name="TRITON_INTERPRET",
        hurts=_is_on,
        level="warning",
        costs="kernels run in an interpreter on the CPU, one element after another; it is for debugging",
        source="https://triton-lang.org/main/programming-guide/chapter-3/debugging.html",
    ),
    Variable(
        name="NUMBA_DISABLE_JIT",
        hurts=_is_on,
        level="warning",
        costs="compiled loops (resampling, augmentation, crops) run as plain Python, voxel by voxel",
        source=_NUMBA,
    ),
    Variable(name="NUMBA_NUM_THREADS", hurts=_wastes_cores, level="note", costs=_ONE_CORE, source=_NUMBA),
    Variable(name="OMP_NUM_THREADS", hurts=_wastes_cores, level="warning", costs=_ONE_CORE, source=_OPENMP),
    Variable(
        name="MKL_NUM_THREADS",
        hurts=_wastes_cores,
        level="warning",
        costs=_ONE_CORE,
        source="https://docs.pytorch.org/docs/stable/threading_environment_variables.html",
    ),
    Variable(name="OMP_WAIT_POLICY", hurts=_is("active"), level="warning", costs=_SPINS, source="", cure="PASSIVE"),
    Variable(name="KMP_BLOCKTIME", hurts=_is("infinite"), level="warning", costs=_SPINS, source="", cure="1"),
    Variable(
        name="PYTHONDEVMODE", hurts=_is_set, level="note", costs="Python runs extra checks everywhere", source=_PYTHON
    ),
    Variable(
        name="PYTHONTRACEMALLOC",
        hurts=_is_on,
        level="warning",
        costs="Python records the place of every allocation, which takes time and memory in every loader",
        source=_PYTHON,
    ),
)
