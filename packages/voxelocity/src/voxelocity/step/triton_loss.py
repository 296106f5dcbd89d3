"""The losses of `loss` on a CUDA device: one pass over the logits for the sums of their terms, one for the gradient.

No program adds to memory that another one writes: each leaves its sums in rows of its own, and one program adds the
rows in a fixed order, so results are reproducible. Kernels share these arguments:

- logits: (b, K, v) if ORDER is PLANES, else (b, v, K), in C order; float32, float16 or bfloat16, computed in float32.
  With BY_LANE, adjacent threads read adjacent classes; with BY_THREAD, a thread reads all classes of a voxel.
- label: (b, v) uint8.
- regions: (256,) int32; bit c of row y says whether channel c contains label y. Read if REGIONS: each channel then has
  a sigmoid of its own instead of the softmax over channels.
- units: v / ALIGN; a product with a compile-time factor shows the compiler which addresses are aligned.
- step: 1, between classes of a voxel where ORDER is BY_THREAD.
- ignored: label of the voxels that count nowhere, if HAS_IGNORED.
- gamma: exponent of the focal loss.
- TERM: what the mean over voxels is of: NO_TERM, ENTROPY or FOCAL.
- KP: K, rounded up to a power of two from 2 on; BLOCK: voxels in work at once.
- FOLD: voxels that a thread adds up before it keeps a sum per class.

Voxels of a label that is not a class make the loss infinite, and have a gradient of NaN, unless the loss is Dice alone.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from voxelocity.step.triton_math import LOG2_E, _exp2, _log, _power, _reciprocal

NO_TERM: Final = 0
ENTROPY: Final = 1
FOCAL: Final = 2
PLANES: Final = 0
BY_LANE: Final = 1
BY_THREAD: Final = 2
_NO_TERM, _FOCAL = tl.constexpr(NO_TERM), tl.constexpr(FOCAL)
_PLANES, _BY_THREAD = tl.constexpr(PLANES), tl.constexpr(BY_THREAD)
_NAN = tl.constexpr(float("nan"))
_LOWEST = tl.constexpr(float("-inf"))


@triton.jit(do_not_specialize=["units", "step", "ignored"])
def loss_sums(
    logits,
    label,
    regions,
    partials,
    units,
    step,
    ignored,
    gamma,
    K: tl.constexpr,
    KP: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
    FOLD: tl.constexpr,
    ORDER: tl.constexpr,
    REGIONS: tl.constexpr,
    TERM: tl.constexpr,
    HAS_IGNORED: tl.constexpr,
):
    """The sums of a part of a patch. Programs are (chunks, b).

    partials: (3, b, chunks, KP) float32 of each class: probability where it is true, probability, and voxels of it;
    then (b, chunks, 2) of the term and of the voxels that count.
    """
    chunk, chunks = tl.program_id(0), tl.num_programs(0)
    b, batch = tl.program_id(1), tl.num_programs(1)
    k = tl.arange(0, KP)
    logits, label, num_voxels = _of_patch(logits, label, b, units, K, ALIGN)
    agreed = tl.zeros((KP, BLOCK // FOLD), tl.float32)
    predicted = tl.zeros((KP, BLOCK // FOLD), tl.float32)
    true = tl.zeros((KP, BLOCK // FOLD), tl.float32)
    term = tl.zeros((BLOCK,), tl.float32)
    known = tl.zeros((BLOCK,), tl.float32)
    for tile in range(chunk, tl.cdiv(num_voxels, BLOCK), chunks):
        z, is_class, is_known, _ = _read(
            logits, label, regions, tile, num_voxels, step, ignored, K, KP, BLOCK, ORDER, REGIONS, HAS_IGNORED
        )
        # Always so, except for NaN, which the probabilities keep. It ties the classes to the threads that hold the
        # logits; otherwise the compiler counts them in other threads, and exchanges them.
        target = tl.where(is_class & (z == z), 1.0, 0.0)
        p, entropy = _predicted(z, is_class, is_known, K, KP, REGIONS, TERM)
        agreed += _folded(p * target, KP, BLOCK, FOLD, ORDER)
        predicted += _folded(p, KP, BLOCK, FOLD, ORDER)
        true += _folded(target, KP, BLOCK, FOLD, ORDER)
        if TERM == _FOCAL:
            entropy = _power(1.0 - _exp2((0.0 - entropy) * LOG2_E), gamma) * entropy
        if TERM != _NO_TERM:
            if REGIONS:
                entropy = tl.sum(tl.where((k < K)[:, None] & is_known[None, :], entropy, 0.0), 0)
            term += entropy
        if HAS_IGNORED:
            known += is_known.to(tl.float32)
    row = b * chunks + chunk
    rows = batch * chunks
    tl.store(partials + row * KP + k, tl.sum(agreed, 1))
    tl.store(partials + (rows + row) * KP + k, tl.sum(predicted, 1))
    tl.store(partials + (2 * rows + row) * KP + k, tl.sum(true, 1))
    tl.store(partials + 3 * rows * KP + 2 * row, tl.sum(term, 0))
    tl.store(partials + 3 * rows * KP + 2 * row + 1, tl.sum(known, 0))


@triton.jit(do_not_specialize=["batch", "chunks", "units"])
def loss_of_sums(
    partials,
    loss,
    factors,
    batch,
    chunks,
    units,
    smooth,
    alpha,
    K: tl.constexpr,
    KP: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    FIRST: tl.constexpr,
    OVER_BATCH: tl.constexpr,
    REGIONS: tl.constexpr,
    TERM: tl.constexpr,
    HAS_IGNORED: tl.constexpr,
):
    """The loss () float32, and `factors` of its gradient for `loss_gradient`. One program.

    smooth, alpha: as in `LossConfig`; FIRST: class from which on the overlap counts; OVER_BATCH: whether it is that of
    the whole batch; ROWS: rows of `partials` in work at once.
    """
    k = tl.arange(0, KP)
    counts = (k >= FIRST) & (k < K)
    rows = batch * chunks
    groups, size = batch, chunks
    if OVER_BATCH:
        groups, size = 1, rows
    share = 1.0 / (groups.to(tl.float32) if not OVER_BATCH else 1.0) / (K - FIRST)
    overlap = 0.0
    for group in range(groups):
        agreed, predicted, true = _added(partials, rows, group * size, size, KP, ROWS)
        below = 2.0 * (alpha * predicted + (1.0 - alpha) * true) + smooth
        above = 2.0 * agreed + smooth
        overlap += tl.sum(tl.where(counts, above / below, 0.0), 0) * share
        at = factors + 1 + group * 2 * KP + k
        tl.store(at, tl.where(counts, -2.0 * share / below, 0.0))
        tl.store(at + KP, tl.where(counts, 2.0 * alpha * share * above / (below * below), 0.0))
    term, known = _added_voxels(partials + 3 * rows * KP, rows, ROWS * KP)
    if not HAS_IGNORED:
        known = (batch.to(tl.int64) * units * ALIGN).to(tl.float32)
    per_voxel = 1.0 / tl.maximum(known, 1.0)
    if REGIONS:
        per_voxel = per_voxel / K
    if TERM == _NO_TERM:
        per_voxel = per_voxel * 0.0
    tl.store(factors, per_voxel)
    tl.store(loss, 1.0 - overlap + term * per_voxel)


@triton.jit(do_not_specialize=["chunks", "units"])
def add_sums(
    partials,
    sizes,
    terms,
    chunks,
    units,
    alpha,
    K: tl.constexpr,
    KP: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_IGNORED: tl.constexpr,
):
    """Of each patch, `sizes` (2, b, K) as `loss._overlap_sizes`, and `terms` (2, b) of voxels. Programs are (b,)."""
    b, batch = tl.program_id(0), tl.num_programs(0)
    k = tl.arange(0, KP)
    agreed, predicted, true = _added(partials, batch * chunks, b * chunks, chunks, KP, ROWS)
    tl.store(sizes + b * K + k, agreed, mask=k < K)
    tl.store(sizes + (batch + b) * K + k, 2.0 * (alpha * predicted + (1.0 - alpha) * true), mask=k < K)
    term, known = _added_voxels(partials + 3 * batch * chunks * KP + 2 * b * chunks, chunks, ROWS * KP)
    if not HAS_IGNORED:
        known = (units * ALIGN).to(tl.float32)
    tl.store(terms + b, term)
    tl.store(terms + batch + b, known)


@triton.jit(do_not_specialize=["units", "group_step", "step", "ignored"])
def loss_gradient(
    logits,
    label,
    regions,
    factors,
    outer,
    gradient,
    units,
    group_step,
    step,
    ignored,
    gamma,
    K: tl.constexpr,
    KP: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
    ORDER: tl.constexpr,
    REGIONS: tl.constexpr,
    TERM: tl.constexpr,
    HAS_IGNORED: tl.constexpr,
):
    """The gradient of the logits, in their order and dtype. Programs are (chunks, b).

    factors: of the term of a voxel (1), then of each group of patches (2, KP): of the probability where the class is
    true, and of the probability. float32. group_step: 0 if all patches share a group, 1 if each has its own.
    outer: () float32, the gradient of the loss.
    """
    b = tl.program_id(1)
    k = tl.arange(0, KP)
    logits, label, num_voxels = _of_patch(logits, label, b, units, K, ALIGN)
    gradient, _, _ = _of_patch(gradient, label, b, units, K, ALIGN)
    scale = tl.load(outer)
    weight = tl.load(factors) * scale
    factors += 1 + b * group_step * 2 * KP
    of_true = (tl.load(factors + k) * scale)[:, None]
    of_all = (tl.load(factors + KP + k) * scale)[:, None]
    for tile in range(tl.program_id(0), tl.cdiv(num_voxels, BLOCK), tl.num_programs(0)):
        z, is_class, is_known, is_valid = _read(
            logits, label, regions, tile, num_voxels, step, ignored, K, KP, BLOCK, ORDER, REGIONS, HAS_IGNORED
        )
        # Only the focal loss of a voxel enters its own gradient.
        p, entropy = _predicted(z, is_class, is_known, K, KP, REGIONS, TERM if TERM == _FOCAL else _NO_TERM)
        target = tl.where(is_class, 1.0, 0.0)
        pull = target * of_true + of_all
        factor = tl.where(is_known, weight, 0.0)
        if TERM == _FOCAL:
            right = _exp2((0.0 - entropy) * LOG2_E)
            wrong = 1.0 - right
            slope = _power(wrong, gamma) + gamma * _power(wrong, gamma - 1.0) * right * entropy
            factor = tl.where(is_known, weight * slope, 0.0) if not REGIONS else factor[None, :] * slope
        if REGIONS:
            made = p * (1.0 - p) * pull + factor * (p - tl.where(is_known[None, :], target, 0.0))
        else:
            if TERM != _NO_TERM:
                factor = tl.where(is_valid, factor, _NAN)
            mean = tl.sum(p * pull, 0)
            made = p * (pull + (factor - mean)[None, :]) - target * factor[None, :]
        at, mask = _at(gradient, tile, num_voxels, step, K, KP, BLOCK, ORDER)
        tl.store(at, made.to(gradient.dtype.element_ty), mask=mask)


@triton.jit
def _of_patch(logits, label, b, units, K: tl.constexpr, ALIGN: tl.constexpr):
    num_voxels = units * ALIGN
    first = b.to(tl.int64) * num_voxels
    return logits + first * K, label + first, num_voxels


@triton.jit
def _at(logits, tile, num_voxels, step, K: tl.constexpr, KP: tl.constexpr, BLOCK: tl.constexpr, ORDER: tl.constexpr):
    """Addresses (KP, BLOCK) of the logits of a tile, and which of them exist."""
    k, v = tl.arange(0, KP)[:, None], tl.arange(0, BLOCK)[None, :]
    mask = tile * BLOCK + v < num_voxels
    if KP != K:
        mask = mask & (k < K)
    if ORDER == _BY_THREAD:
        # The compiler gives adjacent threads what it believes to be adjacent. It does not know the step between
        # classes, and is told that voxels are; it still reads them one by one, since it cannot know them aligned.
        at = tl.max_contiguous(v * K + k * step, (1, 2))
        return logits + tl.cast(tile, tl.int64) * (BLOCK * K) + at, mask
    if ORDER != _PLANES:
        return logits + tl.cast(tile, tl.int64) * (BLOCK * K) + (v * K + k), mask
    return logits + k.to(tl.int64) * num_voxels + (tile * BLOCK + v), mask


@triton.jit
def _read(
    logits,
    label,
    regions,
    tile,
    num_voxels,
    step,
    ignored,
    K: tl.constexpr,
    KP: tl.constexpr,
    BLOCK: tl.constexpr,
    ORDER: tl.constexpr,
    REGIONS: tl.constexpr,
    HAS_IGNORED: tl.constexpr,
):
    """Logits and whether each class is true, (KP, BLOCK); whether each voxel counts, and has a class, (BLOCK,)."""
    k = tl.arange(0, KP)
    v = tile * BLOCK + tl.arange(0, BLOCK)
    exists = v < num_voxels
    at, mask = _at(logits, tile, num_voxels, step, K, KP, BLOCK, ORDER)
    z = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(label + v, mask=exists, other=0).to(tl.int32)
    is_known = exists
    if HAS_IGNORED:
        is_known = exists & (y != ignored)
    if REGIONS:
        bits = tl.load(regions + y)
        is_class = ((bits[None, :] >> k[:, None]) & 1) != 0
        is_class = is_class & exists[None, :]
        is_valid = exists
    else:
        is_valid = (y < K) | (is_known == 0)
        # No class is true outside of the patch.
        y = tl.where(exists, y, -1)
        is_class = y[None, :] == k[:, None]
    return z, is_class, is_known, is_valid


@triton.jit
def _predicted(z, is_class, is_known, K: tl.constexpr, KP: tl.constexpr, REGIONS: tl.constexpr, TERM: tl.constexpr):
    """Probabilities (KP, BLOCK), 0 where a voxel does not count, and minus the log of the one that is right.

    The latter is (BLOCK,), or (KP, BLOCK) of regions.
    """
    if REGIONS:
        e = _exp2((0.0 - tl.abs(z)) * LOG2_E)
        p = tl.where(z >= 0.0, 1.0, e) * _reciprocal(1.0 + e)
        entropy = z
        if TERM != _NO_TERM:
            entropy = tl.maximum(z, 0.0) - tl.where(is_class, z, 0.0) + _log(1.0 + e)
        p = tl.where(is_known[None, :], p, 0.0)
    else:
        if KP != K:
            z = tl.where((tl.arange(0, KP) < K)[:, None], z, _LOWEST)
        top = tl.max(z, 0)
        e = _exp2(z * LOG2_E - (top * LOG2_E)[None, :])
        total = tl.sum(e, 0)
        # A product, so that a NaN among the logits stays one.
        p = e * tl.where(is_known, _reciprocal(total), 0.0)[None, :]
        entropy = total
        if TERM != _NO_TERM:
            # Infinite where no class is true.
            entropy = _log(total) + (top - tl.max(tl.where(is_class, z, _LOWEST), 0))
            entropy = tl.where(is_known, entropy, 0.0)
    return p, entropy


@triton.jit
def _folded(x, KP: tl.constexpr, BLOCK: tl.constexpr, FOLD: tl.constexpr, ORDER: tl.constexpr):
    """(KP, BLOCK) to (KP, BLOCK / FOLD): the sum over voxels that the same thread holds."""
    if FOLD == 1:
        return x
    if ORDER != _PLANES:
        return tl.sum(tl.reshape(x, (KP, FOLD, BLOCK // FOLD)), 1)
    return tl.sum(tl.reshape(x, (KP, BLOCK // FOLD, FOLD)), 2)


@triton.jit
def _added(partials, rows, first, size, KP: tl.constexpr, ROWS: tl.constexpr):
    """Of each class, the sums over some rows."""
    k = tl.arange(0, KP)[None, :]
    agreed = tl.zeros((ROWS, KP), tl.float32)
    predicted = tl.zeros((ROWS, KP), tl.float32)
    true = tl.zeros((ROWS, KP), tl.float32)
    for start in range(0, size, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        mask = row < size
        at = partials + (first + row) * KP + k
        agreed += tl.load(at, mask=mask, other=0.0)
        predicted += tl.load(at + rows * KP, mask=mask, other=0.0)
        true += tl.load(at + 2 * rows * KP, mask=mask, other=0.0)
    return tl.sum(agreed, 0), tl.sum(predicted, 0), tl.sum(true, 0)


@triton.jit
def _added_voxels(partials, size, BLOCK: tl.constexpr):
    """The sums over rows of the term and of the voxels that count."""
    term = tl.zeros((BLOCK,), tl.float32)
    known = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        row = start + tl.arange(0, BLOCK)
        term += tl.load(partials + 2 * row, mask=row < size, other=0.0)
        known += tl.load(partials + 2 * row + 1, mask=row < size, other=0.0)
    return tl.sum(term, 0), tl.sum(known, 0)
