"""E5: the loss and its gradient by torch's operations, by torch.compile and by our two passes.

`ms` includes the host, which small shapes wait for; `graph_ms` is the device alone, a CUDA graph replayed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from gpu.experiment import Experiment, Row, Setting, capture, device_ms, profile_kernels
from loss_bytes import CLASSES, fused_bytes, operation_bytes
from voxelocity.step import LossConfig, build_loss
from voxelocity.step.fused import is_fused, set_fused
from voxelocity.step.fused_loss import FusedLoss, LossTiling, _Call, can_fuse, tiling

Pair = tuple[torch.Tensor, torch.Tensor]
_CONFIG = LossConfig()
_LAYOUTS = ("contiguous", "channels_last")
_COMPILED = (3, 14)
_LEFT_FOR_COMPILING_S = 25.0


def run(setting: Setting) -> None:
    begin_s = time.perf_counter()
    cases = [*itertools.product(CLASSES, _LAYOUTS)]
    with _as_found():
        with setting.guard("errors", what="compiling ahead"):
            _compile_ahead(setting)
        setting.report("times", {"what": "first launches of all kernels", "s": time.perf_counter() - begin_s})
        copy_gb_s = _copied(setting)
        for case in cases:
            with setting.guard("errors", what=f"exact {case}"):
                _exact(setting, *case)
        with setting.guard("errors", what="hippocampus"):
            _small(setting)
        for case in cases:
            with setting.guard("errors", what=f"measured {case}"):
                _measured(setting, *case, copy_gb_s)
        for case in cases:
            with setting.guard("errors", what=f"tilings {case}"):
                _tilings(setting, *case)
        for num_classes in _COMPILED:
            if setting.is_tiny or time.perf_counter() - begin_s > setting.limit_s - _LEFT_FOR_COMPILING_S:
                setting.report("losses", {"what": f"{num_classes} classes, torch.compile", "error": "no time left"})
                continue
            with setting.guard("errors", what=f"compiled {num_classes}"):
                _by_compiler(setting, num_classes, copy_gb_s)


@contextmanager
def _as_found() -> Iterator[None]:
    before = is_fused("loss")
    try:
        yield
    finally:
        set_fused("loss", before)


def _draw(
    setting: Setting, num_classes: int, layout: str, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> Pair:
    rng = torch.Generator(setting.device).manual_seed(num_classes)
    logits = torch.randn(shape[0], num_classes, *shape[1:], device=setting.device, generator=rng, dtype=dtype) * 2
    if layout == "channels_last":
        logits = logits.contiguous(memory_format=torch.channels_last_3d)
    label = torch.randint(0, num_classes, shape, device=setting.device, generator=rng, dtype=torch.uint8)
    return logits.requires_grad_(), label


def _large(setting: Setting, num_classes: int, layout: str) -> Pair:
    shape = (1, 8, 8, 8) if setting.is_tiny else (4, 128, 128, 128)
    return _draw(setting, num_classes, layout, shape, torch.bfloat16)


def _copied(setting: Setting) -> float:
    """GB/s of a copy, read and written: what the memory gives."""
    source = torch.zeros(2**10 if setting.is_tiny else 2**29, dtype=torch.bfloat16, device=setting.device)
    target = torch.empty_like(source)
    row = device_ms(lambda: target.copy_(source), setting, repeats=10)
    gb_s: float = 2.0 * source.nbytes / row["ms"] / 1e6
    setting.report("times", {"what": "copy", "bytes": 2 * source.nbytes, "gb_s": gb_s, **row})
    return gb_s


def _exact(setting: Setting, num_classes: int, layout: str) -> None:
    """Both ways against float64 on 2 x 32^3 voxels of float32."""
    shape = (2, 4, 4, 4) if setting.is_tiny else (2, 32, 32, 32)
    logits, label = _draw(setting, num_classes, layout, shape, torch.float32)
    precise = logits.detach().double().requires_grad_()
    probability = precise.softmax(1).flatten(2)
    target = torch.nn.functional.one_hot(label.long(), num_classes).movedim(-1, 1).flatten(2)
    dice = (2 * (probability * target).sum((0, 2)) + _CONFIG.smooth) / (
        (probability + target).sum((0, 2)) + _CONFIG.smooth
    )
    value = 1.0 - dice[1:].mean() + torch.nn.functional.cross_entropy(precise, label.long())
    (gradient,) = torch.autograd.grad(value, precise)
    for way in ("operations", "fused"):
        set_fused("loss", way == "fused")
        loss = build_loss(_CONFIG)(logits, label)
        (found,) = torch.autograd.grad(loss, logits)
        difference = float((loss.detach() - value.detach()).abs())
        setting.report(
            "exactness",
            {
                "what": f"{num_classes} classes, {layout}, {way}",
                "loss_difference": difference,
                "relative_gradient_difference": float((found - gradient).abs().max() / gradient.abs().max()),
            },
        )


def _measured(setting: Setting, num_classes: int, layout: str, copy_gb_s: float) -> None:
    logits, label = _large(setting, num_classes, layout)
    results: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for way in ("operations", "fused"):
        set_fused("loss", way == "fused")
        loss = build_loss(_CONFIG)

        def step(loss: Callable[..., torch.Tensor] = loss) -> tuple[torch.Tensor, torch.Tensor]:
            value = loss(logits, label)
            (gradient,) = torch.autograd.grad(value, logits)
            return value.detach(), gradient

        try:
            results[way] = step()
        except torch.OutOfMemoryError as error:
            setting.report("errors", {"what": f"{num_classes} classes, {layout}, {way}", "error": str(error)[:200]})
            continue
        row = _times(setting, step, repeats=5 if num_classes > 100 and way == "operations" else 20)
        setting.report("losses", _judged(f"{num_classes} classes, {layout}, {way}", row, num_classes, label, copy_gb_s))
    if len(results) == 2:
        (loss_a, gradient_a), (loss_b, gradient_b) = results.values()
        scale = gradient_a.float().abs().max()
        setting.report(
            "exactness",
            {
                "what": f"{num_classes} classes, {layout}, 4 x 128^3 bfloat16, fused against operations",
                "loss_difference": float((loss_a - loss_b).abs()),
                "relative_gradient_difference": float((gradient_a - gradient_b).float().abs().max() / scale),
            },
        )


def _judged(what: str, row: Row, num_classes: int, label: torch.Tensor, copy_gb_s: float) -> Row:
    """A row with the bytes of the least that two passes must move, and how close the time comes to theirs."""
    least = fused_bytes(num_classes) * label.numel()
    floor_ms = least / copy_gb_s / 1e6
    return {
        "what": what,
        **row,
        "least_bytes": least,
        "bytes_by_operations": round(operation_bytes(num_classes) * label.numel()),
        "floor_ms": floor_ms,
        "times_floor": row["graph_ms"] / floor_ms if "graph_ms" in row else row["ms"] / floor_ms,
    }


def _times(setting: Setting, step: Callable[[], object], *, repeats: int = 20) -> Row:
    """Milliseconds with the host, of a replayed graph, and the most memory that a step takes above its inputs."""
    row: Row = {}
    if setting.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        step()
        row["peak_bytes"] = torch.cuda.max_memory_allocated() - held
    row |= device_ms(step, setting, repeats=repeats, warmup=2)
    if setting.is_cuda:
        try:
            row["graph_ms"] = device_ms(capture(step).replay, setting, repeats=repeats, warmup=2)["ms"]
        except (RuntimeError, torch.OutOfMemoryError) as error:
            row["graph_error"] = str(error)[:200]
    return row


def _small(setting: Setting) -> None:
    """A batch of the hippocampus plan, whose step is bound by launches."""
    for layout, way in itertools.product(_LAYOUTS, ("operations", "fused")):
        shape = (1, 4, 4, 4) if setting.is_tiny else (8, 32, 48, 32)
        logits, label = _draw(setting, 3, layout, shape, torch.bfloat16)
        set_fused("loss", way == "fused")
        loss = build_loss(_CONFIG)

        def step(
            logits: torch.Tensor = logits, label: torch.Tensor = label, loss: Callable[..., torch.Tensor] = loss
        ) -> torch.Tensor:
            return torch.autograd.grad(loss(logits, label), logits)[0]

        row = {"what": f"8x3x32x48x32, {layout}, {way}", **_times(setting, step, repeats=50)}
        setting.report("small", {**row, "launches": sum(count for _, _, count in profile_kernels(step, setting)[0])})


def _by_compiler(setting: Setting, num_classes: int, copy_gb_s: float) -> None:
    logits, label = _large(setting, num_classes, "contiguous")
    set_fused("loss", False)
    loss = torch.compile(build_loss(_CONFIG), dynamic=False)

    def step() -> torch.Tensor:
        return torch.autograd.grad(loss(logits, label), logits)[0]

    begin_s = time.perf_counter()
    step()
    compile_s = time.perf_counter() - begin_s
    row = _judged(
        f"{num_classes} classes, contiguous, torch.compile", _times(setting, step), num_classes, label, copy_gb_s
    )
    setting.report("losses", {**row, "compile_s": compile_s})


def _candidates(num_classes: int, layout: str) -> list[tuple[LossTiling, LossTiling]]:
    """The tilings in use first, then others worth a try: of the sums, and of the gradient."""
    last = layout == "channels_last"
    used = tuple(tiling(num_classes, is_channels_last=last, is_gradient=is_gradient) for is_gradient in (False, True))
    others = {
        (2, False): [(512, 4, 4, 8, False), (1024, 8, 4, 4, False), (2048, 8, 8, 8, False)],
        (3, False): [(512, 4, 4, 8, False), (1024, 8, 4, 4, False), (2048, 8, 8, 4, False)],
        (14, False): [(128, 1, 4, 8, False), (256, 8, 4, 8, False), (256, 2, 4, 4, False)],
        (105, False): [(64, 8, 8, 4, False), (64, 8, 4, 4, False), (64, 2, 8, 4, False)],
        (2, True): [(512, 1, 4, 8, False), (1024, 1, 4, 16, False), (1024, 1, 4, 8, True)],
        (3, True): [(128, 1, 4, 16, False), (1024, 1, 4, 8, True), (256, 1, 4, 8, True)],
        (14, True): [(32, 1, 1, 32, False), (64, 1, 1, 32, False), (128, 1, 4, 8, True)],
        (105, True): [(8, 1, 1, 32, False), (16, 1, 4, 8, False), (4, 1, 1, 64, False)],
    }[num_classes, last]
    made = [
        LossTiling(block=block, align=align, num_warps=warps, programs=programs, is_by_thread=by_thread)
        for block, align, warps, programs, by_thread in others
    ]
    return [(used[0], used[1]), *((some, some) for some in made)]


def _tilings(setting: Setting, num_classes: int, layout: str) -> None:
    """Each kernel with each tiling, on the device alone."""
    logits, label = _large(setting, num_classes, layout)
    if not _runs(logits, label):
        setting.report("tilings", {"what": f"{num_classes} classes, {layout}", "error": "no kernels on this device"})
        return
    value = logits.detach().float().new_full((1 + 2 * 256,), 1e-6)
    outer = value.new_ones(())
    for pair in _candidates(num_classes, layout):
        loss = FusedLoss(_CONFIG, tilings=pair)
        for is_gradient, used in enumerate(pair):
            what = f"{num_classes} classes, {layout}, {'gradient' if is_gradient else 'sums'}"

            def work(loss: FusedLoss = loss, is_gradient: bool = bool(is_gradient)) -> None:
                call = _Call(loss, logits.detach(), label, is_gradient=is_gradient)
                if is_gradient:
                    call.gradient(value, outer, is_shared=True)
                else:
                    call.sums()

            row: Row = {"what": what, **vars(used)}
            with setting.guard("tilings", **row):
                replay = capture(work).replay if setting.is_cuda else work
                setting.report("tilings", row | device_ms(replay, setting, repeats=8, warmup=2))


def _runs(logits: torch.Tensor, label: torch.Tensor) -> bool:
    set_fused("loss", True)
    return can_fuse(logits, label, _CONFIG, 0)


def _compile_ahead(setting: Setting) -> None:
    """Launches every kernel once on a tiny batch, in several threads: sizes make no other kernel of it."""
    if not setting.is_cuda:
        return
    set_fused("loss", True)

    def launch(case: tuple[int, str, tuple[LossTiling, LossTiling], torch.dtype]) -> None:
        num_classes, layout, pair, dtype = case
        what = f"first launch: {num_classes} classes, {layout}, {dtype}"
        with setting.guard("errors", what=what, tilings=str(pair)), torch.no_grad():
            logits, label = _draw(setting, num_classes, layout, (2, 8, 8, 8), dtype)
            loss = FusedLoss(_CONFIG, tilings=pair)
            loss.loss(logits, label)
            value = torch.zeros(1 + 2 * 256, device=setting.device)
            _Call(loss, logits, label, is_gradient=True).gradient(value, value.new_ones(()), is_shared=True)

    cases = [
        (num_classes, layout, pair, torch.bfloat16)
        for num_classes, layout in itertools.product(CLASSES, _LAYOUTS)
        for pair in _candidates(num_classes, layout)
    ] + [
        (num_classes, layout, _candidates(num_classes, layout)[0], torch.float32)
        for num_classes, layout in itertools.product(CLASSES, _LAYOUTS)
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(launch, cases))
    torch.cuda.synchronize()


EXPERIMENT = Experiment(
    id="E5",
    question="What do loss and gradient cost by torch's operations, compiled, and in two passes; which tilings?",
    seconds=45,
    run=run,
)
