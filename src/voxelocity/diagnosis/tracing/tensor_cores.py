"""Which kernels compute on tensor cores, by their names; a trace shows nothing else about it.

The first list comes from Kineto's TensorBoard plug-in (`TC_Allowlist`, after NVIDIA's PyProf, `prof/tc.py`). The second
has what came later: CUTLASS ("tensorop", Hopper's "gmma"), cuBLAS 12.8 ("nvjet"), cuDNN 8 (tiles as "tensor16x8x16"),
attention. Kernels that Triton made of matrix products have no such names: they count as others.
"""

from __future__ import annotations

import re

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
