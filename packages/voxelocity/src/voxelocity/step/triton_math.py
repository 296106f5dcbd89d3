"""Functions of float32 in one or two instructions of a CUDA device, as exact as a loss needs; called by kernels."""

from __future__ import annotations

import os

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
_LOG_2 = tl.constexpr(0.6931471805599453)
# The interpreter knows no assembler.
_IS_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def _exp2(x):
    """2 ** x to 2 ulp in one instruction, 0 below 2 ** -126. Triton's own takes three more for what lies below."""
    if _IS_INTERPRETED:
        return tl.exp2(x)
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _log(x):
    """The logarithm to 2e-7, near 1 too, in two instructions instead of about fifteen."""
    if _IS_INTERPRETED:
        return tl.log(x)
    log2 = tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return log2 * _LOG_2


@triton.jit
def _reciprocal(x):
    """1 / x to 1 ulp in one instruction instead of eight."""
    if _IS_INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _power(x, exponent):
    """The power of x from 0 on; 0 ** 0 is 0, which is multiplied by 0 wherever it occurs."""
    return tl.where(x > 0.0, _exp2(exponent * (_log(tl.maximum(x, 1e-30)) * LOG2_E)), 0.0)
