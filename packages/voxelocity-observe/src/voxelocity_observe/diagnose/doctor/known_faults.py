"""What is known to slow training down or to break it: environment variables, and versions that conflict. Two tables.

Requirements that packages declare themselves (SciPy's numpy, torch's triton) are not repeated here: the probe reads
them from their metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from voxelocity_observe.diagnose.doctor.records import Level


@dataclass(frozen=True)
class Variable:
    """An environment variable.

    Attributes:
        costs: what it costs, in plain words.
        source: where its authors document what it does; "" if we measured it.
        hurts: the values, stripped and in lower case, that hurt on a machine with `min_gpus` and `min_cores`, as a
            regular expression; by default all that switch something on.
        cure: the value to set instead of removing it.
    """

    name: str
    level: Level
    costs: str
    source: str = ""
    hurts: str = r"(?s)(?!(0|false|off|no|n)$).+"
    min_gpus: int = 0
    min_cores: int = 1
    cure: str = ""


@dataclass(frozen=True)
class IncompatibleVersions:
    """Packages that conflict in these versions, all of which must match; "cudnn" is what torch loads, from anywhere."""

    versions: Mapping[str, str]
    level: Level
    costs: str
    cure: str
    source: str


_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TORCH = "https://docs.pytorch.org/docs/stable"
_DYNAMO = "https://github.com/pytorch/pytorch/blob/main/torch/_dynamo"
_PYTHON = "https://docs.python.org/3/using/cmdline.html#environment-variables"
_NOT_COMPILED = "torch.compile silently does nothing"
_SPINS = (
    "waiting threads keep their cores busy: with any other busy process a step took 5 to 40 times longer "
    "(measured, 2 cores)"
)

_with_gpu = partial(Variable, source=f"{_TORCH}/cuda_environment_variables.html", min_gpus=1)
_with_gpus = partial(Variable, source=_NCCL, min_gpus=2)
_on_cores = partial(
    Variable,
    costs="only one core is used: a step on the CPU takes several times as long",
    hurts="1",
    min_cores=2,
)

VARIABLES = (
    _with_gpu(
        "CUDA_LAUNCH_BLOCKING", "warning", "the program waits for each kernel, so nothing overlaps; it is for debugging"
    ),
    _with_gpu(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "warning",
        "torch gets each tensor from the driver and returns it, waiting for the GPU each time; for debugging",
        hurts=".+",
    ),
    _with_gpu("NVIDIA_TF32_OVERRIDE", "note", "float32 convolutions do not use the tensor cores", hurts="0"),
    _with_gpu(
        "CUDA_CACHE_DISABLE",
        "note",
        "the driver compiles kernels for this GPU again at each start",
        source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars",
    ),
    _with_gpus("NCCL_P2P_DISABLE", "warning", "GPUs exchange gradients through main memory, not over NVLink or PCIe"),
    _with_gpus(
        "NCCL_SHM_DISABLE",
        "warning",
        "GPUs that cannot reach one another exchange gradients over the network, even within one machine",
    ),
    _with_gpus("NCCL_IB_DISABLE", "note", "nodes exchange gradients over TCP, not over InfiniBand or RoCE"),
    Variable(
        "TORCH_DISTRIBUTED_DEBUG",
        "warning",
        "each collective operation is checked against the other ranks first",
        f"{_TORCH}/distributed.html#torch-distributed-debug",
        "detail",
    ),
    Variable("TORCH_COMPILE_DISABLE", "note", _NOT_COMPILED, f"{_DYNAMO}/config.py", "1"),
    Variable("TORCHDYNAMO_DISABLE", "note", _NOT_COMPILED, f"{_DYNAMO}/eval_frame.py", "1"),
    Variable(
        "TRITON_INTERPRET",
        "warning",
        "kernels run in an interpreter on the CPU, one element after another; it is for debugging",
        "https://triton-lang.org/main/programming-guide/chapter-3/debugging.html",
    ),
    _on_cores("OMP_NUM_THREADS", "warning", source="https://www.openmp.org/spec-html/5.0/openmpch6.html"),
    _on_cores("MKL_NUM_THREADS", "warning", source=f"{_TORCH}/threading_environment_variables.html"),
    Variable("OMP_WAIT_POLICY", "warning", _SPINS, hurts="active", cure="PASSIVE"),
    Variable("KMP_BLOCKTIME", "warning", _SPINS, hurts="infinite", cure="1"),
    Variable("PYTHONDEVMODE", "note", "Python runs extra checks everywhere", _PYTHON, ".+"),
    Variable(
        "PYTHONTRACEMALLOC",
        "warning",
        "Python records the location of every allocation, which takes time and memory in every loader",
        _PYTHON,
    ),
)

INCOMPATIBLE = (
    IncompatibleVersions(
        {"torch": ">=2.9", "cudnn": "<9.15"},
        "warning",
        "3-D convolutions in half precision bypass cuDNN: slower, with 2 to 17 times the memory of torch 2.8",
        "use a build of torch for CUDA 13, or override torch's pin: pip install 'nvidia-cudnn-cu12>=9.15'",
        "https://github.com/pytorch/pytorch/issues/166643",
    ),
    IncompatibleVersions(
        {"nvidia-cudnn-cu13": "==9.20.0.48"},
        "note",
        "if another cuDNN (9.23 or later) is installed system-wide, the two are mixed, and the first convolution "
        "ends with CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
        "if that happens: pip install 'nvidia-cudnn-cu13>=9.23', or remove the other cuDNN from the loader's path",
        "https://github.com/pytorch/pytorch/issues/188892",
    ),
    IncompatibleVersions(
        {"nibabel": "<5.2", "numpy": ">=2"},
        "problem",
        "NIfTI headers cannot be read: nibabel uses names that numpy 2 does not have",
        "pip install 'nibabel>=5.3'",
        "https://github.com/nipy/nibabel/pull/1250",
    ),
    IncompatibleVersions(
        {"pandas": "<2.2.2", "numpy": ">=2"},
        "warning",
        "`import pandas` fails: numpy.dtype size changed, may indicate binary incompatibility",
        "pip install 'pandas>=2.2.2'",
        "https://pandas.pydata.org/docs/whatsnew/v2.2.2.html",
    ),
    IncompatibleVersions(
        {"tensorboard": "<2.21", "setuptools": ">=82"},
        "warning",
        "TensorBoard does not start: No module named 'pkg_resources', which setuptools 82 no longer has",
        "pip install 'tensorboard>=2.21'",
        "https://github.com/tensorflow/tensorboard/issues/7107",
    ),
)
