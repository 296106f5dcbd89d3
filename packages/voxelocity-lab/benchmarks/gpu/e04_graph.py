"""E4: the whole training step as one CUDA graph: seconds to record it, replay against eager, the same weights."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any, Literal

import torch

from gpu.experiment import Experiment, Row, Setting, device_ms
from gpu.steps import (
    HIPPOCAMPUS,
    LARGE,
    MEDIUM,
    TINY,
    FeedLike,
    StepCase,
    build_batches,
    build_step,
)
from voxelocity.step import TrainingStep
from voxelocity.step.graph import WARM_UP_STEPS
from voxelocity.step.optimizer_table import OPTIMIZERS, OptimizerName


def run(setting: Setting) -> None:
    for case in (TINY,) if setting.is_tiny else (HIPPOCAMPUS, MEDIUM, LARGE):
        for optimizer in ("adamw",) if case is LARGE else ("adamw", "muon"):
            _report(setting, "replay", {"what": case.name, "optimizer": optimizer}, _replay, case, optimizer)
    case, table = TINY if setting.is_tiny else HIPPOCAMPUS, "200 steps against eager ones"
    for optimizer in OPTIMIZERS:
        _report(setting, table, {"what": optimizer}, _agreement, case, optimizer, 0.0)
    _report(setting, table, {"what": "adamw, dropout 0.2"}, _agreement, case, "adamw", 0.2)
    for optimizer in ("adamw", "sgd"):
        _report(setting, table, {"what": f"{optimizer}, float16"}, _agreement, case, optimizer, 0.0, "float16")
    _report(setting, "a recording that fails", {"what": "memory full"}, _full, case)


def _report(setting: Setting, table: str, row: Row, measure: Any, *arguments: Any) -> None:
    with setting.guard(table, **row):
        setting.report(table, row | measure(setting, *arguments))


def _replay(setting: Setting, case: StepCase, optimizer: OptimizerName) -> Row:
    """Milliseconds of a step by events, eager and replayed, and what recording takes."""
    said: list[str] = []
    batches = build_batches(case, setting.device, 2)
    if setting.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    row = _times("eager", build_step(case, setting.device, optimizer=optimizer), batches, setting)
    if setting.is_cuda:
        row["eager_peak_mb"] = torch.cuda.max_memory_reserved() / 1e6
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step = build_step(case, setting.device, optimizer=optimizer, step_graph=True, said=said)
    for number in range(WARM_UP_STEPS):
        step(batches[number % 2].with_(step=number), 1e-3)
    setting.synchronize()
    begin_s = time.perf_counter()
    step(batches[0].with_(step=WARM_UP_STEPS), 1e-3)
    setting.synchronize()
    row["record_s"] = time.perf_counter() - begin_s
    row |= _times("graph", step, batches, setting)
    row["pool_mb"] = 0.0 if step._graphs is None else step._graphs._recorder.num_bytes / 1e6
    row["graph_peak_mb"] = torch.cuda.max_memory_reserved() / 1e6 if setting.is_cuda else 0.0
    return row | {"why_no_graph": step.why_no_graph, "said": " | ".join(said)}


def _times(way: str, step: TrainingStep, batches: list[Any], setting: Setting) -> Row:
    one = device_ms(lambda: step(batches[0], 1e-3), setting)
    return {
        **{f"{way}_{key}": value for key, value in one.items()},
        f"{way}_row_ms": _row_ms(step, batches, setting),
    }


def _row_ms(step: TrainingStep, batches: list[Any], setting: Setting) -> float:
    """Milliseconds of a step in a row of steps, none of which is waited for: what a training has."""
    num_steps = 2 if setting.is_tiny else 20
    times = []
    for _ in range(1 if setting.is_tiny else 3):
        setting.synchronize()
        begin_s = time.perf_counter()
        for number in range(num_steps):
            step(batches[number % 2].with_(step=number), 1e-3)
        setting.synchronize()
        times.append((time.perf_counter() - begin_s) / num_steps * 1e3)
    return statistics.median(times)


def _agreement(
    setting: Setting,
    case: StepCase,
    optimizer: OptimizerName,
    dropout: float,
    compute: Literal["bfloat16", "float16"] = "bfloat16",
) -> Row:
    """How far weights and losses are from those of eager steps, next to how far two eager trainings are apart.

    A thread like those of a feed allocates and launches meanwhile.
    """
    num_steps = 6 if setting.is_tiny else 200
    batches = build_batches(case, setting.device, 4)
    said: list[str] = []
    trained: dict[str, tuple[TrainingStep, list[float]]] = {}
    feed: Any = FeedLike(setting, case, 1, pause_s=4e-3) if setting.is_cuda else contextlib.nullcontext()
    # What two eager trainings differ by is the same for all optimizers that follow the gradients' size.
    has_noise = optimizer in ("adamw", "muon") and not dropout
    with feed:
        for way in ("eager", *(["eager again"] if has_noise else []), "graph"):
            step = build_step(
                case, setting.device, optimizer=optimizer, step_graph=way == "graph", dropout=dropout, compute=compute,
                said=said,
            )  # fmt: skip
            rates = [2e-3 * (1.0 - 0.9 * number / num_steps) for number in range(num_steps)]
            losses = [step(batches[n % 4].with_(step=n), rate) for n, rate in enumerate(rates)]
            trained[way] = (step, torch.stack(losses).tolist())
    row: Row = {"why_no_graph": trained["graph"][0].why_no_graph, "said": " | ".join(said)}
    for name, mode, reference in (("graph", "graph", "eager"), ("noise", "eager again", "eager")):
        if mode not in trained:
            continue
        (ours, our_losses), (theirs, their_losses) = trained[mode], trained[reference]
        row[f"{name}_weights"] = _difference(ours.network, theirs.network)
        row[f"{name}_average"] = _difference(ours.averaged(), theirs.averaged())
        apart = [abs(a - b) / abs(b) for a, b in zip(our_losses, their_losses, strict=True)]
        # The first 20: later, roundings have grown in both.
        row |= {f"{name}_loss_20": max(apart[:20]), f"{name}_loss_200": max(apart), f"{name}_loss_end": our_losses[-1]}
    row["feed_error"] = getattr(feed, "error", "")
    row["feed_batches"] = getattr(feed, "num_batches", 0)
    return row


@torch.no_grad()
def _difference(ours: torch.nn.Module, theirs: torch.nn.Module) -> float:
    """The largest difference of a tensor's weights, relative to its norm; without biases before norms."""
    found = 0.0
    for (name, our_weight), (_, their_weight) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        if name.endswith("bias"):
            continue
        found = max(found, float((our_weight - their_weight).norm() / their_weight.norm().clamp_min(1e-12)))
    return found


def _full(setting: Setting, case: StepCase) -> Row:
    """A device that has no memory left for a recording: the training continues."""
    if not setting.is_cuda:
        return {"skipped": "CUDA graphs need a GPU"}
    said: list[str] = []
    batches = build_batches(case, setting.device, 2)
    step = build_step(case, setting.device, step_graph=True, said=said)
    for number in range(WARM_UP_STEPS):
        step(batches[number % 2].with_(step=number), 1e-3)
    assert step._graphs is not None
    recorder: Any = step._graphs._recorder
    record, total = recorder.record, torch.cuda.get_device_properties(setting.device).total_memory

    def record_in_little(work: Any) -> Any:
        setting.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (8 << 20)) / total)
        try:
            return record(work)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    recorder.record = record_in_little
    losses = [float(step(batches[number % 2].with_(step=number), 1e-3)) for number in range(3, 13)]
    return {
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "why_no_graph": step.why_no_graph,
        "said": " | ".join(said),
    }


EXPERIMENT = Experiment(
    id="E4",
    question="What does the whole step as one CUDA graph bring, and does it train the same weights?",
    seconds=60.0,
    run=run,
)
