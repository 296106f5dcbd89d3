"""Kernels in four groups, as DLProf's summary had them: all, those on tensor cores, copies, and all others.

Which kernels compute on tensor cores shows in their names alone. The first list comes from Kineto's TensorBoard plug-in
(`TC_Allowlist`, after NVIDIA's PyProf, `prof/tc.py`). The second has what came later: CUTLASS ("tensorop", Hopper's
"gmma"), cuBLAS 12.8 ("nvjet"), cuDNN 8 (tiles as "tensor16x8x16"), attention. Kernels that Triton made of matrix
products have no such names: they count as others.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from voxelocity_observe.core.whole_file import write_whole
from voxelocity_observe.diagnose.facts import KernelGroup
from voxelocity_observe.diagnose.tracing.reading import DeviceWork, LaunchCall

_OF_PYPROF = (
    *("h884", "s884", "h1688", "s1688", "hmma", "i8816", "16816", "c1688", "dgrad_1x1_stride_2x2"),
    *("first_layer_wgrad_kernel", "conv1x1", "conv2d_c1_k1", "direct_group", "xmma_implicit_gemm", "xmma_sparse_conv"),
    *("xmma_warp_specialized_implicit_gemm", "xmma_gemm", "xmma_sparse_gemm"),
)
_LATER = ("tensorop", "gmma", "nvjet", "flash_fwd", "flash_bwd", "fmha_cutlass")
_NAMES = re.compile("|".join(map(re.escape, (*_OF_PYPROF, *_LATER))) + r"|tensor\d+x\d+x\d+")
# The same families, computing on ordinary cores.
_ORDINARY = re.compile(r"ffma|simt")


def uses_tensor_cores(kernel: str) -> bool:
    """Whether a kernel of this name computes on tensor cores."""
    return bool(_NAMES.search(kernel)) and not _ORDINARY.search(kernel)


ALL, TENSOR_CORES, COPIES, OTHERS = "All kernels", "Tensor-core kernels", "Memory copies", "All other kernels"


_NAMES_OF_DLPROF = {"# Kernels": "number", "CPU Time (ns)": "cpu_ns", "GPU Time (ns)": "gpu_ns"}


def kernel_groups(device: Sequence[DeviceWork], calls: Mapping[int, LaunchCall]) -> dict[str, KernelGroup]:
    """The groups with their number, CPU and GPU time. The last three sum to the first; fills of memory are copies.

    CPU time is that of the calls that launched the work, found by correlation. If a call launched several, as with a
    CUDA graph, each gets an equal share.
    """
    sharing = Counter(work.correlation for work in device)
    number: Counter[str] = Counter()
    cpu_ns: defaultdict[str, float] = defaultdict(float)
    gpu_ns: Counter[str] = Counter()
    for work in device:
        call = calls.get(work.correlation)
        launching = (call.span[1] - call.span[0]) / sharing[work.correlation] if call is not None else 0
        for group in (ALL, _group(work)):
            number[group] += 1
            cpu_ns[group] += launching
            gpu_ns[group] += work.span[1] - work.span[0]
    return {
        group: KernelGroup(number=number[group], cpu_ns=round(cpu_ns[group]), gpu_ns=gpu_ns[group])
        for group in (ALL, TENSOR_CORES, COPIES, OTHERS)
    }


def write_kernels(groups: Mapping[str, KernelGroup], path: Path | str) -> Path:
    """Writes the groups as JSON: group to number, cpu_ns and gpu_ns, also under DLProf's names. Returns the path.

    Raises:
        OutputError: the file cannot be written.
    """
    content = {}
    for name, group in groups.items():
        figures = dataclasses.asdict(group)
        content[name] = figures | {theirs: figures[ours] for theirs, ours in _NAMES_OF_DLPROF.items()}
    return write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def _group(work: DeviceWork) -> str:
    if work.kind == "copy":
        return COPIES
    return TENSOR_CORES if uses_tensor_cores(work.name) else OTHERS
