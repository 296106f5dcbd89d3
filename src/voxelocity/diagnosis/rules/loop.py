"""Rules on what the loop does besides learning: its optimizer, garbage collection, logging, Python itself."""

from __future__ import annotations

from voxelocity.core.quantities import duration_text
from voxelocity.diagnosis.accounting.in_loop import making_places
from voxelocity.diagnosis.accounting.watched import part_s, steps_s
from voxelocity.diagnosis.facts import PARTS, Facts
from voxelocity.diagnosis.rules.changes import changed_call
from voxelocity.diagnosis.rules.rule import Found, rule
from voxelocity.diagnosis.rules.seen import (
    calls_named,
    is_shown,
    num_samples,
    on_gpu,
    part_share_of,
    stack_line,
    stacks_in,
)
from voxelocity.diagnosis.rules.words import percent

# Bytes per second that a fill and an addition move, on two cores and on a GPU; both are low estimates.
_CPU_BYTES_PER_S = 1e10
_GPU_BYTES_PER_S = 5e11
# A gradient is filled, read and written where it could have been written once; float32.
_ZERO_BYTES = 3 * 4
# Measured, AdamW of 60 tensors of 28,000 values: fused 0.16 of the loop by CPU time (n = 15); the rule promises half.
_FUSED_SAVED = 0.5
_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
_LOOP_SHARE = 0.15


@rule("VX341", "Gradients are filled with zeros rather than dropped", pool="compute")
def filled_gradients(facts: Facts) -> Found | None:
    """`zero_grad(set_to_none=False)` writes each gradient once more, and adds to it."""
    optimizer, network = facts.optimizer, facts.network
    if optimizer is None or optimizer.sets_to_none or network is None or not facts.counted:
        return None
    rate = _GPU_BYTES_PER_S if on_gpu(facts) else _CPU_BYTES_PER_S
    return Found(
        cause=f"Each step fills {network.num_parameters:,} gradients with zeros and adds to them, where writing "
        "them once would do.",
        evidence=[f"{optimizer.name}.zero_grad(set_to_none=False)"],
        saves_s=len(facts.counted) * network.num_parameters * _ZERO_BYTES / rate,
        change="optimizer.zero_grad()  # set_to_none=True is its default",
        where=optimizer.where,
    )


@rule("VX342", "The optimizer goes through the parameters one by one", pool="compute")
def looping_optimizer(facts: Facts) -> Found | None:
    """The for-loop form, which launches several operations for each parameter."""
    optimizer = facts.optimizer
    seconds = part_s(facts, "optimizer")
    if optimizer is None or optimizer.implementation != "for-loop" or not is_shown(facts, seconds):
        return None
    has_fused = optimizer.name in _FUSED
    way = "fused" if has_fused else "foreach"
    return Found(
        cause=f"{optimizer.name} takes {duration_text(seconds)} of {duration_text(steps_s(facts))} "
        f"({percent(seconds / steps_s(facts))}), in several operations for each parameter.",
        evidence=[f"{optimizer.name}: for-loop implementation"],
        saves_s=seconds * _FUSED_SAVED if has_fused else None,
        change=changed_call(optimizer.call, optimizer.variable, **{way: "True"})
        or f"optimizer = torch.optim.{optimizer.name}(..., {way}=True)",
        where=optimizer.where,
    )


@rule("VX361", "Python's garbage is collected by hand in the loop", pool="loop", names_work=True)
def garbage(facts: Facts) -> Found | None:
    """`gc.collect` visits every object of the program at each step."""
    calls = calls_named(facts, "gc.collect")
    if not calls:
        return None
    seconds = sum(one.seconds for one in calls)
    return Found(
        cause=f"gc.collect() ran {sum(one.count for one in calls)} times in {calls[0].num_steps} steps and took "
        f"{duration_text(seconds)}; tensors are freed without it.",
        evidence=[f"{one.where}: {one.line.strip()}, {one.count} calls, {duration_text(one.seconds)}" for one in calls],
        saves_s=seconds,
        basis="measured",
        change=f"# {calls[0].line.strip()}  <- remove this line, or call it once an epoch",
        where=calls[0].where,
    )


@rule("VX362", "Logging takes part in every step", pool="loop", names_work=True)
def logging_each_step(facts: Facts) -> Found | None:
    """Printing, or a tracker's call that writes at once."""
    stacks = stacks_in(facts, PARTS, ("log",))
    whole = num_samples(stacks_in(facts, PARTS))
    seconds = steps_s(facts) * num_samples(stacks) / max(1, whole)
    if not stacks or not is_shown(facts, seconds):
        return None
    return Found(
        cause=f"Logging and printing take {duration_text(seconds)} of {duration_text(steps_s(facts))} "
        f"({percent(seconds / steps_s(facts))}).",
        evidence=[stack_line(one, whole) for one in stacks[:3]],
        saves_s=seconds * 0.9,
        change=f"if step % 50 == 0:\n    {stacks[0].line.strip()}",
        where=stacks[0].where,
    )


@rule("VX363", "The loop itself takes its time between the network's calls", pool="loop")
def busy_loop(facts: Facts) -> Found | None:
    """Neither data nor network: Python code of the loop."""
    if not facts.counted or part_share_of(facts, "other") < _LOOP_SHARE:
        return None
    if on_gpu(facts) and any(one.count >= one.num_steps > 0 for one in facts.syncs):
        return None
    own = [one for one in stacks_in(facts, ("other",)) if one.kind in ("other", "sync", "transform", "sleep")]
    made = num_samples(making_places(facts))
    whole = num_samples(stacks_in(facts, ("other",)))
    if whole and made > 0.5 * whole:
        return None
    seconds = part_s(facts, "other")
    known_s = sum(one.seconds for one in calls_named(facts, "gc.collect"))
    logged = num_samples(stacks_in(facts, ("other",), ("log",)))
    known_s += seconds * (logged + made) / max(1, whole)
    saves_s = max(0.0, seconds - known_s)
    if not is_shown(facts, saves_s):
        return None
    return Found(
        cause=f"Between data, network and optimizer the loop spends {duration_text(seconds)} of "
        f"{duration_text(steps_s(facts))} ({percent(seconds / steps_s(facts))}).",
        evidence=[stack_line(one, whole) for one in own[:4]] or ["no stacks were taken there"],
        saves_s=saves_s,
        change="# move this out of the step, do it every 50 steps, or in the data set where workers share it"
        + (f":\n# {own[0].line.strip()}" if own else ""),
        where=own[0].where if own else "",
    )


RULES = (filled_gradients, looping_optimizer, garbage, logging_each_step, busy_loop)
